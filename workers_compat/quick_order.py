"""dask's static order with quicker hands.

dask's ``order`` decides what comes first; nothing of that is decided here. But most of its time goes into four helpers
that prepare what it looks at (who depends on whom, how much work lies below a task, which roots a task stands on), and
those are given here in a form that counts instead of collecting. The order is the same, task for task: a test holds that,
and where the installed dask has other helpers, its own are used.

Tasks are *places*: small integers (``ordering``).

Must not know: keys beyond their text; tasks; pickles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import dask.order

BITS_MAX = 8192
"""Sets of at most so many roots are kept as the bits of an integer, 1 kB at most; larger graphs go dask's way."""

_HELPERS = (
    "DependenciesMapping",
    "reverse_dict",
    "ndependencies",
    "_connecting_to_roots",
    "istask",
    "DataNode",
    "defaultdict",
)
_NOBODY: frozenset[int] = frozenset()
_NONE = range(0)


def quick_order(
    dependencies: dict[int, frozenset[int]],
    is_task: dict[int, bool],
    text: Callable[[int], str],
) -> dict[int, int] | None:
    """dask's order of these places.

    Args:
        dependencies: place -> places that it needs; each of them may be missing as a key: it is somebody else's then.
        is_task: place -> whether it is a task, and no mere datum.
        text: what dask prints for the key in this place; ties are broken by it.

    Returns:
        place -> priority; None where the quick helpers do not fit the installed dask, or the graph (a cycle).
    """
    plain = dask.order.order
    namespace = getattr(plain, "__globals__", {})
    if not all(name in namespace for name in _HELPERS):
        return None
    hands = _Hands(dependencies)
    changed: dict[str, Any] = {
        **namespace,
        "DependenciesMapping": hands.dependencies_of,
        "reverse_dict": hands.dependents_of,
        "ndependencies": hands.counts,
        "_connecting_to_roots": hands.connected,
        "DataNode": hands.outsider,
        "istask": bool,
        "str": text,
        "defaultdict": hands.table,
    }
    quick = FunctionType(
        plain.__code__, changed, plain.__name__, plain.__defaults__, plain.__closure__
    )
    quick.__kwdefaults__ = plain.__kwdefaults__
    try:
        found: dict[int, int] = quick(is_task)
    except Exception:
        return None
    finally:
        hands.let_go()
        changed.clear()
    return found


class _Needs(dict[int, frozenset[int]]):
    """place -> what it needs. What is deleted is needed by nobody any more."""

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

    def settle(self, needs: Mapping[int, frozenset[int]]) -> None:
        """Make all sets anew after a deletion, as dask does: equal sets may differ in the order of their walk."""
        if self.deleted:
            for place in self:
                self[place] = needs.get(place, _NOBODY) - self.deleted


class _Hands:
    """The helpers, for one graph."""

    def __init__(self, dependencies: dict[int, frozenset[int]]) -> None:
        self._given = dependencies
        self._needs = _Needs(dependencies)
        self._upwards: list[int] = []
        self._given_out: list[dict[int, Any]] = [dependencies, self._needs]

    def table(self, factory: Callable[[], Any]) -> dict[Any, Any]:
        """In place of a ``defaultdict``: one that can be emptied."""
        made: dict[Any, Any] = defaultdict(factory)
        self._given_out.append(made)
        return made

    def let_go(self) -> None:
        """Empty what was given out: dask's functions hold it in a cycle, which only a collection would find."""
        for mapping in self._given_out:
            mapping.clear()

    def dependencies_of(self, _dsk: Any) -> _Needs:
        """In place of dask's lazy mapping: all is known already."""
        return self._needs

    def outsider(self, place: int, _value: Any) -> bool:
        """In place of the datum with which dask completes a graph that refers to keys of others."""
        self._needs[place] = _NOBODY
        return False

    def dependents_of(self, needs: _Needs) -> dict[int, set[int]]:
        """place -> who needs it; of outsiders too."""
        dependents: dict[int, set[int]] = {place: set() for place in needs}
        for place, needed in needs.items():
            for other in needed:
                if other in dependents:
                    dependents[other].add(place)
                else:
                    dependents[other] = {place}
        needs.dependents = dependents
        self._given_out.append(dependents)
        return dependents

    def counts(
        self, needs: _Needs, dependents: dict[int, set[int]]
    ) -> tuple[dict[int, int], dict[int, int]]:
        """How many a place needs, and how many tasks are below it: by each path once, itself counted."""
        needs.settle(self._given)
        total: dict[int, int] = {}
        self._upwards = upwards(needs, dependents)
        for place in self._upwards:
            count = 1
            for other in needs[place]:
                count += total[other]
            total[place] = count
        n_needed = {place: len(needed) for place, needed in needs.items()}
        self._given_out += (n_needed, total)
        return n_needed, total

    def connected(
        self, needs: Mapping[int, Any], dependents: Mapping[int, Any]
    ) -> tuple[Mapping[int, Any], dict[int, int]]:
        """On which roots a place stands; or, when both maps come exchanged, which leaves stand on it.

        Of roots the order asks only how many there are: a ``range`` of that length is the answer. It asks which
        leaves there are, but of roots only. And with each the largest number of dependents among those roots.
        """
        ends = [place for place, needed in needs.items() if not needed]
        to_roots = needs is self._needs
        if to_roots and all(len(above) <= 1 for above in dependents.values()):
            return _counted_in_a_forest(self._upwards, needs, dependents)
        if len(ends) > BITS_MAX:
            original: Callable[..., Any] = vars(dask.order)["_connecting_to_roots"]
            found: tuple[Mapping[int, Any], dict[int, int]] = original(needs, dependents)
            return found
        if to_roots:
            made = _counted(self._upwards, ends, needs, dependents)
        else:
            made = _collected(self._upwards[::-1], ends, needs, dependents)
        self._given_out += made
        return made


