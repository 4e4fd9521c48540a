"""The attributed method: against a slow version in plain loops, and what each repair of the method promises."""

import math

import numpy as np
import pytest

from accounting.history.columns import (
    DOWN,
    DRAIN,
    MARKED_BAD,
    MARKED_IGNORE,
    REASON_HARDWARE,
    REASON_PLANNED,
    REASON_REPAIRED,
    REASON_UNKNOWN,
    REPAIRED,
    REPORTED,
    RIGHT,
    SILENT,
    SURVIVED,
    WRONG,
)
from accounting.history.truncate import until
from accounting.scoring import attributed_method, em
from accounting.scoring import failures as failing
from accounting.scoring.published_method import Options
from tests.unit import plain_attribution as plain
from tests.unit.histories import T0, H, history, random_rows

NAN = math.nan
EVENTS = [
    (0, DRAIN, REASON_HARDWARE, 30.0, 31.0),
    (0, DRAIN, REASON_HARDWARE, 40.0, 41.0),  # within a day: the same evidence
    (1, DOWN, REASON_UNKNOWN, 90.0, 95.0),
    (2, REPAIRED, 4, 100.0, NAN),
    (3, MARKED_IGNORE, REASON_UNKNOWN, 20.0, 60.0),
    (4, DRAIN, REASON_PLANNED, 50.0, 52.0),
    (5, REPORTED, REASON_UNKNOWN, 70.0, NAN),
]
CASES = [
    ("one node", 1, {"n_jobs": 12, "n_nodes": 3}, (), None),
    ("six nodes", 2, {}, (), None),
    ("many jobs", 3, {"n_jobs": 150, "users": 5}, (), None),
    ("events", 4, {}, EVENTS, None),
    ("one gpu type and nodes without", 7, {"n_jobs": 90}, (), [0, 0, -1, 0, -1, -1]),
    ("gpu types", 5, {"n_jobs": 90}, (), [0, 0, 1, 1, 1, -1]),
    ("all of it", 6, {"n_jobs": 120}, EVENTS, [0, 1, 0, 1, 0, 1]),
]


def _plain(h, threshold):
    h = until(h, h.as_of)
    tasks = [
        {
            "node": int(h.tasks.node[i]), "attempt": int(h.tasks.attempt[i]), "start": float(h.tasks.start[i]),
            "end": min(float(h.tasks.end[i]), h.as_of), "a": float(h.tasks.demand[i]),
            "job": int(h.attempts.job[h.tasks.attempt[i]]),
            "r": min(1.0, float(h.tasks.demand[i] / h.tasks.capacity[i])), "culprit": bool(h.tasks.culprit[i]),
            "outcome": int(h.attempts.outcome[h.tasks.attempt[i]]),
        }
        for i in range(len(h.tasks))
    ]  # fmt: skip
    a = h.attempts
    attempts = [
        {
            "job": int(a.job[i]),
            "user": int(a.user[i]),
            "work": int(a.work[i]),
            "group": int(a.group[i]),
            "outcome": int(a.outcome[i]),
        }
        for i in range(len(a))
    ]
    e = h.events
    events = [
        {"node": int(e.node[i]), "kind": int(e.kind[i]), "reason": int(e.reason[i]), "start": float(e.start[i]),
         "end": math.inf if math.isnan(e.end[i]) else float(e.end[i])}
        for i in range(len(e))
    ]  # fmt: skip
    n = h.nodes
    nodes = [{name: float(getattr(n, name)[i]) for name in ("gpu_type", "first_seen", "last_seen")} for i in range(len(n))]
    return plain.attribute(tasks, attempts, nodes, events, h.as_of, h.window_start, threshold)


