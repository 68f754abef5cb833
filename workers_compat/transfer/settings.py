"""What a user may say about a transfer: which back ends, from which size on, for which types and tasks.

Must not know: workers, back ends' insides.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask.config
from dask.utils import key_split, parse_bytes

STOCK = "dask"
"""The name of Dask's own way, in rules and annotations."""
AUTO = "auto"
ANNOTATION = "transfer"
"""``dask.annotate(transfer="shm")``."""
CONFIG = "paceline.transfer"
BUILT_IN = {
    "shm": "paceline.workers_compat.transfer.shared_memory:SharedMemory",
    "vm": "paceline.workers_compat.transfer.neighbour:Neighbour",
    "file": "paceline.workers_compat.transfer.files:Files",
    "redis": "paceline.workers_compat.transfer.redis:Redis",
    "direct": "paceline.workers_compat.transfer.direct:Direct",
}
NEEDS = {"file": "directory", "redis": "url"}
"""What a back end cannot guess: without it `auto` leaves it out."""


@dataclass(frozen=True)
class Rule:
    """For which values another choice holds. All that is given must fit; the first rule that fits decides.

    Attributes:
        use: names of back ends in order, or "dask".
        types: patterns of type names with their module (``pandas.*``).
        prefixes: patterns of the first part of keys, as the dashboard shows it.
        min_nbytes, max_nbytes: sizes.
    """

    use: tuple[str, ...]
    types: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    min_nbytes: int = 0
    max_nbytes: int | None = None

    def fits(self, key: Hashable, kind: type, size_nbytes: int) -> bool:
        if size_nbytes < self.min_nbytes:
            return False
        if self.max_nbytes is not None and size_nbytes > self.max_nbytes:
            return False
        if self.types and not _any_matches(f"{kind.__module__}.{kind.__qualname__}", self.types):
            return False
        return not self.prefixes or _any_matches(str(key_split(key)), self.prefixes)


def _any_matches(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


@dataclass(frozen=True)
class Settings:
    """A transfer, as it was asked for.

    Attributes:
        backends: names in order of preference.
        classes: name -> "module:Class" of back ends that are not ours.
        options: name -> options of that back end.
        rules: see ``Rule``.
        min_nbytes: replaces every back end's own idea of what is worth it; None leaves it to them.
        guessed: names that nobody said: that one does not work on some system is no news.
    """

    backends: tuple[str, ...] = ()
    classes: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    min_nbytes: int | None = None
    guessed: frozenset[str] = frozenset()

    def asked_for(self, name: str) -> bool:
        """Whether somebody named this back end."""
        return name not in self.guessed

    def order(self, key: Hashable, kind: type, size_nbytes: int, annotated: Any) -> tuple[str, ...]:
        """Names of the back ends that may carry a value, best first; empty for Dask's own way."""
        chosen = self.backends
        if annotated is not None:
            chosen = _names(annotated)
        else:
            for rule in self.rules:
                if rule.fits(key, kind, size_nbytes):
                    chosen = rule.use
                    break
        return () if STOCK in chosen else chosen

    def class_of(self, name: str) -> str:
        """Where the class of a back end is."""
        return self.classes.get(name) or BUILT_IN[name]


def settings(
    *backends: str,
    rules: Sequence[Rule | Mapping[str, Any]] = (),
    min_nbytes: int | str | None = None,
    **options: Any,
) -> Settings:
    """Read what a user gives ``Transfer``.

    Args:
        backends: "auto", names, or "module:Class" of somebody else's.
        rules: as ``Rule``, or mappings of its attributes.
        min_nbytes: bytes, or text such as "1 MiB".
        options: name of a back end -> its options; for "file" and "redis" the directory or URL alone will do.

    Raises:
        ValueError: a word that means nothing here.
    """
    given = {name: _options(name, value) for name, value in options.items()}
    classes = {}
    names: list[str] = []
    guessed: set[str] = set()
    for word in backends or (AUTO,):
        if word == AUTO:
            found = [n for n in BUILT_IN if n not in NEEDS or NEEDS[n] in given.get(n, {})]
            guessed |= {name for name in found if name not in given and name not in names}
            names += found
        elif ":" in word:
            name = word.partition(":")[2]
            classes[name] = word
            names.append(name)
        else:
            names.append(word)
    unknown = [name for name in [*names, *given] if name not in BUILT_IN and name not in classes]
    if unknown:
        known = ", ".join([AUTO, *BUILT_IN])
        raise ValueError(
            f"no transfer is called {unknown[0]!r}: there are {known}, and module:Class"
        )
    for name in names:
        need = NEEDS.get(name)
        if need is not None and name not in classes and need not in given.get(name, {}):
            raise ValueError(f"transfer {name!r} needs its {need}: Transfer({name!r}, {name}=...)")
    return Settings(
        backends=tuple(dict.fromkeys(names)),
        classes=classes,
        options=given,
        rules=tuple(_rule(rule) for rule in rules),
        min_nbytes=None if min_nbytes is None else parse_bytes(min_nbytes),
        guessed=frozenset(guessed),
    )


def configured() -> Settings | None:
    """What dask's configuration says under ``paceline.transfer``; None where it says nothing.

    ``{"backends": ["auto"], "rules": [...], "min-nbytes": "1 MiB", "redis": {"url": ...}, "file": {"directory": ...}}``, or only names.

    Raises:
        ValueError: see ``settings``.
    """
    found = dask.config.get(CONFIG, None)
    if not found:
        return None
    if isinstance(found, (str, list, tuple)):
        return settings(*_names(found))
    more = {str(key).replace("-", "_"): value for key, value in found.items()}
    return settings(*_names(more.pop("backends", None) or AUTO), **more)


def _names(found: Any) -> tuple[str, ...]:
    """Names in a text with commas, or in a sequence."""
    words = found.split(",") if isinstance(found, str) else list(found)
    return tuple(str(word).strip() for word in words if str(word).strip())


def _options(name: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return {str(key).replace("-", "_"): each for key, each in value.items()}
    if name in NEEDS and isinstance(value, str):
        return {NEEDS[name]: value}
    raise ValueError(f"options of transfer {name!r} are a mapping, not {type(value).__name__}")


def _rule(rule: Rule | Mapping[str, Any]) -> Rule:
    if isinstance(rule, Rule):
        return rule
    given = {str(key).replace("-", "_"): value for key, value in rule.items()}
    for name in ("use", "types", "prefixes"):
        if name in given:
            given[name] = _names(given[name])
    for name in ("min_nbytes", "max_nbytes"):
        if given.get(name) is not None:
            given[name] = parse_bytes(given[name])
    try:
        return Rule(**given)
    except TypeError as error:
        raise ValueError(f"a rule of transfer cannot be {dict(rule)!r}: {error}") from error
