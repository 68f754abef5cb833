"""Sizes of results as a user met them: 25,200 results, mean 1 MB, standard deviation 18.83 MB, the median 25 kB and the largest 1,025 MB."""

from __future__ import annotations

import math
import random

COUNT = 25_200
MB = 1_000_000
QUANTILES = (
    (0.0, 0.001),
    (0.50, 0.025),
    (0.75, 0.075),
    (0.95, 1.6),
    (0.99, 12.0),
    (0.999, 183.0),
    (1.0, 1025.0),
)
"""What was reported, sizes in MB; where the distribution begins was not."""
BENDS = (1.0, 1.0, 1.7, 2.2, 3.2, 0.86)
"""How far sizes between two quantiles lean to the lower one, so that mean and deviation are the reported ones."""


def size_at(quantile: float, scale: float = 1.0) -> int:
    """The size, in bytes, below which this part of the results lies."""
    for (low, a), (high, b), bend in zip(QUANTILES, QUANTILES[1:], BENDS):
        if quantile <= high:
            share = ((quantile - low) / (high - low)) ** bend
            return max(1, round(a * (b / a) ** share * MB * scale))
    return round(QUANTILES[-1][1] * MB * scale)


def sizes(count: int = COUNT, scale: float = 1.0, seed: int = 7) -> list[int]:
    """So many sizes in bytes, in a drawn order; the same for the same seed.

    The smallest and the largest are always there, so that a small count has the whole shape.

    Args:
        count: how many.
        scale: factor on each size.
        seed: of the order.
    """
    drawn = [size_at((i + 0.5) / count, scale) for i in range(count - 1)] + [size_at(1.0, scale)]
    random.Random(seed).shuffle(drawn)
    return drawn


def described(drawn: list[int]) -> dict[str, float]:
    """The numbers that the user gave, of these sizes; MB."""
    ordered = sorted(drawn)
    mean = sum(ordered) / len(ordered)
    deviation = math.sqrt(sum((size - mean) ** 2 for size in ordered) / len(ordered))
    found = {"count": len(ordered), "mean": mean / MB, "deviation": deviation / MB}
    for quantile in (0.5, 0.75, 0.95, 0.99, 0.999):
        found[f"p{quantile * 100:g}"] = ordered[int(quantile * (len(ordered) - 1))] / MB
    found["largest"] = ordered[-1] / MB
    return found
