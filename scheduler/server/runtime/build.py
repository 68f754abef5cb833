"""The version of paceline, and whether its core is compiled."""

from __future__ import annotations

from importlib.metadata import version

from paceline.scheduler.core import turn

#: Whether the core runs as C extensions, which mypyc makes from its Python sources.
COMPILED = not str(turn.__file__).endswith(".py")
#: The version of paceline that this process runs. Another one may be installed meanwhile.
VERSION = version("paceline")


def description() -> str:
    """Return the version and the kind of build, for example ``0.1.0 (compiled)``."""
    return f"{VERSION} ({'compiled' if COMPILED else 'pure Python'})"
