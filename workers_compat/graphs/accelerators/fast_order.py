"""``dask.order.order`` with faster helpers.

dask's ``order`` makes all decisions. Most of its time goes into helpers that prepare its input:
dependents, the amount of work below each task, and the roots that each task depends on. They are
replaced by versions that count instead of collecting sets. The order is the same for every task,
as tests check. If the installed dask has other helpers, its own are used.

Tasks are *places*: small integers (see ``ordering``).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import dask.order

#: Sets of up to this many roots are bits of an integer, at most 1 kB. Larger graphs use dask's
#: helper.
BITS_MAX = 8192

_HELPERS = (
    "DependenciesMapping",
    "reverse_dict",
    "ndependencies",
    "_connecting_to_roots",
    "istask",
    "DataNode",
    "defaultdict",
)
_EMPTY: frozenset[int] = frozenset()
_NO_ROOTS = range(0)


def fast_order(
    dependencies: dict[int, frozenset[int]],
    is_task: dict[int, bool],
    text: Callable[[int], str],
) -> dict[int, int] | None:
    """Return dask's order of these places: place -> priority.

    Args:
        dependencies: place -> places that it depends on. Those outside the graph are no keys.
        is_task: place -> True for a task, False for plain data.
        text: returns the text of the key of a place. dask breaks ties by it.

    Returns:
        None if the helpers do not fit the installed dask, or the graph has a cycle.
    """
    original = dask.order.order
    namespace = getattr(original, "__globals__", {})
    if not all(name in namespace for name in _HELPERS):
        return None
    helpers = _OrderHelpers(dependencies)
    changed: dict[str, Any] = {
        **namespace,
        "DependenciesMapping": helpers.dependencies,
        "reverse_dict": helpers.reverse_dict,
        "ndependencies": helpers.ndependencies,
        "_connecting_to_roots": helpers.connecting_to_roots,
        "DataNode": helpers.add_external,
        "istask": bool,
        "str": text,
        "defaultdict": helpers.defaultdict,
    }
    accelerated = FunctionType(
        original.__code__, changed, original.__name__, original.__defaults__, original.__closure__
    )
    accelerated.__kwdefaults__ = original.__kwdefaults__
    try:
        found: dict[int, int] = accelerated(is_task)
    except Exception:
        return None
    finally:
        helpers.clear()
        changed.clear()
    return found


class _Dependencies(dict[int, frozenset[int]]):
    """place -> its dependencies. Deleting a place removes it from those of all others."""

    __slots__ = ("deleted", "dependents")

    def __init__(self, needs: dict[int, frozenset[int]]) -> None:
        super().__init__(needs)
        self.deleted: set[int] = set()
        self.dependents: dict[int, set[int]] = {}

    def __delitem__(self, place: int) -> None:
        super().__delitem__(place)
        self.deleted.add(place)
        for dependent in self.dependents.get(place, ()):
            needed = self.get(dependent)
            if needed is not None:
                self[dependent] = needed - {place}

    def rebuild(self, needs: Mapping[int, frozenset[int]]) -> None:
        """Rebuild all sets after a deletion, as dask does: equal sets may differ in order."""
        if self.deleted:
            for place in self:
                self[place] = needs.get(place, _EMPTY) - self.deleted


class _OrderHelpers:
    """Replacements for the helpers of ``dask.order``, for one graph."""

    def __init__(self, dependencies: dict[int, frozenset[int]]) -> None:
        self._dependencies = dependencies
        self._needs = _Dependencies(dependencies)
        self._upwards: list[int] = []
        self._handed_out: list[dict[int, Any]] = [dependencies, self._needs]

    def defaultdict(self, factory: Callable[[], Any]) -> dict[Any, Any]:
        """Return a ``defaultdict`` that ``clear`` empties."""
        made: dict[Any, Any] = collections.defaultdict(factory)
        self._handed_out.append(made)
        return made

    def clear(self) -> None:
        """Empty all mappings, which dask's closures keep in a reference cycle."""
        for mapping in self._handed_out:
            mapping.clear()

    def dependencies(self, _dsk: Any) -> _Dependencies:
        """Replace ``DependenciesMapping``."""
        return self._needs

    def add_external(self, place: int, _value: Any) -> bool:
        """Replace the ``DataNode`` that dask adds for a key outside the graph."""
        self._needs[place] = _EMPTY
        return False

    def reverse_dict(self, needs: _Dependencies) -> dict[int, set[int]]:
        """Return place -> dependents, also for keys outside the graph."""
        dependents: dict[int, set[int]] = {place: set() for place in needs}
        for place, needed in needs.items():
            for other in needed:
                if other in dependents:
                    dependents[other].add(place)
                else:
                    dependents[other] = {place}
        needs.dependents = dependents
        self._handed_out.append(dependents)
        return dependents

    def ndependencies(
        self, needs: _Dependencies, dependents: dict[int, set[int]]
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Return (place -> number of dependencies, place -> number of tasks below it).

        A task counts itself, and each task below it once per path.
        """
        needs.rebuild(self._dependencies)
        total: dict[int, int] = {}
        self._upwards = upwards(needs, dependents)
        for place in self._upwards:
            count = 1
            for other in needs[place]:
                count += total[other]
            total[place] = count
        n_needed = {place: len(needed) for place, needed in needs.items()}
        self._handed_out += (n_needed, total)
        return n_needed, total

    def connecting_to_roots(
        self, needs: Mapping[int, Any], dependents: Mapping[int, Any]
    ) -> tuple[Mapping[int, Any], dict[int, int]]:
        """Return the roots below each place, and the largest number of dependents of one of them.

        With the arguments exchanged: (root -> leaves above it, {}). ``order`` reads only the number
        of roots, so a ``range`` of that length stands in for them. It reads the leaves themselves,
        but of roots only.
        """
        ends = [place for place, needed in needs.items() if not needed]
        to_roots = needs is self._needs
        if to_roots and all(len(above) <= 1 for above in dependents.values()):
            return _count_roots_of_forest(self._upwards, needs, dependents)
        if len(ends) > BITS_MAX:
            original: Callable[..., Any] = vars(dask.order)["_connecting_to_roots"]
            found: tuple[Mapping[int, Any], dict[int, int]] = original(needs, dependents)
            return found
        if to_roots:
            made: tuple[dict[int, Any], dict[int, int]] = _count_roots(
                self._upwards, ends, needs, dependents
            )
        else:
            made = _collect_leaves(self._upwards[::-1], ends, needs, dependents)
        self._handed_out += made
        return made


def upwards(needs: Mapping[int, Any], dependents: Mapping[int, Any]) -> list[int]:
    """Return all places, dependencies first, without those in a cycle or above one."""
    missing = {place: len(needed) for place, needed in needs.items()}
    out = [place for place, count in missing.items() if not count]
    for place in out:
        for above in dependents[place]:
            left = missing[above] - 1
            missing[above] = left
            if not left:
                out.append(above)
    return out


def _count_roots_of_forest(
    in_order: list[int], needs: Mapping[int, Any], dependents: Mapping[int, Any]
) -> tuple[dict[int, range], dict[int, int]]:
    """Count roots where no place has two dependents, so that dependencies never share a root."""
    n_roots: dict[int, int] = {}
    widest: dict[int, int] = {}
    for place in in_order:
        needed = needs[place]
        if needed:
            n = most = 0
            for other in needed:
                n += n_roots[other]
                if widest[other] > most:  # noqa: PLR1730 - a call costs more than the comparison
                    most = widest[other]
            n_roots[place] = n
            widest[place] = most
        else:
            n_roots[place] = 1
            widest[place] = len(dependents[place])
    return {place: range(n) if needs[place] else _NO_ROOTS for place, n in n_roots.items()}, widest


def _count_roots(
    in_order: list[int], ends: list[int], needs: Mapping[int, Any], dependents: Mapping[int, Any]
) -> tuple[dict[int, range], dict[int, int]]:
    """Count the roots of each place. A set of roots is dropped after its last use."""
    bits = {place: 1 << number for number, place in enumerate(ends)}
    remaining = {place: len(above) for place, above in dependents.items()}
    n_roots: dict[int, range] = dict.fromkeys(ends, _NO_ROOTS)
    widest = {place: len(dependents[place]) for place in ends}
    ranges = [range(n) for n in range(len(ends) + 1)]
    for place in in_order:
        needed = needs[place]
        if not needed:
            continue
        union = most = 0
        for other in needed:
            union = union | bits[other] if union else bits[other]
            if widest[other] > most:  # noqa: PLR1730 - a call costs more than the comparison
                most = widest[other]
            left = remaining[other] - 1
            remaining[other] = left
            if not left:
                del bits[other]
        bits[place] = union
        widest[place] = most
        n_roots[place] = ranges[union.bit_count()]
    return n_roots, widest


def _collect_leaves(
    in_order: list[int], ends: list[int], needs: Mapping[int, Any], dependents: Mapping[int, Any]
) -> tuple[dict[int, frozenset[int]], dict[int, int]]:
    """Return the leaves above each root."""
    bits = {place: 1 << number for number, place in enumerate(ends)}
    remaining = {place: len(above) for place, above in dependents.items()}
    found: dict[int, frozenset[int]] = {}
    of_bits: dict[int, frozenset[int]] = {}
    for place in in_order:
        needed = needs[place]
        union = 0 if needed else bits[place]
        for other in needed:
            union = union | bits[other] if union else bits[other]
            left = remaining[other] - 1
            remaining[other] = left
            if not left:
                del bits[other]
        bits[place] = union
        if not dependents[place]:
            known = of_bits.get(union)
            if known is None:
                known = of_bits[union] = _members(union, ends)
            found[place] = known if needed else _EMPTY
    return found, {}


def _members(bits: int, ends: list[int]) -> frozenset[int]:
    """Return the elements of `ends` whose bits are set."""
    if bits.bit_count() == len(ends):
        return frozenset(ends)
    text = bin(bits)[:1:-1]
    members = []
    number = text.find("1")
    while number >= 0:
        members.append(ends[number])
        number = text.find("1", number + 1)
    return frozenset(members)
