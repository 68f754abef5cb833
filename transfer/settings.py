"""Settings of a transfer: backends, sizes, and rules for types and tasks."""

from __future__ import annotations

import fnmatch
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import dask.config
from dask.utils import key_split, parse_bytes, parse_timedelta

#: Name of Dask's own transfer in rules and annotations.
STOCK = "dask"
AUTO = "auto"
#: As in ``dask.annotate(transfer="shm")``.
ANNOTATION = "transfer"
CONFIG = "paceline.transfer"
BUILT_IN = {
    "shm": "paceline.transfer.shared_memory:SharedMemory",
    "vm": "paceline.transfer.process_vm:ProcessVM",
    "file": "paceline.transfer.files:Files",
    "redis": "paceline.transfer.redis:Redis",
    "direct": "paceline.transfer.direct:Direct",
}
#: Options of the built-in backends.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "shm": ("cache_nbytes", "idle_nbytes", "limit_nbytes", "writable"),
    "vm": (),
    "file": ("directory", "lease_seconds", "limit_nbytes"),
    "redis": ("lease_seconds", "limit_nbytes", "timeout_seconds", "url"),
    "direct": ("compression", "timeout_seconds"),
}
#: Required option of a backend; "auto" leaves the backend out without it.
NEEDS = {"file": "directory", "redis": "url"}


@dataclass(frozen=True)
class Rule:
    """Backends for certain values. All conditions must match; the first matching rule decides.

    Attributes:
        use: names of backends in order of preference, or "dask".
        types: patterns of qualified type names (``pandas.*``).
        prefixes: patterns of key prefixes, as shown on the dashboard.
        min_nbytes: smallest size of the value in bytes.
        max_nbytes: largest size of the value in bytes.
    """

    use: tuple[str, ...]
    types: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    min_nbytes: int = 0
    max_nbytes: int | None = None

    def fits(self, key: Hashable, kind: type, size_nbytes: int) -> bool:
        type_name = f"{kind.__module__}.{kind.__qualname__}"
        return (
            size_nbytes >= self.min_nbytes
            and (self.max_nbytes is None or size_nbytes <= self.max_nbytes)
            and (not self.types or _any_matches(type_name, self.types))
            and (not self.prefixes or _any_matches(str(key_split(key)), self.prefixes))
        )