@pytest.mark.parametrize(("name", "seed", "size", "events", "types"), CASES, ids=[c[0] for c in CASES])
def test_equals_the_plain_loops(name, seed, size, events, types):
    n = size.get("n_nodes", 6)
    h = history(random_rows(seed, **size), events, n_nodes=n, gpu_type=types)
    found, expected = attributed_method.attribute(h, Options(0.5)), _plain(h, 0.5)
    approx = lambda value: pytest.approx(value, rel=1e-7, abs=1e-12)  # noqa: E731
    assert found.solution.prior_shape == approx(expected["shape"])
    assert (found.exposure.weighted * found.exposure.gain).tolist() == approx(expected["exposure"])
    assert found.breakdown.tolist() == approx(expected["breakdown"])
    assert found.solution.charged.tolist() == approx(expected["charged"])
    assert found.hazard.tolist() == approx(expected["hazard"])
    assert found.capability.tolist() == approx(expected["capability"])
    jobs = {}
    for i, f in enumerate(found.failures.of_attempt):
        jobs.setdefault(int(f), int(h.attempts.job[i]))
    blamed = {
        (jobs[int(f)], int(node)): share
        for f, node, share in zip(found.failures.failure, found.failures.node, found.blame)
        if not found.failures.known[f]
    }
    assert blamed == approx(expected["blame"])
    assert {jobs[i]: found.own[i] for i in range(len(found.own)) if not found.failures.known[i]} == approx(expected["own"])


def test_same_history_same_result():
    h = history(random_rows(9), n_nodes=6)
    one, two = attributed_method.attribute(h), attributed_method.attribute(h)
    assert one.hazard.tolist() == two.hazard.tolist()
    assert one.solution.converged


@pytest.mark.parametrize("most", [1, 3])
def test_the_steps_are_bounded_and_it_is_said_when_they_end_too_soon(most):
    h = history(random_rows(9), n_nodes=6)
    found = attributed_method.attribute(h, model=em.Model(max_steps=most))
    assert found.solution.steps == most and not found.solution.converged
    assert f"not settled after {most} rounds" in "".join(found.notes)
    assert np.isfinite(found.hazard).all()


def _steady(n_nodes, hours=200.0, step=10.0, users=3):
    """Every node carries right work all the time."""
    return [
        {"nodes": [n], "start": at, "end": at + step, "user": (n + int(at)) % users}
        for n in range(n_nodes) for at in np.arange(0, hours, step)
    ]  # fmt: skip


def _fail(nodes, at, user, **more):
    return {"nodes": nodes, "start": at, "end": at + 5.0, "outcome": WRONG, "user": user, **more}


def test_a_failing_wide_job_does_not_condemn_all_its_nodes():
    rows = [*_steady(16), _fail(list(range(16)), 100.0, 0)]
    found = attributed_method.attribute(history(rows, n_nodes=16))
    assert found.blame.max() < 0.2


def test_the_common_node_of_several_failures_is_found():
    rows = _steady(8)
    rows += [_fail([0, k], 20.0 * k, k % 3) for k in range(1, 8)]
    found = attributed_method.attribute(history(rows, n_nodes=8))
    assert found.hazard.argmax() == 0
    assert found.hazard[0] > 5 * np.median(found.hazard)


def test_one_users_failures_alone_do_not_make_a_node_stand_out():
    alone = _steady(8) + [_fail([0, k], 20.0 * k, 0) for k in range(1, 8)]
    several = _steady(8) + [_fail([0, k], 20.0 * k, k % 3) for k in range(1, 8)]
    by_one = attributed_method.attribute(history(alone, n_nodes=8))
    by_three = attributed_method.attribute(history(several, n_nodes=8))
    assert by_one.users[0] == 1
    assert by_three.users[0] == 3
    assert by_one.solution.charged[0] <= em.Model().user_cap + 1e-9 < by_three.solution.charged[0]


def test_early_failures_of_frail_work_are_its_own():
    rows = _steady(8) + [
        {"nodes": [k], "start": 3.0 * k, "end": 3.0 * k + 0.05, "outcome": WRONG, "user": 1, "work": 7} for k in range(8)
    ]
    found = attributed_method.attribute(history(rows, n_nodes=8))
    assert found.own.min() > 0.95


def test_known_culprits_take_all_blame():
    rows = [*_steady(4), _fail([0, 1, 2], 50.0, 0, culprit=1)]
    found = attributed_method.attribute(history(rows))
    assert found.blame.tolist() == [0.0, 1.0, 0.0]
    assert found.own.tolist() == [0.0]
    assert found.correctness.tolist() == [1.0, -1.0, 1.0]


