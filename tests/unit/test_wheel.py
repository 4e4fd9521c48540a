"""The wheel draws what a plain search through the running sum draws, with the numbers of the standard library."""

import math
import random
from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.decision.wheel import BLOCK, Wheel, numbers


def plain(weights, ratio_cap, points):
    """Roulette without replacement, each time over all that are left."""
    left, drawn = list(range(len(weights))), []
    for point in points:
        floor = max(weights[i] for i in left) / ratio_cap if ratio_cap else 0.0
        counted = [max(weights[i], floor) for i in left]
        total = math.fsum(counted)
        if total <= 0.0:
            place = min(int(point * len(left)), len(left) - 1)
        else:
            place = bisect_right(list(accumulate(counted)), point * total)
            place = place if place < len(left) else max(i for i, weight in enumerate(counted) if weight > 0.0)
        drawn.append(left.pop(place))
    return drawn


weights = st.lists(st.sampled_from([0.0, 1e-9, 0.01, 0.3, 1.0, 1.5, 70.0]) | st.floats(0.0, 10.0), min_size=1, max_size=3 * BLOCK)


@given(weights, st.sampled_from([None, 2.0, 50.0]), st.integers(0, 2**48))
def test_it_draws_what_the_plain_search_draws_down_to_the_last(values, ratio_cap, seed):
    source = random.Random(seed)
    points = [source.random() for _ in values]
    wheel = Wheel(values, ratio_cap)
    assert [wheel.take(point) for point in points] == plain(values, ratio_cap, points)


@pytest.mark.parametrize("ratio_cap", [None, 50.0])
def test_thousands_of_unlike_weights(ratio_cap):
    source = random.Random(7)
    values = [source.random() ** 8 for _ in range(5000)]
    points = [source.random() for _ in range(200)]
    wheel = Wheel(values, ratio_cap)
    assert [wheel.take(point) for point in points] == plain(values, ratio_cap, points)


@pytest.mark.parametrize("point", [0.0, 0.5, 1.0 - 2**-53])
def test_a_node_without_weight_is_not_drawn_while_another_has_some(point):
    assert Wheel([0.0, 3.0, 0.0]).take(point) == 1


@given(st.integers(0, 2**60) | st.text() | st.integers(0, 2**48).map(lambda seed: f"{seed}/leaf1"))
def test_the_numbers_are_those_of_the_standard_library(seed):
    ours, theirs = numbers(seed), random.Random(seed)
    assert [ours() for _ in range(5)] == [theirs.random() for _ in range(5)]
