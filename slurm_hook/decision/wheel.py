"""Roulette without replacement over thousands of weights, and the random numbers that it is turned by. Pure.

Weights stand in blocks whose sums are kept, so that a draw looks at the blocks and then into one of them: what it costs
grows with the square root of their number. It draws what a search through the running sum of all weights would draw.
"""

from __future__ import annotations

import math
import sys
from _bisect import bisect_right  # what `bisect` gives, without that module's own file
from itertools import accumulate

from ..common.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 64


def numbers(seed: int | str) -> Callable[[], float]:
    """What `random.Random(seed).random` is, without that module: it costs a millisecond of import."""
    from _random import Random  # noqa: PLC0415 - only where something is drawn

    if isinstance(seed, str):
        text = seed.encode()
        seed = int.from_bytes(text + _sha512(text), "big")
    found: Callable[[], float] = Random(seed).random
    return found


def _sha512(text: bytes) -> bytes:
    try:
        module = __import__("_sha2" if sys.version_info >= (3, 12) else "_sha512")
    except ImportError:  # a Python built without its own
        module = __import__("hashlib")
    digest: bytes = module.sha512(text).digest()
    return digest


class Wheel:
    """Positions by weight, each taken once.

    weights: not negative; ratio_cap: none that is left counts less than the largest one left over this; None: no such floor.
    """

    def __init__(self, weights: Sequence[float], ratio_cap: float | None = None) -> None:
        self.weights = weights
        self.blocks = [list(range(start, min(start + BLOCK, len(weights)))) for start in range(0, len(weights), BLOCK)]
        self.ratio_cap, self.floor = ratio_cap, 0.0
        # largest first: from `low` on all are under the floor; before `top` all are taken
        self.order = sorted(range(len(weights)), key=weights.__getitem__, reverse=True) if ratio_cap else []
        self.top = self.low = 0
        self.taken = bytearray(len(weights))
        self.sums = [0.0] * len(self.blocks)  # of those over the floor
        self.under = [len(block) if ratio_cap else 0 for block in self.blocks]
        for number in range(len(self.blocks) if ratio_cap is None else 0):
            self._add_up(number)
        self._lower()

    def take(self, point: float) -> int:
        """The position whose stretch of the running sum holds `point` (0 ≤ point < 1); all alike where no weight is left."""
        sums = [over + self.floor * under for over, under in zip(self.sums, self.under)]
        total = math.fsum(sums)
        number, place = self._find(sums, point * total) if total > 0.0 else self._count(point)
        taken = self.blocks[number].pop(place)
        self.taken[taken] = 1
        if self.weights[taken] < self.floor:
            self.under[number] -= 1
        else:
            self._add_up(number)
        self._lower()
        return taken

    def _find(self, sums: Sequence[float], target: float) -> tuple[int, int]:
        """Block, and place in it, where the running sum passes the target."""
        ends = list(accumulate(sums))
        number = _passed(ends, target, sums)
        weights = [max(self.weights[i], self.floor) for i in self.blocks[number]]
        target -= ends[number - 1] if number else 0.0
        return number, _passed(list(accumulate(weights)), target, weights)

    def _count(self, point: float) -> tuple[int, int]:
        """The same where all weights left are zero."""
        left = [(number, place) for number, block in enumerate(self.blocks) for place in range(len(block))]
        return left[min(int(point * len(left)), len(left) - 1)]

    def _add_up(self, number: int) -> None:
        self.sums[number] = math.fsum([self.weights[i] for i in self.blocks[number] if self.weights[i] >= self.floor])

    def _lower(self) -> None:
        """The floor falls with the largest weight that is left."""
        order, weights = self.order, self.weights
        while self.top < len(order) and self.taken[order[self.top]]:
            self.top += 1
        if self.top == len(order) or self.ratio_cap is None:
            return
        self.floor = weights[order[self.top]] / self.ratio_cap
        changed = set()
        while self.low < len(order) and weights[order[self.low]] >= self.floor:
            if not self.taken[order[self.low]]:
                number = order[self.low] // BLOCK
                self.under[number] -= 1
                changed.add(number)
            self.low += 1
        for number in changed:
            self._add_up(number)


def _passed(ends: Sequence[float], target: float, weights: Sequence[float]) -> int:
    """Where a running sum passes the target. Rounding can put that behind the last one: the last with a weight is meant then."""
    place = bisect_right(ends, target)
    return place if place < len(ends) else max(i for i, weight in enumerate(weights) if weight > 0.0)