def _any_matches(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


@dataclass(frozen=True)
class Settings:
    """Validated settings of a transfer.

    Attributes:
        backends: names in order of preference.
        classes: name -> "module:Class" of all backends.
        options: name -> options of that backend.
        rules: see ``Rule``.
        min_nbytes: replaces that of every backend; None keeps it.
        automatic: names chosen by "auto"; no warning is logged if one of them does not work.
    """

    backends: tuple[str, ...] = ()
    classes: Mapping[str, str] = field(default_factory=lambda: dict(BUILT_IN))
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    min_nbytes: int | None = None
    automatic: frozenset[str] = frozenset()

    def split_annotation(self, annotated: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the known and the unknown names in the annotation of a task."""
        names = _names(annotated)
        known = tuple(name for name in names if name == STOCK or name in self.classes)
        return known, tuple(name for name in names if name not in known)

    def order(
        self, key: Hashable, kind: type, size_nbytes: int, annotated: tuple[str, ...] | None
    ) -> tuple[str, ...]:
        """Return the backends for a value in order of preference; empty for Dask's own transfer.

        ``annotated`` has the known names in the annotation of its task; None without one.
        """
        fitting = (rule.use for rule in self.rules if rule.fits(key, kind, size_nbytes))
        chosen = next(fitting, self.backends) if annotated is None else annotated
        return () if STOCK in chosen else chosen


def settings(
    *backends: str,
    rules: Sequence[Rule | Mapping[str, Any]] = (),
    min_nbytes: int | str | None = None,
    **options: Any,
) -> Settings:
    """Validate the arguments of ``Transfer``. Raises ValueError."""
    if isinstance(rules, str) or not isinstance(rules, Sequence):
        raise ValueError(f"rules must be a list of mappings, not {type(rules).__name__}")
    checked_rules = tuple(_rule(rule) for rule in rules)
    given = {name: _options(name, value) for name, value in options.items()}
    classes = dict(BUILT_IN)
    names: list[str] = []
    automatic: set[str] = set()
    for word in backends or (AUTO,):
        if word == AUTO:
            found = [n for n in BUILT_IN if n not in NEEDS or NEEDS[n] in given.get(n, {})]
            automatic |= {name for name in found if name not in given and name not in names}
            names += found
        elif ":" in word:
            name = word.partition(":")[2]
            classes[name] = word
            names.append(name)
        else:
            names.append(word)
    unknown = [name for name in [*names, *given] if name not in classes]
    if unknown:
        known = ", ".join([AUTO, *BUILT_IN])
        raise ValueError(
            f"no transfer is called {unknown[0]!r}: there are {known}, and module:Class"
        )
    _check_options(given, classes)
    for rule in checked_rules:
        for name in rule.use:
            if name not in (STOCK, *classes):
                known = ", ".join([STOCK, *classes])
                raise ValueError(f"a rule uses the unknown transfer {name!r}: there are {known}")
    for name in names:
        need = NEEDS.get(name)
        built_in = classes[name] == BUILT_IN.get(name)
        if built_in and need is not None and need not in given.get(name, {}):
            raise ValueError(f"transfer {name!r} needs its {need}: Transfer({name!r}, {name}=...)")
    return Settings(
        backends=tuple(dict.fromkeys(names)),
        classes=classes,
        options=given,
        rules=checked_rules,
        min_nbytes=None if min_nbytes is None else parse_bytes(min_nbytes),
        automatic=frozenset(automatic),
    )


def configured() -> Settings | None:
    """Return the settings under ``paceline.transfer`` in dask's configuration, or None.

    The value is a list of names, or a mapping such as ``{"backends": ["auto"], "rules": [...],
    "min-nbytes": "1 MiB", "redis": {"url": ...}, "file": {"directory": ...}}``.

    Raises ValueError. Its text does not contain the value, because a URL may contain a password.
    """
    found = dask.config.get(CONFIG, None)
    if not found:
        return None
    try:
        if isinstance(found, (str, list, tuple)):
            return settings(*_names(found))
        more = _with_underscores(_mapping("it", found))
        return settings(*_names(more.pop("backends", None) or AUTO), **more)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"invalid setting `{CONFIG}`: {error}") from error


def _names(found: Any) -> tuple[str, ...]:
    """Split comma-separated names, or return the names in a collection; anything else is a name."""
    if isinstance(found, str):
        words = found.split(",")
    else:
        words = list(found) if isinstance(found, (list, tuple, set, frozenset)) else [found]
    return tuple(str(word).strip() for word in words if str(word).strip())


def _with_underscores(given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return configuration with names that are valid in Python."""
    return {str(key).replace("-", "_"): value for key, value in given.items()}


def _mapping(what: str, value: Any) -> Mapping[Any, Any]:
    """Return `value` if it is a mapping. Raises ValueError."""
    if isinstance(value, Mapping):
        return value
    raise ValueError(f"{what} must be a mapping, not {type(value).__name__}")


def _options(name: str, value: Any) -> Mapping[str, Any]:
    if name in NEEDS and isinstance(value, str):
        return {NEEDS[name]: value}
    given = _with_underscores(_mapping(f"options of transfer {name!r}", value))
    if name not in BUILT_IN:
        return given
    return {option: _amount(name, option, value) for option, value in given.items()}


def _check_options(given: Mapping[str, Mapping[str, Any]], classes: Mapping[str, str]) -> None:
    """Raise ValueError if a built-in backend does not have one of its given options."""
    for name, options in given.items():
        known = OPTIONS.get(name, ()) if classes[name] == BUILT_IN.get(name) else options
        for option in options:
            if option not in known:
                found = ", ".join(known) or "none"
                raise ValueError(f"transfer {name!r} has no option {option!r}: there are {found}")


def _amount(name: str, option: str, value: Any) -> Any:
    """Return the value of an option; sizes and durations as numbers. Raises ValueError."""
    unit = option.rpartition("_")[2]
    if value is None or unit not in ("nbytes", "seconds"):
        return value
    try:
        amount = parse_bytes(value) if unit == "nbytes" else parse_timedelta(value)
    except (AttributeError, KeyError, TypeError, ValueError):
        amount = -1
    if not amount >= 0:
        kind = "a size" if unit == "nbytes" else "a duration"
        raise ValueError(f"option {option!r} of transfer {name!r} must be {kind}, not {value!r}")
    return amount


def _rule(rule: Rule | Mapping[str, Any]) -> Rule:
    given = asdict(rule) if isinstance(rule, Rule) else _with_underscores(_mapping("a rule", rule))
    for name in ("use", "types", "prefixes"):
        if name in given:
            given[name] = _names(given[name])
    for name in ("min_nbytes", "max_nbytes"):
        if given.get(name) is not None:
            given[name] = parse_bytes(given[name])
    try:
        return Rule(**given)
    except TypeError as error:
        raise ValueError(f"a rule of transfer cannot be {given!r}: {error}") from error
