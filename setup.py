"""Compilation by mypyc of the modules that every message or task passes through.

Everything else about the package is in ``pyproject.toml``.

The modules in ``COMPILED`` become C extensions if a C compiler is installed. Their Python sources
are installed beside them and are used otherwise. ``PACELINE_PURE=1`` builds without extensions. An
editable installation is compiled only with ``PACELINE_COMPILED=1``, because a change of a source
file would have no effect.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from itertools import chain
from pathlib import Path
from typing import Any

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
#: Folder of the generated C files.
GENERATED = ROOT / "build" / "c"
COMPILED = (
    "protocol/checked_connection.py",
    "protocol/codec.py",
    "protocol/connection.py",
    "protocol/framing.py",
    "protocol/json_form.py",
    "protocol/keys.py",
    "protocol/observer.py",
    "protocol/payload.py",
    "protocol/message_fields.py",
    "protocol/sniffing.py",
    "protocol/values.py",
    "scheduler/core/**/*.py",
    "scheduler/server/comm/*comm.py",
    "scheduler/server/comm/tcp.py",
    "scheduler/server/comm/tls.py",
    "scheduler/server/comm/transport.py",
    "scheduler/server/driver.py",
    "scheduler/server/driver_futures.py",
    "scheduler/server/durable/channel/progress.py",
    "scheduler/server/durable/log/durable_comm.py",
    "scheduler/server/durable/log/recorder.py",
    "scheduler/server/durable/log/segments.py",
    "scheduler/server/peers/client_stream.py",
    "scheduler/server/peers/outgoing_rpc.py",
    "scheduler/server/peers/peer.py",
    "scheduler/server/peers/receive_spool.py",
    "scheduler/server/peers/streams.py",
    "scheduler/server/peers/unregistered_stream.py",
    "scheduler/server/runtime/clock.py",
    "workers_compat/facade/hook_arguments.py",
    "workers_compat/facade/plugins.py",
    "workers_compat/graphs/accelerators/measured_graph.py",
    "workers_compat/graphs/accelerators/plain_tasks.py",
    "workers_compat/graphs/accelerators/shared_openings.py",
    "workers_compat/graphs/accelerators/task_order.py",
    "workers_compat/graphs/ordering.py",
    "workers_compat/graphs/plain_keys.py",
    "workers_compat/graphs/rows.py",
    "workers_compat/graphs/spec_pickler.py",
)
#: Modules that stay interpreted: base classes of interpreted classes, subclasses of built-in ones,
#: dataclasses that msgspec decodes into or whose annotations are read, and code that runs rarely.
INTERPRETED = (
    "scheduler/core/**/__init__.py",
    "scheduler/core/config.py",
    "scheduler/core/extension.py",
    "scheduler/core/inspection/**/*.py",
    "scheduler/core/ports.py",
    "scheduler/core/state/fixed_set.py",
    "scheduler/core/stimuli/*.py",
    "scheduler/core/task_policy.py",
    "scheduler/core/text.py",
    "scheduler/core/turn_observer.py",
)
#: Other modules whose types mypyc reads. Their import name is ``paceline.<path>``.
TYPED = ("protocol/**/*.py", "scheduler/core/**/*.py", "scheduler/server/peers/slow_peers.py")
#: Maximum number of files compiled at the same time. A C compiler takes up to 130 MB.
N_JOBS = min(os.cpu_count() or 1, 4)
#: Commands that build extensions. Others, such as egg_info, read only metadata.
COMMANDS = {"bdist_wheel", "build", "build_ext", "editable_wheel", "install"}


class ParallelBuild(build_ext):
    """Compile the files of an extension in parallel. Setuptools compiles them one by one."""

    def build_extensions(self) -> None:
        compile_serially = self.compiler.compile

        def compile_in_parallel(files: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(N_JOBS) as pool:
                objects = pool.map(lambda file: compile_serially([file], **options), files)
                return list(chain.from_iterable(objects))

        self.compiler.compile = compile_in_parallel
        super().build_extensions()


def is_wanted() -> bool:
    """Return whether this run of setup.py builds extensions, if it can."""
    if os.environ.get("PACELINE_PURE") == "1" or not COMMANDS & set(sys.argv):
        return False
    return "editable_wheel" not in sys.argv or os.environ.get("PACELINE_COMPILED") == "1"


def obstacle() -> str | None:
    """Return what is missing for extensions, or None."""
    try:
        import mypyc.build  # noqa: F401
    except ImportError:
        return "mypyc is not installed"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nPyObject *PyInit_probe(void) { return NULL; }\n")
        command = build_ext(Distribution({"ext_modules": [Extension("probe", [str(source)])]}))
        command.build_temp = command.build_lib = folder
        command.finalize_options()
        try:
            command.run()
        except Exception as error:
            return f"there is no C compiler that works: {error}"
    return None


def sources(patterns: tuple[str, ...]) -> set[str]:
    """Return the paths of the modules that match `patterns`, below their top-level package."""
    found = (path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern))
    return {str("paceline" / path) for path in found}


def extensions() -> list[Extension]:
    """Convert the compiled modules to C, in a tree of links in which paths are import names."""
    from mypyc.build import mypycify

    tree = ROOT / "build" / "tree"
    package = tree / "paceline"
    package.mkdir(parents=True, exist_ok=True)
    for name in ("protocol", "scheduler", "workers_compat"):
        (package / name).unlink(missing_ok=True)
        (package / name).symlink_to(ROOT / name)
    (package / "__init__.py").touch()
    options = ("namespace-packages", "explicit-package-bases", "ignore-missing-imports")
    with chdir(tree):
        found: list[Extension] = mypycify(
            [
                *("--config-file=", "--follow-imports=skip"),
                *(f"--{option}" for option in options),
                *sorted(sources(TYPED) | sources(COMPILED)),
            ],
            only_compile_paths=sorted(sources(COMPILED) - sources(INTERPRETED)),
            group_name="paceline.compiled",
            multi_file=True,
            opt_level="2",
            debug_level="0",
            target_dir=str(GENERATED),
        )
    for each in found:
        # where mypyc writes the headers of a group with a dotted name
        each.include_dirs.append(str(GENERATED / "paceline"))
    return found


ext_modules: list[Extension] = []
if is_wanted():
    missing = obstacle()
    if not missing:
        try:
            ext_modules = extensions()
        except SystemExit:  # mypyc has printed the errors
            missing = "mypyc reports errors"
    if missing:
        print(f"paceline: building without C extensions, because {missing}", file=sys.stderr)
setup(ext_modules=ext_modules, cmdclass={"build_ext": ParallelBuild})
