"""Rules 1 and 2: imports go down, and each package imports only what its layer allows."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest

from tests.support.source_tree import PACKAGES, ROOT, Source, package_of, sources

# What a package may import that is neither ours nor the standard library's.
THIRD_PARTY = {
    "paceline.protocol": {"msgspec", "msgpack", "lz4", "zstandard", "snappy", "cramjam"},
    "paceline.scheduler.core": {"sortedcontainers", "msgspec"},
    "paceline.scheduler.extensions": {"msgspec"},
    "paceline.transfer": {
        "dask",
        "distributed",
        "cloudpickle",
        "click",
        "lz4",
        "msgpack",
        "msgspec",
        "numpy",
        "redis",  # optional: the transfer "redis"
        "tornado",
        "tlz",
    },
    "paceline.workers_compat": {
        *("dask", "distributed", "cloudpickle", "tornado", "msgspec", "msgpack", "numpy", "tlz"),
        "lz4",  # what a transfer compresses with
        *("click", "setproctitle"),  # options of preloads; what `ps` calls the compiler
        "tblib",  # distributed's own dependency: tracebacks that clients open
        *(
            "bokeh",
            "sortedcontainers",
        ),  # performance reports; what stock gives programs as sorted sets
    },
    "paceline.scheduler.server": {
        *("uvloop", "tornado", "click", "prometheus_client", "psutil", "setproctitle"),
        *("msgspec", "msgpack"),  # requests to workers, the journal's records
        *("jupyter_server", "traitlets"),  # optional: `--jupyter`
    },
    "paceline.scheduler": set(),
    "paceline.testing": set(),
    "paceline": set(),
}

#: Parts of the core: each imports only those before it. Modules that are not listed may be used by
#: any part.
CORE_ORDER = (
    *("state", "policy", "turn", "lifecycle", "stealing", "graphs", "ticks", "handlers"),
    *("inspection", "core"),
)

# These packages may not use the clock, random numbers, the operating system or pickles.
FORBIDDEN = {
    *("asyncio", "time", "random", "socket", "threading", "logging", "os", "pickle", "dask"),
    *("distributed", "cloudpickle", "tornado", "subprocess", "selectors", "ssl", "multiprocessing"),
    *("datetime", "uuid", "secrets", "tempfile", "pathlib", "shutil"),
}
PURE = (
    "paceline.protocol",
    "paceline.scheduler.core",
    "paceline.scheduler.extensions",
    "paceline.testing",
)


def problems(source: Source) -> list[str]:
    found = []
    for item in source.imports():
        top = item.name.split(".")[0]
        place = f"{source.where}:{item.line} imports {item.name}"
        if source.package in PURE and top in FORBIDDEN:
            found.append(f"{place}: forbidden in {source.package}")
        elif top == "paceline":
            target = package_of(item.name)
            if target is None:
                found.append(f"{place}: no package has this name")
            elif source.package == "paceline.transfer" and target[0] != source.package:
                found.append(f"{place}: workers load the transfer without the scheduler")
            elif target[1] > source.layer:
                found.append(f"{place}: that is a higher layer")
            elif source.package == "paceline.scheduler.core" and not item.for_types:
                if target[0] == "paceline.scheduler.extensions":
                    found.append(f"{place}: extensions know the core, not the other way round")
        elif top not in sys.stdlib_module_names and top not in THIRD_PARTY[source.package]:
            if not item.for_types:
                found.append(f"{place}: not in the list of what {source.package} may import")
    return found


def test_imports_go_down() -> None:
    assert [p for source in sources() for p in problems(source)] == []


def core_part(module: str) -> str:
    """Return the package or module of the core that contains `module`; empty for others."""
    prefix = "paceline.scheduler.core."
    return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else ""


def test_imports_of_the_core_go_down() -> None:
    found = [
        f"{source.where}:{item.line} imports {item.name}"
        for source in sources()
        if (here := core_part(source.module)) in CORE_ORDER
        for item in source.imports()
        if (there := core_part(item.name)) in CORE_ORDER
        and CORE_ORDER.index(there) > CORE_ORDER.index(here)
    ]
    assert found == []


def test_every_file_is_in_a_package() -> None:
    assert {source.folder for source in sources()} == set(PACKAGES)


def test_private_imports_are_listed() -> None:
    """CONTRIBUTING.md lists the modules that import private ones of dask and distributed."""
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("### Private APIs")[2]
    rows = [row.split(" | ") for row in page.splitlines() if row.startswith("| ")]
    found = [
        (match[1], item.name.rpartition(".")[2], source.where)
        for source in sources()
        for item in source.imports()
        if (match := re.match(r"(?:dask|distributed)\b.*?\.(_\w+)", item.name))
    ]
    assert [
        (module, where)
        for module, _, where in found
        if not any(module in row[0] and f"`{where}`" in row[1] for row in rows)
    ] == []
    listed = next(row for row in rows if row[0].startswith("| `dask._task_spec`: "))
    names = set(re.findall(r"`(\w+)`", listed[0]))
    assert names == {n for m, n, where in found if m == "_task_spec" and where in listed[1]}


BLOCKED_IMPORT = """
    import sys

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {blocked!r}:
                raise ModuleNotFoundError(f"{{name}} is not installed here", name=name)

    sys.meta_path.insert(0, Absent())
    import importlib, pkgutil
    package = importlib.import_module({package!r})
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    loaded = {blocked!r} & {{name.split(".")[0] for name in sys.modules}}
    assert not loaded, loaded
"""

STOCK = {"dask", "distributed", "cloudpickle"}


@pytest.mark.parametrize(
    ("package", "blocked"),
    [
        ("paceline.protocol", STOCK | {"tornado", "uvloop", "click", "sortedcontainers", "numpy"}),
        ("paceline.scheduler.core", STOCK | {"tornado", "uvloop", "click", "prometheus_client"}),
        ("paceline.scheduler.extensions", STOCK | {"tornado", "uvloop", "click"}),
    ],
)
def test_imports_without(package: str, blocked: set[str]) -> None:
    """Every module of the package can be imported without the named dependencies."""
    code = textwrap.dedent(BLOCKED_IMPORT.format(blocked=blocked, package=package))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
