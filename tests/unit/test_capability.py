"""Part A of the method: the worked vectors to nine digits, and what they don't cover, against plain-loop readings."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.scoring.published_method import Options, otsu, score_columns
from accounting.scoring.theilsen import slopes

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "method_vectors.json").read_text())
H = 3600.0
approx9 = lambda value: pytest.approx(value, rel=1e-9, abs=1e-15)  # noqa: E731


def _score(tasks, capacity, options):
    """tasks: (job, start, end, demand, correct) or with a node as sixth."""
    rows = [(*t, 0)[:6] for t in tasks]
    job, start, end, demand, correct, node = (np.array(c, float) for c in zip(*rows)) if rows else [np.zeros(0)] * 6
    nodes = node.astype(np.int32)
    caps = np.asarray(capacity, float)[nodes] if np.ndim(capacity) else np.full(len(rows), float(capacity))
    n = len(capacity) if np.ndim(capacity) else 1
    return score_columns(
        node=nodes,
        start=start,
        end=end,
        demand=demand,
        capacity=caps,
        correct=correct,
        job=job.astype(int),
        n_nodes=n,
        options=options,
    )


def _vector_table(case):
    given_ = case["input"]
    tasks = [(t["job_id"], t["start"], t["end"], t["demand"], t["correctness"]) for t in given_["tasks"]]
    options = Options(given_["heavy_threshold"], given_["overload_threshold"], given_["max_gap_hours"])
    return _score(tasks, given_["capacity"], options), [t[0] for t in tasks]


@pytest.mark.parametrize("case", VECTORS["node"], ids=lambda c: c["name"])
def test_worked_node(case):
    table, jobs = _vector_table(case)
    expected = case["expected"]
    assert table.breakdown[0] == approx9(expected["breakdown_hours"])
    for name in ("reliability", "capability"):
        value = getattr(table, name)[0]
        assert math.isnan(value) if expected[name] is None else value == approx9(expected[name])
    assert len(table.groups.slope) == len(expected["groups"])
    for i, group in enumerate(expected["groups"]):
        g = table.groups
        at = range(g.first[i], g.first[i] + g.size[i])
        assert [jobs[table.order[k]] for k in at] == group["jobs"]
        assert g.slope[i] == approx9(group["slope"])
        assert g.loss[i] == approx9(group["efficiency_loss"])
        assert g.overload_hours[i] == approx9(group["overload_hours"])
        assert g.ratio[i] == approx9(group["contribution_ratio"])


@pytest.mark.parametrize("case", VECTORS["node"], ids=lambda c: c["name"])
def test_worked_tasks(case):
    table, jobs = _vector_table(case)
    for k, task in enumerate(case["expected"]["tasks"]):
        assert jobs[table.order[k]] == task["job_id"]
        assert table.share[k] == approx9(task["workload_share"])
        assert table.utilization[k] == approx9(task["utilization"])
        assert table.efficiency[k] == approx9(task["efficiency"])


@pytest.mark.parametrize("case", VECTORS["node"], ids=lambda c: c["name"])
def test_all_worked_nodes_at_once_and_shuffled(case):
    """The cluster's pass gives each node what it gets alone, whatever the order of the input."""
    rows, capacity = [], []
    for i, other in enumerate(VECTORS["node"]):
        capacity.append(other["input"]["capacity"])
        rows += [(t["job_id"], t["start"], t["end"], t["demand"], t["correctness"], i) for t in other["input"]["tasks"]]
    order = np.random.default_rng(5).permutation(len(rows))
    table = _score([rows[k] for k in order], capacity, Options(0.5, 0.9, 6.0))
    i = VECTORS["node"].index(case)
    assert table.breakdown[i] == approx9(case["expected"]["breakdown_hours"])
    if case["expected"]["capability"] is not None:
        assert table.capability[i] == approx9(case["expected"]["capability"])


@pytest.mark.parametrize("case", VECTORS["otsu"])
def test_worked_otsu(case):
    found = otsu(np.array(case["input"]["utilization"]), tuple(case["input"]["clamp"]))
    assert found == approx9(case["expected"])


@pytest.mark.parametrize(
    ("values", "expected", "heavy"),
    [
        ([0.5] * 4, None, True),  # one utilization of at least 0.3: all heavy
        ([0.3] * 3, None, True),
        ([1.0], None, True),
        ([0.29] * 3, 0.3, False),
        ([0.0], 0.3, False),
        ([0.1, 0.9], 0.5, None),  # all edges between are equal maxima: their mean
        ([0.01, 0.02, 0.03, 0.04], 0.3, None),  # clamped from below
        ([0.85, 0.86, 0.99, 1.0], 0.8, None),  # clamped from above
        ([], 0.3, None),
    ],
)
def test_otsu_edges(values, expected, heavy):
    threshold = otsu(np.array(values))
    if expected is not None:
        assert threshold == pytest.approx(expected, abs=1e-12)
    if heavy is not None:
        assert (np.array(values) > threshold).all() == heavy


