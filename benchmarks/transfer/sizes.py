"""Sizes of results, distributed as in a workload that a user reported.

It had 25,200 results: mean 1 MB, standard deviation 18.83 MB, median 25 kB, largest 1,025 MB.
"""

from __future__ import annotations

import math
import random

COUNT = 25_200
MB = 1_000_000
#: (quantile, size in MB). All but the first one were reported.
QUANTILES = (
    (0.0, 0.001),
    (0.50, 0.025),
    (0.75, 0.075),
    (0.95, 1.6),
    (0.99, 12.0),
    (0.999, 183.0),
    (1.0, 1025.0),
)
#: Exponent of the curve between two quantiles, chosen to match the reported mean and deviation.
EXPONENTS = (1.0, 1.0, 1.7, 2.2, 3.2, 0.86)


def size_at(quantile: float, scale: float = 1.0) -> int:
    """Return the size at `quantile` in bytes, multiplied by `scale`."""
    for (low, a), (high, b), exponent in zip(QUANTILES, QUANTILES[1:], EXPONENTS):
        if quantile <= high:
            share = ((quantile - low) / (high - low)) ** exponent
            return max(1, round(a * (b / a) ** share * MB * scale))
    return round(QUANTILES[-1][1] * MB * scale)


def draw_sizes(count: int = COUNT, scale: float = 1.0, seed: int = 7) -> list[int]:
    """Return `count` sizes in bytes, each multiplied by `scale`, in an order given by `seed`.

    They are spaced evenly over the distribution and include its maximum, so that a small count
    has the same shape.
    """
    drawn = [size_at((i + 0.5) / count, scale) for i in range(count - 1)] + [size_at(1.0, scale)]
    random.Random(seed).shuffle(drawn)
    return drawn


def summary(drawn: list[int]) -> dict[str, float]:
    """Return count, mean, standard deviation and quantiles of sizes, in MB."""
    ordered = sorted(drawn)
    mean = sum(ordered) / len(ordered)
    deviation = math.sqrt(sum((size - mean) ** 2 for size in ordered) / len(ordered))
    found = {"count": len(ordered), "mean": mean / MB, "deviation": deviation / MB}
    for quantile in (0.5, 0.75, 0.95, 0.99, 0.999):
        found[f"p{quantile * 100:g}"] = ordered[int(quantile * (len(ordered) - 1))] / MB
    found["largest"] = ordered[-1] / MB
    return found