def upwards(needs: Mapping[int, Any], dependents: Mapping[int, Any]) -> list[int]:
    """All places, each after what it needs; those of a cycle, and above it, are missing."""
    missing = {place: len(needed) for place, needed in needs.items()}
    out = [place for place, count in missing.items() if not count]
    for place in out:
        for above in dependents[place]:
            left = missing[above] - 1
            missing[above] = left
            if not left:
                out.append(above)
    return out


def _counted_in_a_forest(
    in_order: list[int], needs: Mapping[int, Any], dependents: Mapping[int, Any]
) -> tuple[dict[int, range], dict[int, int]]:
    """Where nothing is needed twice, no two that a task needs share a root."""
    n_roots: dict[int, int] = {}
    widest: dict[int, int] = {}
    for place in in_order:
        needed = needs[place]
        if needed:
            n = most = 0
            for other in needed:
                n += n_roots[other]
                if widest[other] > most:
                    most = widest[other]
            n_roots[place] = n
            widest[place] = most
        else:
            n_roots[place] = 1
            widest[place] = len(dependents[place])
    return {place: range(n) if needs[place] else _NONE for place, n in n_roots.items()}, widest


def _counted(
    in_order: list[int], ends: list[int], needs: Mapping[int, Any], dependents: Mapping[int, Any]
) -> tuple[dict[int, range], dict[int, int]]:
    """The number of roots of each place. Sets of roots live as long as somebody above still asks for them."""
    bits = {place: 1 << number for number, place in enumerate(ends)}
    asked = {place: len(above) for place, above in dependents.items()}
    n_roots: dict[int, range] = dict.fromkeys(ends, _NONE)
    widest = {place: len(dependents[place]) for place in ends}
    ranges = [range(n) for n in range(len(ends) + 1)]
    for place in in_order:
        needed = needs[place]
        if not needed:
            continue
        union = most = 0
        for other in needed:
            union = union | bits[other] if union else bits[other]
            if widest[other] > most:
                most = widest[other]
            left = asked[other] - 1
            asked[other] = left
            if not left:
                del bits[other]
        bits[place] = union
        widest[place] = most
        n_roots[place] = ranges[union.bit_count()]
    return n_roots, widest


def _collected(
    in_order: list[int], ends: list[int], needs: Mapping[int, Any], dependents: Mapping[int, Any]
) -> tuple[dict[int, frozenset[int]], dict[int, int]]:
    """Which leaves stand on each root."""
    bits = {place: 1 << number for number, place in enumerate(ends)}
    asked = {place: len(above) for place, above in dependents.items()}
    found: dict[int, frozenset[int]] = {}
    of_bits: dict[int, frozenset[int]] = {}
    for place in in_order:
        needed = needs[place]
        union = 0 if needed else bits[place]
        for other in needed:
            union = union | bits[other] if union else bits[other]
            left = asked[other] - 1
            asked[other] = left
            if not left:
                del bits[other]
        bits[place] = union
        if not dependents[place]:
            known = of_bits.get(union)
            if known is None:
                known = of_bits[union] = _members(union, ends)
            found[place] = known if needed else _NOBODY
    return found, {}


def _members(bits: int, ends: list[int]) -> frozenset[int]:
    """Whose bits are set."""
    if bits.bit_count() == len(ends):
        return frozenset(ends)
    text = bin(bits)[:1:-1]
    members = []
    number = text.find("1")
    while number >= 0:
        members.append(ends[number])
        number = text.find("1", number + 1)
    return frozenset(members)