def test_otsu_is_the_best_split_by_brute_force():
    values = np.array(VECTORS["otsu"][0]["input"]["utilization"])
    edges = np.linspace(values.min(), values.max(), 257)

    def within(edge):
        low, high = values[values <= edge], values[values > edge]
        return len(low) * low.var() + len(high) * high.var()

    best = min(within(e) for e in edges[1:-1])
    assert within(otsu(values)) == pytest.approx(best, rel=0.02)


# start, end in hours on one node of capacity 100 with threshold 0.5; expected groups as job lists
GROUPS = [
    ("gap just at the bound", [(1, 0, 1, 80), (2, 7, 8, 80)], [[1, 2]]),
    ("gap over the bound", [(1, 0, 1, 80), (2, 7.001, 8, 80)], [[1], [2]]),
    ("gap counts from the latest end", [(1, 0, 10, 80), (2, 1, 2, 80), (3, 15, 16, 80)], [[1, 2, 3]]),
    (
        "latest end of the last group doesn't count",
        [(1, 0, 20, 80), (2, 1, 2, 10), (3, 3, 4, 80), (4, 11, 12, 80)],
        [[1], [3], [4]],
    ),
    ("a lighter task between", [(1, 0, 1, 80), (2, 1, 2, 50), (3, 2, 3, 80)], [[1], [3]]),
    ("at the threshold is light", [(1, 0, 1, 50)], []),
    ("ties by end, then job id", [(9, 0, 2, 80), (3, 0, 1, 80), (1, 0, 2, 80)], [[3, 1, 9]]),
    ("overlap", [(1, 0, 5, 80), (2, 1, 3, 80), (3, 2, 9, 80)], [[1, 2, 3]]),
    ("over capacity is full", [(1, 0, 1, 1000)], [[1]]),
    ("zero run time", [(1, 0, 0, 80), (2, 0, 0, 80)], [[1, 2]]),
    ("end before start", [(1, 5, 1, 80), (2, 10.9, 12, 80)], [[1, 2]]),
    ("light only", [(1, 0, 1, 10), (2, 1, 2, 10)], []),
]


@pytest.mark.parametrize(("name", "tasks", "expected"), GROUPS, ids=[g[0] for g in GROUPS])
def test_groups(name, tasks, expected):
    rows = [(job, s * H, e * H, a, 1.0) for job, s, e, a in tasks]
    table = _score(rows, 100, Options(0.5))
    g = table.groups
    found = [[rows[table.order[k]][0] for k in range(f, f + n)] for f, n in zip(g.first, g.size)]
    assert found == expected


def test_silent_tasks_stay_in_the_group_but_say_nothing():
    """The silent middle task keeps its share, its place in the slope and its overload hours, and leaves the ratio alone."""
    speak = [(1, 0, H, 80, 1.0), (2, H, 3 * H, 95, math.nan), (3, 3 * H, 4 * H, 60, -1.0)]
    table = _score(speak, 100, Options(0.5))
    shares = [80 / 235, 95 / 235, 60 / 235]
    eta = [s * math.exp(-r) for s, r in zip(shares, (0.8, 0.95, 0.6))]
    slope = np.median([eta[1] - eta[0], eta[2] - eta[1], (eta[2] - eta[0]) / 2])
    assert table.groups.slope[0] == approx9(slope)
    assert table.groups.overload_hours[0] == approx9(2.0)
    assert table.reliability[0] == approx9((shares[0] - shares[2]) / (80 + 60))
    assert table.breakdown[0] == approx9(math.exp(-slope) * 2)
    assert table.capability[0] == approx9(table.reliability[0] / table.breakdown[0])


@pytest.mark.parametrize(
    ("tasks", "reliability"),
    [
        ([(1, 0, H, 80, math.nan)], math.nan),  # a group that says nothing
        ([(1, 0, H, 80, math.nan), (2, 20 * H, 21 * H, 80, 1.0)], 0.5 / 80),  # only the other group counts
        ([(1, 0, H, 80, -1.0)], -1 / 80),  # all failed
        ([(1, 0, H, 0, 1.0)], math.nan),  # no demand: light
        ([], math.nan),
    ],
)
def test_reliability_edges(tasks, reliability):
    table = _score(tasks, [100], Options(0.5))
    assert table.reliability[0] == approx9(reliability) if reliability == reliability else math.isnan(table.reliability[0])
    assert table.breakdown[0] == 0