def test_one_outage_that_takes_eight_jobs_is_one_failure():
    rows = _steady(4)
    eight = rows + [_fail([0], 50.0, u % 3, culprit=0, demand=10.0) for u in range(8)]
    one = [*rows, _fail([0], 50.0, 0, culprit=0, demand=80.0)]
    assert attributed_method.attribute(history(eight)).known[0] == pytest.approx(
        attributed_method.attribute(history(one)).known[0], rel=1e-9
    )


def test_a_node_that_ends_a_job_each_few_minutes_all_day_is_more_than_one_outage():
    """160 jobs of five users, nine minutes apart: none is within ten minutes of the first but the second."""
    rows = _steady(4) + [{**_fail([0], 20.0 + i * 0.15, i % 5, culprit=0), "end": 20.14 + i * 0.15} for i in range(160)]
    assert attributed_method.attribute(history(rows)).known[0] > 70


def test_an_array_that_fails_all_day_is_more_than_one_failure():
    rows = _steady(4) + [{**_fail([i % 4], 20.0 + i / 90, 1, group=9999), "end": 20.1 + i / 90} for i in range(900)]
    found = attributed_method.attribute(history(rows)).failures
    assert 200 < len(found) < 300


def test_members_of_one_array_that_end_together_are_one_failure():
    rows = _steady(6)
    array = rows + [_fail([n], 50.0, 0, group=9999) for n in range(6)]
    found = attributed_method.attribute(history(array, n_nodes=6))
    assert len(found.failures) == 1
    assert found.blame.sum() + found.own.sum() == pytest.approx(1.0)


def test_a_switch_outage_counts_once():
    """Twelve jobs of six users die in the same half minute: one cause, not twelve failures."""
    rows = _steady(12, users=6)
    rows += [{**_fail([n], 50.0, n % 6), "end": 55.0 + n / 3600} for n in range(12)]
    found = attributed_method.attribute(history(rows, n_nodes=12))
    assert found.failures.share.tolist() == pytest.approx([1 / 12] * 12)


def test_chance_bursts_on_a_busy_cluster_are_not_outages():
    rng = np.random.default_rng(0)
    rows = [_fail([int(rng.integers(0, 4))], float(at), i % 9) for i, at in enumerate(rng.uniform(0, 200, 3000))]
    found = attributed_method.attribute(history(rows))
    assert (found.failures.share < 1).mean() < 0.01


@pytest.mark.parametrize("a_day", [1000, 5000, 20_000])
def test_on_a_large_site_some_job_ends_in_each_minute_by_chance(a_day):
    rng = np.random.default_rng(1)
    time, user = rng.uniform(0, 10 * 86400, a_day * 10), rng.integers(0, 200, a_day * 10)
    share = failing._burst_share(time, user, np.zeros(len(time), bool), 10 * 86400.0)
    assert (share < 1).mean() < 1e-3


def test_a_storm_of_one_users_broken_jobs_hides_no_failure_of_others():
    rng = np.random.default_rng(1)
    time = np.concatenate([rng.uniform(0, 30 * 86400, 9000), 10 * 86400 + np.arange(0, 86400, 4.0)])
    user = np.concatenate([rng.integers(1, 200, 9000), np.zeros(21600, int)])
    share = failing._burst_share(time, user, np.zeros(len(time), bool), 30 * 86400.0)
    assert share.min() == 1.0


def test_an_outage_in_a_busy_hour_still_counts_once():
    rng = np.random.default_rng(1)
    time = np.concatenate([rng.uniform(0, 86400, 1440), np.full(40, 43_200.0)])
    user = np.arange(len(time)) % 50
    share = failing._burst_share(time, user, np.zeros(len(time), bool), 86400.0)
    assert share[-40:].max() <= 1 / 40
    assert (share[:-40] < 1).sum() < 10


def test_evidence_fades_by_half_in_sixty_days():
    day = 24.0
    early = history([*_steady(2), _fail([0], 10.0, 0, culprit=0)], n_nodes=2, as_of=15.0 + 120 * day)
    found = attributed_method.attribute(early)
    assert found.known[0] == pytest.approx(0.25, rel=1e-6)


