"""Does it help? Jobs that were steered against the control group that was left untouched at random. Pure numpy/scipy.

Because chance alone decided who was left untouched, the groups differ in nothing else, and the difference is the effect:
users' own errors are as many in both, so what differs in failures is what nodes caused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from ..history.columns import FloatArray

LEVEL = 0.95  # of the confidence intervals
RESAMPLES = 2000  # of the bootstrap
LEAST = 10  # jobs that each group must have before anything is said


@dataclass(frozen=True)
class Group:
    """One row per job. failed: 1 where an attempt of it failed, else 0; lost: node-hours of its failed attempts; waited:
    hours from eligible to start (NaN unknown)."""

    failed: FloatArray
    lost: FloatArray
    waited: FloatArray

    def __len__(self) -> int:
        return len(self.failed)


@dataclass(frozen=True)
class Difference:
    """One measure: means of both groups, their difference (steered minus control) with its interval, and how many more
    weeks of jobs like these it takes until the interval no longer holds zero (0: it doesn't; None: can't be told)."""

    measure: str
    unit: str
    steered: float
    control: float
    difference: float
    low: float
    high: float
    more_weeks: float | None


def compare(steered: Group, control: Group, weeks: float, seed: int = 0) -> list[Difference]:
    """All measures. `weeks`: how long it took to gather these jobs. Same input and seed, same result.

    Failures: Newcombe's interval for a difference of proportions (from Wilson's intervals), which has a width even where
    nothing failed. Node-hours and waiting have long tails: percentile bootstrap.
    """
    rows = []
    for measure, unit, scale in (("failed", "failures per 100 jobs", 100.0), ("lost", "node-hours lost per job", 1.0),
                                 ("waited", "hours waited per job", 1.0)):  # fmt: skip
        a, b = _known(getattr(steered, measure)) * scale, _known(getattr(control, measure)) * scale
        if min(len(a), len(b)) < LEAST:
            continue
        low, high = _proportions(a / scale, b / scale, scale) if measure == "failed" else _bootstrap(a, b, seed)
        difference = float(a.mean() - b.mean())
        more = more_weeks(difference, low, high, weeks)
        rows.append(Difference(measure, unit, float(a.mean()), float(b.mean()), difference, low, high, more))
    return rows


def _known(values: FloatArray) -> FloatArray:
    return values[np.isfinite(values)]


def _wilson(p: float, n: int) -> tuple[float, float]:
    z = float(ndtri(0.5 + LEVEL / 2))
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return float(centre - half), float(centre + half)


def _proportions(a: FloatArray, b: FloatArray, scale: float) -> tuple[float, float]:
    """Newcombe 1998, method 10."""
    p, q = float(a.mean()), float(b.mean())
    (low_p, high_p), (low_q, high_q) = _wilson(p, len(a)), _wilson(q, len(b))
    d = p - q
    low = d - np.hypot(p - low_p, high_q - q)
    high = d + np.hypot(high_p - p, q - low_q)
    return scale * float(low), scale * float(high)


def _bootstrap(a: FloatArray, b: FloatArray, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    means = [rng.choice(a, len(a)).mean() - rng.choice(b, len(b)).mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return float(low), float(high)


def more_weeks(difference: float, low: float, high: float, weeks: float) -> float | None:
    """Weeks still needed if the difference stays as it is: an interval narrows with the square root of the jobs."""
    if low > 0 or high < 0:
        return 0.0
    half = difference - low if difference > 0 else high - difference
    if difference == 0 or half <= 0:
        return None
    return weeks * ((half / abs(difference)) ** 2 - 1)
