"""Theil-Sen slopes of many short series at once: the median of all pairwise slopes of each.

The exact estimate takes a number of pairs that is quadratic in the length. Series longer than a bound are thinned to
that many points at even distances, first and last included, which is deterministic; the bound shrinks with the total
work, so that neither one series of 100,000 points nor a million of 500 takes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ..history.columns import FloatArray

BOUNDS = (512, 256, 128, 64, 32, 16)  # points kept of a longer series: the largest for which pairs stay under MAX_PAIRS
MAX_PAIRS = 100_000_000
_KEPT = 64  # up to this length the positions of the pairs are kept
_CHUNK = 2_000_000  # slopes held in memory at a time


def slopes(values: FloatArray, first: np.ndarray, size: np.ndarray, bound: int | None = None) -> tuple[FloatArray, int]:
    """Slope over position 0, 1, 2 … of each stretch values[first : first + size]; 0 for stretches under 3 points.

    Returns the slopes (per step) and the bound above which stretches were thinned (0: none was). bound: given where other
    stretches' pairs count as well.
    """
    bound = bound or bound_of([float(pairs(size, of).sum()) for of in BOUNDS])
    used = np.minimum(size, bound)
    result = np.zeros(len(size))
    for points in np.unique(used[size >= 3]):
        members = np.flatnonzero((used == points) & (size >= 3))
        step = max(1, _CHUNK // (points * (points - 1) // 2))
        for at in range(0, len(members), step):
            chosen = members[at : at + step]
            result[chosen] = _equal_length(values, first[chosen], size[chosen], int(points))
    return result, bound if len(size) and size.max() > bound else 0


def pairs(size: np.ndarray, bound: int) -> FloatArray:
    """How many pairs each stretch has when it is thinned to a bound."""
    kept = np.minimum(size, bound).astype(np.float64)
    return kept * (kept - 1) / 2


def bound_of(total: Sequence[float]) -> int:
    """The largest of BOUNDS with which all pairs stay under MAX_PAIRS; total: pairs by BOUNDS."""
    return next((bound for bound, count in zip(BOUNDS, total) if count <= MAX_PAIRS), BOUNDS[-1])


def _equal_length(values: FloatArray, first: np.ndarray, size: np.ndarray, points: int) -> FloatArray:
    """Slopes of stretches that are all thinned to, or have, `points` points. Rows: stretches."""
    at = np.rint(np.arange(points) * ((size - 1) / (points - 1))[:, None]).astype(np.int64)
    y = values[first[:, None] + at]
    left, right = _pairs(points) if points <= _KEPT else np.triu_indices(points, 1)
    pairs = (y[:, right] - y[:, left]) / (at[:, right] - at[:, left])
    return np.median(pairs, axis=1, overwrite_input=True)


@cache
def _pairs(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of all pairs of a short length: each night asks for the same ones again."""
    left, right = np.triu_indices(points, 1)
    return left, right
