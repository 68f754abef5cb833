"""Programs of delayed functions, bags and raw graphs, most of them from rsds. Each returns a comparable result.

They do not depend on the scheduler that serves them.
"""

from __future__ import annotations

import operator
import time

import dask
import dask.bag as db
from dask import delayed
from distributed import Client


def merge(client: Client) -> object:
    """The merge of rsds: many trivial tasks, and one that depends on all of them."""
    numbers = [delayed(operator.mul)(i, 2) for i in range(2000)]
    return delayed(sum)(numbers).compute()


def merge_slow(client: Client) -> object:
    """The merge_slow of rsds: the same with tasks that take a while."""

    def slow(i: int) -> int:
        time.sleep(0.005)
        return i

    return delayed(sum)([delayed(slow)(i) for i in range(200)]).compute()


def tree(client: Client) -> object:
    """The tree of rsds: a binary reduction."""
    level = [delayed(operator.add)(i, 1) for i in range(512)]
    while len(level) > 1:
        level = [delayed(operator.add)(a, b) for a, b in zip(level[::2], level[1::2])]
    return level[0].compute()


def bag(client: Client) -> object:
    """The bag of rsds: records, a product with itself, a filter, an aggregation."""
    records = [{"id": i, "age": 20 + i * 7 % 50, "city": "ABCDE"[i % 5]} for i in range(300)]
    people = db.from_sequence(records, npartitions=6)
    pairs = people.product(people.filter(lambda r: r["age"] > 60))
    same = pairs.filter(lambda pair: pair[0]["city"] == pair[1]["city"])
    ages = same.map(lambda pair: (pair[0]["city"], pair[0]["age"] + pair[1]["age"]))
    totals = ages.foldby(
        lambda item: item[0],
        binop=lambda total, item: total + item[1],
        initial=0,
        combine=operator.add,
    )
    return sorted(totals.compute(scheduler=client))


def bag_text(client: Client) -> object:
    """Count words, as in Dask's introductory examples."""
    lines = [f"line {i} of {i % 7} and {i % 3}" for i in range(500)]
    words = db.from_sequence(lines, npartitions=10).map(str.split).flatten()
    return sorted(words.frequencies().compute(scheduler=client))


def delayed_tree(client: Client) -> object:
    """Delayed functions in nested containers, with a shared dependency and keyword arguments."""

    def combine(*parts: object, scale: int = 1, **named: object) -> object:
        return [scale, *parts, *sorted(named.items())]

    shared = delayed(list)((1, 2, 3))
    left = delayed(combine)(shared, 4, scale=2)
    right = delayed(combine)({"inner": shared}, [left, (left, 5)], extra=shared)
    return dask.compute(left, [right, {"again": shared}])


def raw_graph(client: Client) -> object:
    """`client.get` of a graph in the old notation: tuples, aliases, nested lists, tuple keys."""
    graph = {
        "one": 1,
        "alias": "one",
        ("block", 0): (operator.add, "alias", 10),
        ("block", 1): (operator.mul, ("block", 0), ("block", 0)),
        "all": (list, [("block", 0), ("block", 1), "alias"]),
    }
    return client.get(graph, ["all", ("block", 1), "one"])


def linear_chain(client: Client) -> object:
    value = delayed(0)
    for _ in range(150):
        value = delayed(operator.add)(value, 1)
    return value.compute()


def annotated(client: Client) -> object:
    """Annotations: priorities and retries per block of a program."""
    with dask.annotate(priority=10, retries=2):
        first = [delayed(operator.add)(i, 1) for i in range(10)]
    with dask.annotate(priority=lambda key: hash(str(key)) % 3):
        second = [delayed(operator.mul)(x, 3) for x in first]
    return delayed(sum)(second).compute(optimize_graph=False)
