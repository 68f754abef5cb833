# `make help` lists the commands. They need Python 3.11 or newer, and install what they use into .venv.

VENV   ?= .venv
PYTEST_ARGS ?=
# reinstall if pyproject.toml changes, or for another set of extras
STAMP = $(VENV)/.installed-$(1)

# the first interpreter that runs and is new enough; shims of version managers may exist without an interpreter
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN = $(VENV)/bin
# set by some container images; without bytecode, each process compiles the modules of the checkout again
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test compiled test-compiled test-all test-slow test-oldest programs coverage lint typecheck format bench bench-smoke bench-programs chaos reference vectors docs wheel clean fuzz

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "paceline needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: $(BIN)/python pyproject.toml
	@echo "installing paceline[$*] (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	@touch $@

demo: $(call STAMP,demo)  ## start a scheduler, two workers and a client, compute with progress bars, exit
	@$(BIN)/python examples/demo.py

# tests that need no cluster and no fixed ports run in parallel; 5 means that none was selected
PARALLEL = tests/core tests/protocol tests/scenarios tests/server tests/simulation tests/tidy tests/workers_compat
test: $(call STAMP,test)  ## run the fast tests
	$(BIN)/python -m pytest -n 2 -m "not slow" $(PARALLEL) $(PYTEST_ARGS) || test $$? = 5
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL:%=--ignore=%) $(PYTEST_ARGS)

# in a copy, because Python prefers compiled extensions to the sources beside them
COMPILED = build/compiled
COMPILED_TESTS ?= tests/core tests/protocol tests/scenarios tests/server tests/simulation tests/workers_compat tests/integration/test_same_as_stock.py
COMPILED_EXTRA = test
compiled:  ## install the compiled core in build/compiled/.venv; needs a C compiler
	rm -rf $(COMPILED) && mkdir -p $(COMPILED) && git ls-files -z | xargs -0 cp --parents -t $(COMPILED)
	PACELINE_COMPILED=1 $(MAKE) -C $(COMPILED) .venv/.installed-$(COMPILED_EXTRA) VENV=.venv
	cd $(COMPILED) && .venv/bin/paceline --version | grep compiled

test-compiled: compiled  ## run tests on the compiled core
	cd $(COMPILED) && .venv/bin/python -m pytest -n 2 -m "not slow" $(COMPILED_TESTS) $(PYTEST_ARGS)

test-all: $(call STAMP,test)  ## run all tests, with coverage, test-oldest and test-compiled
	$(BIN)/python -m pytest $(PYTEST_ARGS)
	$(MAKE) coverage test-oldest
	$(MAKE) test-compiled COMPILED_TESTS="--ignore=tests/tidy tests"

test-slow: $(call STAMP,test)  ## run only the slow tests
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

# the percentage of lines that must be executed
COVERAGE_CORE ?= 94
COVERAGE_PROTOCOL ?= 95
coverage: $(call STAMP,test)  ## fail if tests execute too few lines of the core, the extensions or the protocol
	$(BIN)/python -m pytest -q -n 2 -m "not slow" --cov --cov-report= tests/core tests/protocol tests/scenarios
	$(BIN)/python -m coverage report --include='scheduler/*' --fail-under=$(COVERAGE_CORE)
	$(BIN)/python -m coverage report --include='protocol/*' --fail-under=$(COVERAGE_PROTOCOL)

test-oldest:  ## run the programs of the integration tests on the oldest supported release of Dask
	PIP_CONSTRAINT=$(CURDIR)/.ci/oldest.txt $(MAKE) programs VENV=$(VENV)/oldest

programs: $(call STAMP,test)
	$(BIN)/python -m pytest tests/integration/test_same_as_stock.py $(PYTEST_ARGS)

lint: $(call STAMP,lint) typecheck  ## check with ruff, codespell and strict mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

typecheck: $(call STAMP,lint)  ## check types with strict mypy
	$(BIN)/python tests/support/typecheck.py $(BIN)/mypy

format: $(call STAMP,lint)  ## sort imports and format with ruff
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

bench: $(call STAMP,test) compiled  ## measure the compiled core and the stock scheduler; writes docs/performance.md
	$(BIN)/python -m benchmarks --paceline $(COMPILED)/.venv/bin/paceline --write docs/performance.md

bench-smoke: $(call STAMP,test)  ## check that the benchmarks work, with a short run
	$(BIN)/python -m benchmarks --smoke

BENCH_PROGRAMS_ARGS ?= --write docs/programs.md
bench-programs: COMPILED_EXTRA = programs
bench-programs: $(call STAMP,programs) compiled  ## measure complete programs on both schedulers; writes docs/programs.md
	$(BIN)/python -m benchmarks.programs --paceline $(COMPILED)/.venv/bin/paceline $(BENCH_PROGRAMS_ARGS)

chaos: $(call STAMP,test)  ## kill a durable scheduler repeatedly while stock workers and clients compute
	$(BIN)/python -m benchmarks.chaos $(CHAOS_ARGS)

reference: $(call STAMP,test)  ## generate docs/protocol.md and the other pages that come from the code
	$(BIN)/python docs/reference

vectors: $(call STAMP,test)  ## capture docs/vectors/ between stock peers
	$(BIN)/python -m tests.wiretap.make_vectors

FUZZ_ARGS ?= --seconds 60
fuzz: $(call STAMP,test)  ## send malformed messages for a minute; FUZZ_ARGS="--inputs N --seed K" for other runs
	$(BIN)/python -m tests.protocol.fuzz $(FUZZ_ARGS)

docs: $(call STAMP,docs)  ## build the documentation in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(call STAMP,test)  ## build dist/*.whl
	$(BIN)/python -m build --wheel

clean:  ## remove the environment and generated files
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