def test_a_repair_halves_what_came_before_and_a_drain_does_not():
    rows = [*_steady(2), _fail([0], 10.0, 0, culprit=0)]
    plainly = attributed_method.attribute(history(rows, n_nodes=2)).known[0]
    repaired = attributed_method.attribute(history(rows, [(0, REPAIRED, 0, 100.0, NAN)], n_nodes=2)).known[0]
    cycled = attributed_method.attribute(history(rows, [(0, DRAIN, REASON_PLANNED, 100.0, 101.0)], n_nodes=2)).known[0]
    assert repaired == pytest.approx(plainly / 2)
    assert cycled == plainly


def test_hardware_drains_are_evidence_once_a_day():
    rows = _steady(2)
    drains = [(0, DRAIN, REASON_HARDWARE, 100.0 + 2 * k, 101.0 + 2 * k) for k in range(6)]
    assert attributed_method.attribute(history(rows, drains, n_nodes=2)).known[0] == pytest.approx(
        attributed_method.attribute(history(rows, drains[:1], n_nodes=2)).known[0]
    )
    assert attributed_method.attribute(history(rows, drains, n_nodes=2)).known[0] > 0.4


def test_eight_small_tasks_make_a_heavy_node():
    rows = [{"nodes": [0], "start": 0.0, "end": 10.0, "demand": 12.5} for _ in range(8)]
    rows += [{"nodes": [1], "start": 0.0, "end": 10.0, "demand": 12.5}]
    measured = attributed_method.attribute(history(rows, n_nodes=2), Options(0.5)).exposure
    assert measured.heavy.tolist() == pytest.approx([10.0, 0.0])
    assert measured.busy.tolist() == pytest.approx([10.0, 10.0])
    assert measured.utilization.tolist() == pytest.approx([1.0] * 8 + [0.125])


@pytest.mark.parametrize(("outcome", "hours"), [(SILENT, 0.0), (SURVIVED, 10.0), (RIGHT, 10.0), (WRONG, 10.0)])
def test_which_outcomes_count_hours(outcome, hours):
    h = history([{"nodes": [0], "start": 0.0, "end": 10.0, "outcome": outcome}], n_nodes=1)
    found = attributed_method.attribute(h, Options(0.5))
    assert found.exposure.busy[0] == pytest.approx(hours)
    assert len(found.failures) == (outcome == WRONG)


def test_timeouts_charge_nobody():
    rows = [*_steady(3), {"nodes": [0, 1], "start": 10.0, "end": 60.0, "outcome": SURVIVED, "user": 1}]
    assert attributed_method.attribute(history(rows, n_nodes=3)).solution.charged.sum() == 0


@pytest.mark.parametrize(
    ("rows", "n_nodes"),
    [
        ([], 3),
        ([], 0),
        ([{"nodes": [0], "start": 0.0, "end": 1.0}], 1),
        ([{"nodes": [0], "start": 0.0, "end": 0.0, "outcome": WRONG}], 1),
        ([_fail([0, 1], 10.0 * k, k % 2) for k in range(20)], 2),
        ([{"nodes": [0], "start": 5.0, "end": 1.0, "outcome": WRONG}], 1),
        ([{"nodes": [0], "start": 0.0, "end": 5.0, "demand": 0.0}], 1),
        ([{"nodes": [0], "start": 0.0, "end": 5.0, "demand": NAN}], 1),
        ([{"nodes": [0], "start": 500.0, "end": 505.0, "outcome": WRONG}], 1),
    ],
    ids=[
        "empty",
        "no nodes",
        "one task",
        "no run time",
        "all failed",
        "end before start",
        "demand 0",
        "demand unknown",
        "after as_of",
    ],
)
def test_numerics_survive(rows, n_nodes):
    found = attributed_method.attribute(history(rows, n_nodes=n_nodes))
    assert np.isfinite(found.hazard).all()
    assert (found.hazard > 0).all()
    assert np.isfinite(found.capability).all()


