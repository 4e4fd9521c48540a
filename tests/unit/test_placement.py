"""Placement and priority: worked vectors to nine digits, edges, and properties of probabilities and draws."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.common.errors import PlacementError
from slurm_hook.decision.placement import (
    activation,
    cost_rank,
    draw,
    drops_out_first,
    fill_with_median,
    fit,
    probabilities_attributed,
    probabilities_published,
    weights_attributed,
)
from slurm_hook.dispatch.priority import SMOOTHING, Waiting, placing_order, priorities, waiting

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "method_vectors.json").read_text())
approx9 = lambda value: pytest.approx(value, rel=1e-9, abs=1e-15)  # noqa: E731
capabilities = st.lists(st.one_of(st.none(), st.floats(1e-3, 1e6)), min_size=1, max_size=40)


@pytest.mark.parametrize("case", VECTORS["probability"])
def test_worked_probability(case):
    given_, expected = case["input"], case["expected"]
    fits = fit(given_["demand"], given_["capacity"], given_["gamma"])
    assert fits == approx9(expected["fit"])
    assert activation(fits, given_["capability"]) == approx9(expected["activation"])
    found = probabilities_published(given_["demand"], given_["capacity"], given_["capability"], given_["gamma"])
    assert found == approx9(expected["probability"])


@pytest.mark.parametrize("case", VECTORS["priority"])
def test_worked_priority(case):
    tasks = [waiting(t["id"], t["submit"], t["start"], case["input"]["now"], t["demand"]) for t in case["input"]["tasks"]]
    for found, expected in zip(priorities(tasks), case["expected"]):
        assert found.key == expected["id"]
        assert found.wait_hours == approx9(expected["wait_hours"])
        assert found.completion == approx9(expected["completion"])
        assert found.urgency == approx9(expected["urgency"])
        assert found.priority == approx9(expected["priority"])


def test_placing_order_is_descending_with_ties_by_wait_then_key():
    tasks = [Waiting("b", 10, 0, 5), Waiting("a", 10, 0, 5), Waiting("c", 20, 0, 5), Waiting("d", 1, 9, 5)]
    assert [tasks[i].key for i in placing_order(tasks)] == ["d", "c", "a", "b"]


def test_smoothing_lets_a_task_that_has_not_begun_count():
    tasks = [Waiting("fresh", 3600, 0, 1), Waiting("old", 3600, 540, 1)]
    fresh, old = priorities(tasks, SMOOTHING)
    assert fresh.priority == approx9(60 / 660)
    assert old.priority == approx9(600 / 660)
    assert priorities(tasks)[0].priority == 0


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([], []),
        ([Waiting("a", 3600, 0, 1)], [0.0]),  # nothing processed: no completion
        ([Waiting("a", 3600, 60, 0), Waiting("b", 7200, 60, 0)], [0.5, 1.0]),  # no demand known
        ([Waiting("a", -5, 60, 1)], [0.0]),  # clocks backwards
        ([Waiting("a", 3600, 60, 1), Waiting("b", 3600, 60, -4)], [0.5, 0.0]),
    ],
)
def test_priority_edges(tasks, expected):
    assert [p.priority for p in priorities(tasks)] == approx9(expected)


@pytest.mark.parametrize(
    ("demand", "capacity", "expected"),
    [
        (100, [100], [10.0]),  # the best fit is 1 / gamma
        (0, [100, 50], [1 / 1.1, 1 / 0.6]),
        (100, [0, 0], [1 / 1.1] * 2),  # no capacity known: all alike
        (100, [math.nan, 200], [1 / 0.6, 1 / 0.6]),
        (400, [100, 200], [1 / 1.6, 1 / 1.1]),  # demand over every capacity: the larger fits better
        (5, [], []),
    ],
)
def test_fit_edges(demand, capacity, expected):
    assert fit(demand, capacity) == approx9(expected)


def test_published_probability_without_scores_is_uniform():
    assert probabilities_published(10, [10, 90, 50], [None, None, None]) == approx9([1 / 3] * 3)


def test_published_probability_when_all_scores_are_zero():
    assert probabilities_published(10, [10, 90], [0.0, 0.0]) == approx9([0.5, 0.5])


def test_a_node_without_a_score_is_drawn_like_the_median():
    p = probabilities_published(100, [100, 100, 100, 100], [1e-6, 2e-6, 3e-6, None])
    assert p[3] == approx9(p[1])


def test_published_sigmoid_does_not_overflow():
    p = probabilities_published(100, [100, 100], [-1.0, 1.0], gamma=1e-4)
    assert p == approx9([0.0, 1.0])


@given(capabilities, st.floats(0, 1))
def test_attributed_probabilities_sum_to_one_and_stay_within_the_cap(values, rank):
    p = probabilities_attributed(100, [100.0] * len(values), values, rank)
    assert math.isclose(sum(p), 1.0, rel_tol=1e-9)
    assert max(p) <= 50 * min(p) * (1 + 1e-9)


def test_attributed_probability_is_the_formula_below_the_cap():
    capability, capacity, rank = [1.0, 1.1, 1.2], [100.0, 200.0, 100.0], 0.5
    fits = fit(100, capacity)
    weights = [f * c ** (10 * rank) for f, c in zip(fits, capability)]
    assert probabilities_attributed(100, capacity, capability, rank) == approx9([w / sum(weights) for w in weights])


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_attributed_order_follows_capability(a, b):
    p = probabilities_attributed(1, [1.0, 1.0], [a, b], 1.0)
    assert (p[0] >= p[1]) == (a >= b) or math.isclose(a, b, rel_tol=1e-9)


def test_attributed_scale_of_capability_does_not_matter():
    one = probabilities_attributed(1, [1.0, 1.0, 2.0], [1.0, 1.3, 0.9], 0.7)
    other = probabilities_attributed(1, [1.0, 1.0, 2.0], [1e6, 1.3e6, 0.9e6], 0.7)
    assert one == approx9(other)


QUANTILES = [float(x) for x in range(21)]


@pytest.mark.parametrize(
    ("node_hours", "rank", "with_sacrifice"),
    [
        (-1, 0, -0.3),
        (0, 0, -0.3),
        (5, 0, -0.3),
        (10, 0, 0),
        (9, 0, -0.1),
        (12.5, 0.25**4, 0.25**4),
        (15, 0.5**4, 0.5**4),
        (19, 0.9**4, 0.9**4),
        (20, 1, 1),
        (99, 1, 1),
    ],
)
def test_cost_rank(node_hours, rank, with_sacrifice):
    assert cost_rank(QUANTILES, node_hours) == pytest.approx(rank)
    assert cost_rank(QUANTILES, node_hours, sacrifice=True) == pytest.approx(with_sacrifice)


@pytest.mark.parametrize(
    ("lemon", "relative", "rank", "expected"),
    [(True, 1.0, 0.5, True), (True, 1.0, 0.0, False), (True, 1.0, -0.3, False), (False, 0.3, 0.31, True),
     (True, 1.0, 0.3, False), (False, 0.3, 0.3, False),
     (False, 0.34, 1.0, False), (False, None, 1.0, False), (True, None, 1.0, True)],
)  # fmt: skip
def test_who_drops_out_first(lemon, relative, rank, expected):
    assert drops_out_first(lemon, relative, rank) is expected


@pytest.mark.parametrize(("quantiles", "expected"), [([], 1.0), ([3.0], 1.0), ([2.0] * 21, 0.0)])
def test_cost_rank_without_a_distribution(quantiles, expected):
    assert cost_rank(quantiles, 2.0) == expected


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30), st.floats(-1, 2e6), st.floats(-1, 2e6))
def test_cost_rank_rises_and_stays_in_bounds(quantiles, a, b):
    quantiles = sorted(quantiles)
    low, high = sorted((a, b))
    assert 0 <= cost_rank(quantiles, low) <= cost_rank(quantiles, high) <= 1


@given(st.integers(1, 30), st.integers(0, 30), st.integers())
def test_draw_gives_distinct_nodes_and_repeats_itself(n, count, seed):
    weights = [1.0 + i for i in range(n)]
    if count > n:
        with pytest.raises(PlacementError, match="candidates"):
            draw(weights, [1.0] * n, count=count, seed=seed)
        return
    drawn = draw(weights, [1.0] * n, count=count, seed=seed)
    assert len(set(drawn)) == len(drawn) == count
    assert drawn == draw(weights, [1.0] * n, count=count, seed=seed)


@given(st.lists(st.floats(1, 100), min_size=1, max_size=20), st.floats(0, 500), st.integers())
def test_draw_by_demand_stops_as_soon_as_it_is_exceeded(capacities, demand, seed):
    weights = [1.0] * len(capacities)
    if sum(capacities) <= demand:
        with pytest.raises(PlacementError, match="MiB"):
            draw(weights, capacities, demand=demand, seed=seed)
        return
    drawn = draw(weights, capacities, demand=demand, seed=seed)
    assert sum(capacities[i] for i in drawn) > demand
    assert sum(capacities[i] for i in drawn[:-1]) <= demand


@pytest.mark.parametrize(
    ("count", "demand", "expected"),
    [(2, 1000, 2), (5, 15, 2), (3, None, 3), (None, 10, 2), (None, 9.9, 1), (0, None, 0)],
)
def test_draw_stops_at_whichever_comes_first(count, demand, expected):
    assert len(draw([1.0] * 6, [10.0] * 6, count=count, demand=demand, seed=3)) == expected


def test_draw_needs_a_bound():
    with pytest.raises(PlacementError, match="give one"):
        draw([1.0], [1.0])


def test_draw_takes_nodes_without_weight_only_when_nothing_else_is_left():
    for seed in range(50):
        assert draw([0.0, 1.0, 0.0, 1.0], [1.0] * 4, count=2, seed=seed) in ([1, 3], [3, 1])
    assert sorted(draw([0.0, 0.0, 1.0], [1.0] * 3, count=3, seed=1)) == [0, 1, 2]


def test_draw_frequencies_follow_the_roulette():
    """First picks by their probability; second picks renormalised over what is left (chi-square at a loose bound)."""
    p, n = [0.5, 0.3, 0.2], 4000
    pairs = Counter(tuple(draw(p, [1.0] * 3, count=2, seed=seed)) for seed in range(n))
    chi = 0.0
    for a in range(3):
        for b in range(3):
            if a != b:
                expected = n * p[a] * p[b] / (1 - p[a])
                chi += (pairs[(a, b)] - expected) ** 2 / expected
    assert chi < 20.5  # 5 degrees of freedom: p = 0.001


def test_draw_is_pinned_across_python_versions():
    """`workhorse explain` replays draws on another Python than the one that drew."""
    assert draw([0.1, 0.2, 0.3, 0.4], [1.0] * 4, count=3, seed=4711) == PINNED


PINNED = [1, 2, 3]


def test_the_cap_is_taken_afresh_at_each_draw():
    """Two very good nodes must not make a bad one as likely as a middling one for the third place."""
    weights = weights_attributed(1, [1.0] * 4, [10.0, 10.0, 1.0, 0.1], 1.0)
    third = Counter(draw(weights, [1.0] * 4, count=3, seed=s, ratio_cap=50.0)[2] for s in range(2000))
    level = Counter(draw(probabilities_attributed(1, [1.0] * 4, [10.0, 10.0, 1.0, 0.1], 1.0), [1.0] * 4, count=3, seed=s)[2]
                    for s in range(2000))  # fmt: skip
    assert third[3] < 150 < level[3]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=10), st.integers())
def test_capped_draw_leaves_every_node_a_chance(weights, seed):
    assert sorted(draw(weights, [1.0] * len(weights), count=len(weights), seed=seed, ratio_cap=50.0)) == list(range(len(weights)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [([None, None], [1.0, 1.0]), ([1.0, None, 3.0], [1.0, 2.0, 3.0]), ([math.nan, 5.0], [5.0, 5.0]), ([], [])],
)
def test_fill_with_median(values, expected):
    assert fill_with_median(values) == expected
