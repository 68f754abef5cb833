"""Programs with dask.delayed, dask.bag and graphs written by hand."""

from __future__ import annotations

import itertools
import json
import random
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import dask.bag as db
from dask import delayed
from distributed import Client

from .program import main, program

WORDS = [f"{a}{b}{c}" for a, b, c in itertools.product(("ka", "lo", "mi"), "aeiou", ("n", "st"))]


def books(folder: Path) -> None:
    """Write text files of invented words, the first of which are the most frequent."""
    rng = random.Random(1)
    weights = [1 / (n + 1) for n in range(len(WORDS))]
    for n in range(40):
        lines = (" ".join(rng.choices(WORDS, weights, k=12)) for _ in range(6_000))
        (folder / f"book-{n:02}.txt").write_text("\n".join(lines))


def events(folder: Path) -> None:
    """Write files of JSON records, one a line."""
    rng = random.Random(2)
    for n in range(60):
        records = (
            {"user": rng.randrange(400), "kind": rng.choice("abcd"), "value": rng.randrange(1_000)}
            for _ in range(4_000)
        )
        (folder / f"events-{n:02}.json").write_text("\n".join(map(json.dumps, records)))


@program(books)
def bag_word_count(client: Client, folder: Path) -> Any:
    """Count the words of text files with a bag."""
    lines = db.read_text(folder / "*.txt", blocksize="200kB")
    words = lines.map(str.split).flatten()
    counts = words.frequencies().topk(10, key=1)
    lengths = words.map(len).mean()
    return dask.compute(counts, lengths)


@program(books)
def text_similarity(client: Client, folder: Path) -> Any:
    """Compare all pairs of texts by their trigrams."""

    def trigrams(path: Path) -> Counter[str]:
        text = re.sub(r"\s+", " ", path.read_text()[:100_000])
        return Counter(text[n : n + 3] for n in range(len(text) - 2))

    def similarity(a: Counter[str], b: Counter[str]) -> float:
        return sum((a & b).values()) / sum((a | b).values())

    counts = [delayed(trigrams)(path) for path in sorted(folder.glob("*.txt"))]
    pairs = [delayed(similarity)(a, b) for a, b in itertools.combinations(counts, 2)]
    return dask.compute(delayed(max)(pairs), delayed(min)(pairs), delayed(sum)(pairs))


@program(events)
def delayed_pipeline(client: Client, folder: Path) -> Any:
    """Load, clean, summarize and merge files with dask.delayed."""

    @delayed
    def load(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    @delayed
    def clean(records: list[dict[str, Any]], kind: str) -> list[int]:
        return [record["value"] for record in records if record["kind"] == kind]

    @delayed(nout=2)
    def summarize(values: list[int]) -> tuple[int, int]:
        return len(values), sum(values)

    @delayed
    def mean(counts: list[int], sums: list[int]) -> float:
        return sum(sums) / sum(counts)

    found = []
    for kind in "abcd":
        parts = [summarize(clean(load(path), kind)) for path in sorted(folder.glob("*.json"))]
        found.append(mean([count for count, _ in parts], [total for _, total in parts]))
    return dask.compute(*found)


@program()
def wavefront(client: Client, folder: Path) -> Any:
    """Fill a table of 40 x 40 tasks, each of which needs three neighbours, with a graph by hand."""

    def cell(row: int, column: int, *neighbours: int) -> int:
        noise = zlib.crc32(f"{row},{column}".encode() * 2_000) % 10
        return max(neighbours, default=0) + noise

    size = range(40)
    graph = {
        ("cell", row, column): (
            *(cell, row, column),
            *(
                ("cell", r, c)
                for r, c in ((row - 1, column), (row, column - 1), (row - 1, column - 1))
                if r >= 0 and c >= 0
            ),
        )
        for row in size
        for column in size
    }
    return client.get(graph, [("cell", size[-1], column) for column in size])


if __name__ == "__main__":
    main()
