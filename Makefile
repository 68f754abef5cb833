# The commands of this project. On a machine with Python 3.11 or newer and nothing else:
#   make demo     a cluster of real processes computes, with a progress bar, and ends by itself
#   make test     environment and all tests that are not marked slow
# Everything is installed into .venv, once; delete that folder to start afresh.

VENV   ?= .venv
PYTEST_ARGS ?=
# a new pyproject.toml installs again; so does another set of extras
STAMP = $(VENV)/.installed-$(1)

# the first interpreter that really runs and is new enough (shims may name ones that do not)
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN = $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-slow lint format bench bench-smoke reference vectors docs wheel clean fuzz

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "paceline needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: $(BIN)/python pyproject.toml
	@echo "installing paceline[$*] (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	@touch $@

demo: $(call STAMP,demo)  ## scheduler, two workers, a client with a progress bar; ends by itself
	@$(BIN)/python examples/demo.py

test: $(call STAMP,test)  ## all tests that are not marked slow
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-all: $(call STAMP,test)  ## all tests, the slow ones too
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-slow: $(call STAMP,test)  ## the slow tests alone
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

lint: $(call STAMP,lint)  ## ruff, and mypy strict on protocol and scheduler
	$(BIN)/ruff check .
	$(BIN)/ruff format --check examples benchmarks tests/integration tests/support tests/tidy
	$(BIN)/python tests/support/typecheck.py $(BIN)/mypy

format: $(call STAMP,lint)  ## let ruff sort imports and format what it checks
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format examples benchmarks tests/integration tests/support tests/tidy

bench: $(call STAMP,test)  ## cost per task, side by side with the stock scheduler; writes docs/performance.md
	$(BIN)/python -m benchmarks --write docs/performance.md

bench-smoke: $(call STAMP,test)  ## the same in seconds, to see that it runs
	$(BIN)/python -m benchmarks --smoke

reference: $(call STAMP,test)  ## docs/protocol.md and what else follows from the code
	$(BIN)/python docs/reference

vectors: $(call STAMP,test)  ## docs/vectors/, captured between stock peers
	$(BIN)/python tests/wiretap/make_vectors.py

FUZZ_ARGS ?= --seconds 60
fuzz: $(call STAMP,test)  ## a minute of broken messages; FUZZ_ARGS="--inputs N --seed K" for more
	$(BIN)/python tests/protocol/fuzz.py $(FUZZ_ARGS)

docs: $(call STAMP,docs)  ## the documentation as a site with search, in site/
	$(BIN)/mkdocs build --quiet

wheel: $(call STAMP,test)  ## dist/*.whl
	$(BIN)/python -m build --wheel

clean:  ## forget the environment and what was built
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
