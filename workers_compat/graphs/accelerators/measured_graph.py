"""The numbers by which dask compares tasks when it orders them, for ``task_order``."""

from __future__ import annotations

from typing import Any, Final

#: Sets of roots or leaves are bits of integers: this many, or more in large graphs, at a time.
BITS_MIN = 8192
#: Passes over the graph that collect such sets.
PASSES_MAX: Final = 64
#: Sets of up to this size are read bit by bit, others as text.
FEW_BITS: Final = 8
#: Longest list that is sorted by insertion.
INSERTION_MAX: Final = 6


class KeyTexts:
    """The texts of keys, which are made when they are needed."""

    __slots__ = ("_keys", "_names", "_texts")

    def __init__(self, keys: list[Any]) -> None:
        self._keys = keys
        self._texts: list[str | None] = [None] * len(keys)
        self._names: dict[Any, str] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, place: int) -> str:
        """Return ``str`` of the key of `place`."""
        text = self._texts[place]
        if text is None:
            text = self._texts[place] = self._text(self._keys[place])
        return text

    def _text(self, key: Any) -> str:
        """Return ``str(key)``. Keys of a collection share the text of their first item."""
        if type(key) is not tuple or len(key) < 2 or type(key[0]) is not str:
            return str(key)
        text = self._names.get(key[0])
        if text is None:
            text = self._names[key[0]] = "(" + repr(key[0])
        for item in key[1:]:
            if type(item) is not int:
                return str(key)
            text += ", " + str(item)
        return text + ")"


class MeasuredGraph:
    """The graph, and the numbers by which dask compares tasks.

    Attributes:
        n_places: number of places.
        texts: of the keys.
        dependencies: place -> dependencies, without shared data.
        all_dependencies: place -> all dependencies, of places that are not keys outside the graph.
        shared_data: plain data with more than one dependent.
        dependents: place -> dependents, in the order in which dask iterates over them.
        data: place -> shared data that it needs.
        roots: places without dependencies, but shared data.
        totals: place -> number of tasks below it, once per path, and itself.
        n_roots: place -> number of roots below it.
        widest: place -> largest number of dependents of one of these roots.
        leaves_above: root -> leaves above it.
    """

    def __init__(self, dependencies: list[list[int]], is_data: list[bool], texts: KeyTexts) -> None:
        n = len(texts)
        size = len(dependencies)
        self.n_places = n
        self.texts = texts
        self.all_dependencies = dependencies
        self.dependencies = dependencies + [[] for _ in range(n - size)]
        self.is_data = is_data + [True] * (n - size)
        dependents: list[list[int]] = [[] for _ in range(n)]
        roots = {place for place, needed in enumerate(dependencies) if not needed}
        for place, needed in enumerate(dependencies):
            for other in needed:
                dependents[other].append(place)
            if needed and needed[-1] >= size:
                roots.update([other for other in frozenset(needed) if other >= size])
        self.dependents = [list(set(each)) if len(each) > 1 else each for each in dependents]
        self.roots = roots
        self.shared_data: set[int] = set()
        self.data: dict[int, set[int]] = {}
        self.totals: list[int] = [1] * n
        self.n_roots: list[int] = [0] * n
        self.widest: list[int] = [len(places) for places in self.dependents]
        self.leaves_above: dict[int, list[int]] = {}

    def set_data_apart(self) -> None:
        """Remove data with several dependents: it is ranked with the first of these."""
        n_left: dict[int, int] = {}
        for root in list(self.roots):
            if not self.is_data[root] or len(self.dependents[root]) < 2:
                continue
            self.shared_data.add(root)
            self.roots.remove(root)
            for dependent in self.dependents[root]:
                self.data.setdefault(dependent, set()).add(root)
                left = n_left.get(dependent, len(self.dependencies[dependent])) - 1
                n_left[dependent] = left
                if not left:
                    self.roots.add(dependent)
        for dependent in self.data:
            needed = self.dependencies[dependent]
            self.dependencies[dependent] = [p for p in needed if p not in self.shared_data]
        for root in self.shared_data:
            self.dependents[root] = []

    def measure(self) -> bool:
        """Count what is below each place. Return False if the graph has a cycle."""
        upwards = self._upwards()
        if len(upwards) < self.n_places:
            return False
        dependencies, totals, widest = self.dependencies, self.totals, self.widest
        for place in upwards:
            if needed := dependencies[place]:
                total = 1
                most = 0
                for other in needed:
                    total += totals[other]
                    if widest[other] > most:  # noqa: PLR1730 - a call takes longer
                        most = widest[other]
                totals[place] = total
                widest[place] = most
        if max(map(len, self.dependents)) < 2:
            self._measure_forest(upwards)
        else:
            self._measure_sets(upwards)
        return True

    def _upwards(self) -> list[int]:
        """Return all places, dependencies first, without those in a cycle or above one."""
        missing = [len(needed) for needed in self.dependencies]
        found = [place for place, count in enumerate(missing) if not count]
        for place in found:
            for dependent in self.dependents[place]:
                left = missing[dependent] - 1
                missing[dependent] = left
                if not left:
                    found.append(dependent)
        return found

    def _measure_forest(self, upwards: list[int]) -> None:
        """Count roots and find leaves if no place has two dependents."""
        n_roots = self.n_roots
        leaf_above = [0] * self.n_places
        for place in upwards:
            if needed := self.dependencies[place]:
                count = 0
                for other in needed:
                    # a root counts as 0 of its own, as in dask
                    count += n_roots[other] or 1
                n_roots[place] = count
        for place in reversed(upwards):
            dependents = self.dependents[place]
            leaf_above[place] = leaf_above[dependents[0]] if dependents else place
        for root in self.roots:
            self.leaves_above[root] = [leaf_above[root]] if self.dependents[root] else []

    def _measure_sets(self, upwards: list[int]) -> None:
        """Count roots and collect leaves with sets."""
        kept = [place for place in upwards if self.dependents[place] or self.dependencies[place]]
        roots = [place for place in kept if not self.dependencies[place]]
        leaves = [place for place in kept if not self.dependents[place]]
        for block in _blocks(roots):
            masks = _spread(block, kept, self.dependencies, self.dependents, self.n_roots)
        for root in roots:
            self.n_roots[root] = 0
        self.leaves_above = {root: [] for root in self.roots}
        counts = [0] * self.n_places
        kept.reverse()
        for block in _blocks(leaves):
            # roots with the same leaves share a list
            joined: dict[tuple[int, int], list[int]] = {}
            masks = _spread(block, kept, self.dependents, self.dependencies, counts)
            for root in roots:
                if not masks[root]:
                    continue
                known = self.leaves_above[root]
                pair = id(known), masks[root]
                if pair not in joined:
                    joined[pair] = known + _members(masks[root], block)
                self.leaves_above[root] = joined[pair]

    def is_less(self, one: int, other: int) -> bool:
        """Return whether dask ranks `one` before `other`, if it is free to."""
        if self.totals[one] != self.totals[other]:
            return self.totals[one] < self.totals[other]
        if len(self.dependencies[one]) != len(self.dependencies[other]):
            return len(self.dependencies[one]) < len(self.dependencies[other])
        if self.n_roots[one] != self.n_roots[other]:
            return self.n_roots[one] < self.n_roots[other]
        if self.widest[one] != self.widest[other]:
            return self.widest[one] > self.widest[other]
        return self.texts.get(one) < self.texts.get(other)

    def sort_key(self, place: int) -> Any:
        """Return a value that compares as ``is_less`` does."""
        return (
            self.totals[place],
            len(self.dependencies[place]),
            self.n_roots[place],
            -self.widest[place],
            self.texts.get(place),
        )

    def sort(self, places: list[int]) -> None:
        """Sort by ``is_less``."""
        if len(places) > INSERTION_MAX:
            places.sort(key=self.sort_key)
            return
        for end in range(1, len(places)):
            place = places[end]
            at = end
            while at and self.is_less(place, places[at - 1]):
                places[at] = places[at - 1]
                at -= 1
            places[at] = place


