"""Settled stretches that only fade give the scores that measuring everything anew gives, whatever comes in between."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.history.columns import (
    DRAIN,
    MARKED_IGNORE,
    REASON_HARDWARE,
    REASON_UNKNOWN,
    REPAIRED,
    RIGHT,
    SILENT,
    SURVIVED,
    WRONG,
)
from accounting.history.truncate import until
from accounting.scoring import stretches
from accounting.scoring.attributed_method import attribute
from accounting.scoring.published_method import Options
from accounting.scoring.score import score_history
from slurm_hook.common.config import Settings
from tests.unit.histories import T0, H, history

DAY = 24.0
RELATIVE = 1e-9


def night(rows, events, nodes, now, window=40 * DAY):
    """What a run at `now` (hours) reads."""
    return until(history(rows, events=events, n_nodes=nodes, as_of=now), T0 + now * H, T0 + (now - window) * H)


def same(one, full):
    """Both results, to rounding."""
    for of, names in (
        ("exposure", ("weighted", "heavy", "busy", "breakdown", "gain")),
        ("failures", ("weight", "time", "node")),
        ("solution", ("hazard", "charged", "prior_mean", "work_rate")),
    ):
        for name in names:
            left, right = getattr(getattr(one, of), name), getattr(getattr(full, of), name)
            np.testing.assert_allclose(left, right, rtol=RELATIVE, atol=1e-13, err_msg=f"{of}.{name}")
    for name in ("known", "blame", "own", "capability"):
        np.testing.assert_allclose(getattr(one, name), getattr(full, name), rtol=RELATIVE, atol=1e-13, err_msg=name)
    assert one.exposure.notes == full.exposure.notes


def settled_share(scored):
    """How many of the tasks weren't measured."""
    return float(np.isnan(scored.exposure.utilization).mean())


def work(rng, count, low, high, nodes):
    """Jobs of one or two nodes that began between two hours, heavy and light, short and long."""
    return [
        {
            "nodes": sorted({first, (first + int(rng.integers(0, 2))) % nodes}), "start": start,
            "end": start + float(rng.choice([0, 0.5, 3, 8, 40])), "demand": float(rng.choice([5, 20, 60, 80, 100])),
            "user": int(rng.integers(0, 3)), "outcome": int(rng.choice([SILENT, RIGHT, RIGHT, WRONG, SURVIVED])),
            "culprit": first if rng.random() < 0.1 else -1,
        }
        for first, start in zip(rng.integers(0, nodes, count).tolist(), np.round(rng.uniform(low, high, count), 1).tolist())
    ]  # fmt: skip


def disturb(rng, rows, events, now, nodes):
    """Late rows, a mark on a job, a repair or another event, another size: what changes what is known of the past."""
    rows, i = list(rows), int(rng.integers(0, len(rows)))
    kind = int(rng.integers(0, 6))
    if kind == 0:
        rows += work(rng, 2, 0, now, nodes)
    elif kind == 1:
        rows[i] = {**rows[i], "outcome": WRONG}
    elif kind == 2:
        rows[i] = {**rows[i], "demand": 90.0}
    elif kind == 3:
        del rows[i]
        rows = rows or work(rng, 1, 0, now, nodes)
    elif kind == 4:
        what = (REPAIRED, REASON_UNKNOWN), (MARKED_IGNORE, REASON_UNKNOWN), (DRAIN, REASON_HARDWARE)
        node, (event, reason), at = int(rng.integers(0, nodes)), what[int(rng.integers(0, 3))], float(rng.uniform(0, now))
        events = [*events, (node, event, reason, at, at + float(rng.choice([1.0, 500.0])))]
    return rows, events


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_nights_with_settled_stretches_give_the_same_scores(seed):
    rng = np.random.default_rng(seed)
    nodes, now, options, past = int(rng.integers(1, 5)), 60 * DAY, Options(float(rng.choice([0.3, 0.5, 0.7]))), stretches.none([])
    rows, events = work(rng, int(rng.integers(5, 150)), 0, now, nodes), []
    for _ in range(4):
        read = night(rows, events, nodes, now)
        one = attribute(read, options, past=past)
        same(one, attribute(read, options))
        past = stretches.unpack(stretches.pack(one.exposure.past))
        now += float(rng.choice([DAY, DAY, 8 * DAY, 3.5]))
        rows = rows + work(rng, int(rng.integers(0, 20)), now - 60, now, nodes)
        rows, events = disturb(rng, rows, events, now, nodes)