@pytest.mark.parametrize("capacity", [NAN, 0.0])
def test_unknown_capacity_counts_as_light(capacity):
    found = attributed_method.attribute(history([{"nodes": [0], "start": 0.0, "end": 8.0}], n_nodes=1, capacity=capacity))
    assert found.exposure.heavy[0] == 0
    assert found.exposure.busy[0] == pytest.approx(8.0)


def test_nothing_after_as_of_counts():
    rows = random_rows(3)
    later = [*rows, _fail([0, 1], 300.0, 1, work=2)]
    one, two = (attributed_method.attribute(history(r, n_nodes=6, as_of=240.0)) for r in (rows, later))
    assert one.hazard.tolist() == pytest.approx(two.hazard.tolist(), rel=1e-12)


def test_a_gpu_type_with_data_has_its_own_mean():
    rows = _steady(8)
    rows += [_fail([n], 20.0 + 3 * k + n, k % 3, culprit=n) for n in range(4, 8) for k in range(8)]
    found = attributed_method.attribute(history(rows, n_nodes=8, gpu_type=[0] * 4 + [1] * 4))
    means = found.solution.prior_mean
    assert means[7] > 3 * means[0]
    assert means[:4].tolist() == pytest.approx([means[0]] * 4)


def test_marks_are_read_as_of_their_time():
    from accounting.scoring.trust import marked_now

    h = history([], [(0, MARKED_BAD, 0, 10.0, NAN), (1, MARKED_BAD, 0, 10.0, 20.0), (2, MARKED_BAD, 0, 10.0, NAN),
                     (2, REPAIRED, 0, 30.0, NAN)], n_nodes=4)  # fmt: skip
    assert marked_now(h.events, MARKED_BAD, 4, T0 + 15 * H).tolist() == [True, True, True, False]
    assert marked_now(h.events, MARKED_BAD, 4, T0 + 40 * H).tolist() == [True, False, False, False]


def test_a_repair_of_which_several_rows_tell_counts_once():
    """DRAIN, DOWN and DRAIN again with one reason; a second repair after days is another."""
    rows = [*_steady(2), _fail([0], 10.0, 0, culprit=0)]
    told = [(0, DRAIN, REASON_REPAIRED, 100.0 + at, 101.0 + at) for at in (0.0, 2.0, 23.0, 100.0)]
    plainly, *known = (attributed_method.attribute(history(rows, told[:n], n_nodes=2)).known[0] for n in range(5))
    assert [k / plainly for k in known] == pytest.approx([0.5, 0.5, 0.5, 0.25])


def test_a_mark_without_an_end_holds_until_the_next_of_its_node():
    """Of marks of the same moment, such as of one day, the one made later counts."""
    from accounting.scoring.trust import from_events, marked_now

    marks = [
        (0, MARKED_IGNORE, 0, 10.0, NAN), (0, MARKED_BAD, 0, 20.0, NAN), (0, MARKED_IGNORE, 0, 30.0, 40.0),
        (1, MARKED_BAD, 0, 10.0, NAN), (1, REPAIRED, 0, 10.0, NAN), (2, REPAIRED, 0, 10.0, NAN), (2, MARKED_BAD, 0, 10.0, NAN),
        (3, MARKED_IGNORE, 0, 10.0, NAN),
    ]  # fmt: skip
    h = history(_steady(4), marks)
    at = [T0 + hour * H for hour in (15, 25, 35, 50)]
    assert [marked_now(h.events, MARKED_IGNORE, 4, t).tolist() for t in at] == [
        [True, False, False, True], [False, False, False, True], [True, False, False, True], [False, False, False, True],
    ]  # fmt: skip
    assert [marked_now(h.events, MARKED_BAD, 4, t).tolist() for t in at[:2]] == [
        [False, False, True, False], [True, False, True, False]
    ]  # fmt: skip
    ignored = from_events(h.events, 4, at[-1]).ignored
    assert ignored[0] == [(T0 + 10 * H, T0 + 20 * H), (T0 + 30 * H, T0 + 40 * H)] and ignored[3][0][1] == math.inf