def _blocks(places: list[int]) -> list[list[int]]:
    """Cut `places` into lists that a set of bits can represent."""
    n_bits = max(BITS_MIN, len(places) // PASSES_MAX + 1)
    return [places[start : start + n_bits] for start in range(0, len(places), n_bits)]


def _spread(
    ends: list[int],
    in_order: list[int],
    below: list[list[int]],
    above: list[list[int]],
    counts: list[int],
) -> list[int]:
    """Collect for each place the `ends` below it, and add their number to its entry in `counts`.

    Return the sets as bits, of those places only that have none above them: a set is dropped after
    its last use. `in_order` has all places, those below first.
    """
    masks: list[int] = [0] * len(counts)
    for number, place in enumerate(ends):
        masks[place] = 1 << number
    remaining = [len(places) for places in above]
    for place in in_order:
        mask = masks[place]
        for other in below[place]:
            mask |= masks[other]
            left = remaining[other] - 1
            remaining[other] = left
            if not left:
                masks[other] = 0
        if mask:
            masks[place] = mask
            counts[place] += mask.bit_count()
    return masks


def _members(mask: int, ends: list[int]) -> list[int]:
    """Return the elements of `ends` whose bits are set."""
    members = []
    if mask.bit_count() <= FEW_BITS:
        while mask:
            members.append(ends[(mask & -mask).bit_length() - 1])
            mask &= mask - 1
        return members
    text = bin(mask)[:1:-1]
    number = text.find("1")
    while number >= 0:
        members.append(ends[number])
        number = text.find("1", number + 1)
    return members