@pytest.fixture(scope="module")
def calm():
    """60 days of work on two nodes with a light job a day, and what the night before the last left."""
    rows = [
        {"nodes": [n], "start": d * DAY + h, "end": d * DAY + h + 5, "demand": load, "user": d % 3,
         "outcome": WRONG if d % 7 == n else RIGHT}
        for n in range(2) for d in range(60) for h, load in ((0, 90), (6, 70), (12, 5), (18, 5))
    ]  # fmt: skip
    past = attribute(night(rows, [], 2, 59 * DAY), Options(0.5), past=stretches.none([])).exposure.past
    return rows, past


def change(rows, at, **what):
    return [*rows[:at], {**rows[at], **what}, *rows[at + 1 :]]


@pytest.mark.parametrize(
    ("touched", "events", "low", "high"),
    [
        (lambda rows: rows, [], 0.7, 0.9),
        (lambda rows: change(rows, 130, outcome=SILENT), [], 0.6, 0.8),  # one stretch of one node
        (lambda rows: change(rows, 130, demand=91.0), [], 0.6, 0.8),
        (lambda rows: [*rows, {"nodes": [0], "start": 32 * DAY + 1, "end": 32 * DAY + 2}], [], 0.6, 0.8),
        (lambda rows: [*rows, {"nodes": [0], "start": 0.0, "end": 59 * DAY}], [], 0.3, 0.5),  # a job beside all of a node's
        (lambda rows: rows, [(0, REPAIRED, REASON_UNKNOWN, 33 * DAY, 33 * DAY)], 0.6, 0.8),  # inside of a stretch
        (lambda rows: rows, [(0, REPAIRED, REASON_UNKNOWN, 60 * DAY, 60 * DAY)], 0.7, 0.9),  # after all: a factor
    ],
    ids=["nothing", "an outcome", "a size", "a late row", "a long late row", "a repair within", "a repair now"],
)
def test_only_what_a_change_touches_is_measured_anew(calm, touched, events, low, high):
    rows, past = calm
    read = night(touched(rows), events, 2, 60 * DAY)
    one = attribute(read, Options(0.5), past=past)
    assert low < settled_share(one) < high
    same(one, attribute(read, Options(0.5)))


@pytest.mark.parametrize("options", [Options(0.6), Options(0.5, overload_threshold=0.8), Options(0.5, max_gap_hours=2.0)])
def test_another_setting_measures_everything_anew(calm, options):
    rows, past = calm
    read = night(rows, [], 2, 60 * DAY)
    one = attribute(read, options, past=past)
    assert settled_share(one) == 0.0
    same(one, attribute(read, options))


def test_a_node_without_a_calm_moment_is_never_settled():
    """One heavy job after the other: the group goes through the whole window, so that its slope needs all of its tasks."""
    rows = [{"nodes": [0], "start": i * 5.0, "end": i * 5.0 + 5} for i in range(280)]
    past = attribute(night(rows, [], 1, 1400.0), Options(0.5), past=stretches.none([])).exposure.past
    assert len(past) == 0


def test_slopes_of_thinned_groups_are_kept_only_with_the_same_bound(monkeypatch):
    """When more pairs than before make the bound lower, what was found with the higher one is of no use."""
    from accounting.scoring import theilsen

    rows = [
        {"nodes": [n], "start": d * DAY + h / 2, "end": d * DAY + h / 2 + 0.4, "demand": 95.0 if h < 44 else 5.0}
        for n in range(2) for d in range(30) for h in range(48)
    ]  # fmt: skip
    past = attribute(night(rows, [], 2, 30 * DAY), Options(0.5), past=stretches.none([])).exposure.past
    assert past.largest.max() == 44
    monkeypatch.setattr(theilsen, "MAX_PAIRS", 40_000)
    read = night(rows, [], 2, 31 * DAY)
    one, full = (attribute(read, Options(0.5), past=p) for p in (past, None))
    assert "groups of over 32 tasks" in " ".join(full.exposure.notes)
    assert settled_share(one) == 0.0
    same(one, full)


def test_without_a_given_threshold_nothing_is_settled(calm):
    rows, past = calm
    scored = attribute(night(rows, [], 2, 60 * DAY), Options(), past=past)
    assert scored.exposure.past is None and settled_share(scored) == 0.0


def test_what_another_version_packed_is_not_used(calm):
    import io

    buffer = io.BytesIO()
    np.savez(buffer, other=np.zeros(3))
    assert len(stretches.unpack(buffer.getvalue())) == 0


def test_the_table_of_scores_is_the_same(calm):
    rows, past = calm
    read = night(rows, [], 2, 60 * DAY)
    one, full = (score_history(read, Settings(), threshold=0.5, past=p) for p in (past, None))
    for left, right in zip(one.rows, full.rows):
        assert left.relative == pytest.approx(right.relative, rel=RELATIVE) and left.tasks == right.tasks
    assert one.notes == full.notes