def test_breakdown_under_one_hour_divides_by_one():
    table = _score([(1, 0, H / 2, 100, 1.0)], 100, Options(0.5))
    assert table.breakdown[0] == approx9(0.5)
    assert table.capability[0] == table.reliability[0]


@pytest.mark.parametrize("demand, capacity", [(math.nan, 100.0), (80.0, math.nan), (80.0, 0.0), (-5.0, 100.0)])
def test_unknown_demand_or_capacity_is_left_out_and_said(demand, capacity):
    one = np.ones(1)
    table = score_columns(
        node=np.zeros(1, np.int32),
        start=one,
        end=one * 2,
        demand=one * demand,
        capacity=one * capacity,
        correct=one,
        job=np.ones(1, int),
        n_nodes=1,
    )
    assert len(table.order) == 0
    assert "1 tasks left out" in table.notes[0]


def test_capacity_that_changed_is_taken_task_by_task():
    table = score_columns(
        node=np.zeros(2, np.int32), start=np.array([0, H]), end=np.array([H, 2 * H]), demand=np.array([80.0, 80.0]),
        capacity=np.array([100.0, 200.0]), correct=np.ones(2), job=np.arange(2), n_nodes=1, options=Options(0.5),
    )  # fmt: skip
    assert table.utilization == approx9([0.8, 0.4])
    assert len(table.groups.size) == 1


def _plain_score(tasks, capacity, options):
    """Steps 1 to 10 for one node, loop by loop."""
    tasks = sorted(tasks, key=lambda t: (t[1], t[2], t[0]))
    total = sum(t[3] for t in tasks) or 1.0
    groups, latest, broken = [], -math.inf, True
    for job, start, end, a, c in tasks:
        r = min(a / capacity, 1.0)
        if r <= options.heavy_threshold:
            broken = True
            continue
        if broken or start - latest > options.max_gap_hours * H:
            groups.append([])
            latest = -math.inf
        groups[-1].append((a / total, r, (end - start) / H, a, c))
        latest, broken = max(latest, end), False
    breakdown, ratios = 0.0, []
    for group in groups:
        eta = [share * math.exp(-r) for share, r, *_ in group]
        pairs = sorted((eta[j] - eta[i]) / (j - i) for i in range(len(eta)) for j in range(i + 1, len(eta)))
        slope = (pairs[(len(pairs) - 1) // 2] + pairs[len(pairs) // 2]) / 2 if len(eta) > 2 else 0.0
        breakdown += math.exp(-slope) * sum(d for _, r, d, _, _ in group if r > options.overload_threshold)
        spoke = [(share * c, a) for share, _, _, a, c in group if not math.isnan(c)]
        if spoke:
            ratios.append(sum(x for x, _ in spoke) / sum(a for _, a in spoke))
    reliability = sum(ratios) / len(ratios) if ratios else math.nan
    return reliability, breakdown, reliability / max(breakdown, 1.0)


task_rows = st.lists(
    st.tuples(
        st.integers(1, 50),
        st.integers(0, 60).map(lambda x: x * H / 2),
        st.integers(0, 20).map(lambda x: x * H / 2),
        st.sampled_from([0, 10, 50, 60, 80, 91, 95, 100, 150]),
        st.sampled_from([1.0, -1.0, math.nan]),
        st.integers(0, 2),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(task_rows)
def test_the_vectorised_pass_equals_plain_loops(rows):
    rows = [(job, s, s + d, a, c, node) for job, s, d, a, c, node in rows]
    options = Options(0.5, 0.9, 6.0)
    table = _score(rows, [100, 120, 90], options)
    for node, capacity in enumerate((100, 120, 90)):
        mine = [r[:5] for r in rows if r[5] == node]
        for found, value in zip((table.reliability, table.breakdown, table.capability), _plain_score(mine, capacity, options)):
            assert found[node] == pytest.approx(value, rel=1e-9, abs=1e-15, nan_ok=True)


def test_long_series_are_thinned_and_keep_a_clean_slope():
    """100,000 points in one group: no quadratic work, and a straight line keeps its slope to the last digits."""
    values = np.concatenate([np.arange(100_000) * -2e-6, np.arange(5) * 3.0])
    slope, bound = slopes(values, np.array([0, 100_000]), np.array([100_000, 5]))
    assert slope == approx9([-2e-6, 3.0])
    assert bound == 512


def test_the_bound_shrinks_with_the_work():
    size = np.full(4000, 300)
    slope, bound = slopes(np.tile(np.arange(300.0), 4000), np.arange(4000) * 300, size)
    assert 16 <= bound < 300
    assert slope == approx9(np.ones(4000))


def test_thinning_is_said():
    rows = [(j, j * H, (j + 1) * H, 80, 1.0) for j in range(600)]
    table = _score(rows, 100, Options(0.5))
    assert any("evenly spaced" in note for note in table.notes)
