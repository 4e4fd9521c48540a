"""Lemons, suspects, worse groups, who broke it, and the backtest: on histories whose truth is planted."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from accounting.cli.lemons import backtest_text, days
from accounting.evaluation.backtest import _lift, auc, backtest, read_truth, straddling
from accounting.history.columns import (
    DOWN,
    DRAIN,
    MARKED_BAD,
    MARKED_IGNORE,
    REASON_HARDWARE,
    REASON_UNKNOWN,
    REPAIRED,
    RIGHT,
    SURVIVED,
    WRONG,
)
from accounting.history.truncate import until
from accounting.reports.job_story import FAILED, MARKED, STEP_FAILED, who_broke
from accounting.scoring.attributed_method import attribute
from accounting.scoring.groups import by_name, worse_groups
from accounting.scoring.lemons import describe, find_lemons
from accounting.scoring.outliers import outliers
from accounting.scoring.suspects import of_history, suspects
from accounting.scoring.suspects import words as suspect_words
from slurm_hook.common.errors import ConfigError, InputError, UsageError
from tests.unit.histories import T0, H, history, random_rows

NAN = math.nan


def _work(n_nodes, hours=400.0, step=10.0, users=4):
    return [
        {"nodes": [n], "start": at, "end": at + step, "user": (n + int(at)) % users}
        for n in range(n_nodes) for at in np.arange(0, hours, step)
    ]  # fmt: skip


def _fail(nodes, at, user, **more):
    return {"nodes": nodes, "start": at, "end": at + 4.0, "outcome": WRONG, "user": user, **more}


def _bad_node(known=True, users=4, n_nodes=12):
    rows = _work(n_nodes)
    rows += [_fail([0, 1 + k], 30.0 * k + 1, k % users, culprit=0 if known else -1) for k in range(10)]
    return rows


def _lemons(rows, events=(), n_nodes=12, as_of=420.0):
    h = history(rows, events, n_nodes=n_nodes, as_of=as_of)
    scored = attribute(h)
    return h, scored, np.flatnonzero(find_lemons(h, scored)).tolist()


@pytest.mark.parametrize(
    ("rows", "events", "expected"),
    [
        (_bad_node(), (), [0]),
        (_bad_node(known=False), (), [0]),
        (_bad_node(known=False, users=1), (), []),  # one user alone can't make a lemon
        (_bad_node(known=True, users=1), (), [0]),  # known culprits can
        (_work(12), (), []),
        (_work(12), [(5, MARKED_BAD, 0, 10.0, NAN)], [5]),
        (_bad_node(), [(0, MARKED_IGNORE, 0, 0.0, NAN)], []),
        (_bad_node(), [(0, REPAIRED, 0, 350.0, NAN)], []),  # nothing since the repair
        ([*_bad_node(), _fail([0, 3], 400.0, 1, culprit=0)], [(0, REPAIRED, 0, 350.0, NAN)], [0]),
        (_bad_node(), [(0, DRAIN, REASON_UNKNOWN, 350.0, 351.0)], [0]),  # drained and resumed is no repair
    ],
    ids=["known", "unknown", "one user", "one user, known", "none", "marked", "ignored", "repaired", "failed again", "resumed"],
)
def test_lemons(rows, events, expected):
    assert _lemons(rows, events)[2] == expected


def test_lemon_evidence_is_told():
    xid = [(0, DRAIN, REASON_HARDWARE, 30.0 * k + 5.1, 30.0 * k + 6, "Xid 79:\nGPU fell off") for k in range(2)]
    h, scored, _ = _lemons(_bad_node(), [*xid, (0, DRAIN, REASON_HARDWARE, 380.0, 381.0, "x" * 70)])
    (lemon,) = describe(h, scored)
    assert lemon.name == "n0"
    assert lemon.times_median > 3
    assert [job for job, _ in lemon.known_jobs] == [1489 - k for k in range(10)]
    assert "known to have ended 10 jobs (1489, 1488, 1487, 1486, 1485 and 5 more); jobs of 4 users" in lemon.words
    assert "; with them it was drained (Xid 79: GPU fell off) 2 times, last 2025-10-10;" in lemon.words
    assert f"; and by itself it was drained ({'x' * 59}…) 2025-10-" in lemon.words
    assert (
        lemon.command
        == f'scontrol update NodeName=n0 State=DRAIN Reason="workhorse: {lemon.times_median:.1f} x the median failure rate"'
    )
    expected = (scored.hazard[0] - np.median(scored.hazard)) * scored.exposure.busy[0] / (420 / 24) * 30
    assert lemon.gain == pytest.approx(expected)


def test_a_month_in_a_window_of_a_quarter_is_a_month():
    gains = []
    for window in (0.0, -2160.0):
        h = history(_bad_node(), n_nodes=12, as_of=420.0, window=window)
        gains.append(describe(h, attribute(h))[0].gain)
    assert gains[0] == pytest.approx(gains[1], rel=0.05)


def test_a_marked_node_is_told_as_marked():
    h, scored, _ = _lemons(_work(12), [(5, MARKED_BAD, 0, 10.0, NAN, "PSU $(reboot)")])
    (lemon,) = describe(h, scored)
    assert lemon.words == "marked bad by hand 2025-10-09 (PSU $(reboot))"
    assert lemon.command.endswith('Reason="workhorse: marked bad by hand"')


@pytest.mark.parametrize(
    ("failures", "until_hour"),
    [
        ([(0.1, 0), (0.3, 1), (0.5, 0)], 101.55),  # three of two users within an hour
        ([(0.1, 0), (0.3, 0), (0.5, 0)], 0),  # one user
        ([(0.1, 0), (0.3, 1)], 0),  # two failures
        ([(-3.0, 0), (-1.5, 1), (0.5, 0)], 0),  # spread over hours
        ([(-2.9, 0), (-2.7, 1), (-2.5, 0)], 0),  # expired
    ],
)
def test_suspects(failures, until_hour):
    """Hours relative to 100; every failure takes three minutes; the moment is hour 101."""
    rows = _work(3) + [
        {"nodes": [2], "start": 100 + at, "end": 100.05 + at, "outcome": WRONG, "user": user} for at, user in failures
    ]
    h = history(rows, n_nodes=3, as_of=101.0)
    found = suspects(h, attribute(h).failures)
    assert found.tolist() == of_history(h).tolist()
    assert found[:2].tolist() == [0, 0]
    assert found[2] == pytest.approx(T0 + until_hour * H if until_hour else 0, abs=1)
    told = suspect_words(h, attribute(h).failures)
    assert list(told) == (["n2"] if until_hour else [])
    assert all("3 jobs of 2 users died there since " in words and "(1122, 1121, 1120)" in words for words in told.values())


def test_late_failures_make_no_suspect():
    rows = _work(3) + [{"nodes": [2], "start": 50.0, "end": 100 + u / 10, "outcome": WRONG, "user": u} for u in range(4)]
    h = history(rows, n_nodes=3, as_of=100.8)
    assert of_history(h).tolist() == [0, 0, 0]


def test_a_switch_that_is_worse_as_a_whole_is_told_and_one_bad_node_is_not():
    rows = _work(16)
    whole = rows + [_fail([n], 20.0 * k + n, k % 4, culprit=n) for n in range(4) for k in range(5)]
    one = rows + [_fail([0], 12.0 * k, k % 4, culprit=0) for k in range(20)]
    switch = [n // 4 for n in range(16)]
    told = [worse_groups(h, attribute(h)) for h in (history(r, n_nodes=16, as_of=420.0, switch=switch) for r in (whole, one))]
    assert len(told[0]) == 1
    assert told[0][0].startswith("switch leaf0 as a whole")
    assert told[1] == ()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [(r"^r(\d+)c", "chassis 0 as a whole"), (r"^r\d+", "chassis r0 as a whole"), ("", None), (r"^x\d+", None), (r"c\d+$", None)],
)
def test_a_chassis_told_by_node_names_that_is_worse_is_reported(pattern, expected):
    rows = _work(16) + [_fail([n], 20.0 * k + n, k % 4, culprit=n) for n in range(4) for k in range(5)]
    h = history(rows, n_nodes=16, as_of=420.0)
    h = replace(h, nodes=replace(h.nodes, names=[f"r{n // 4}c{n % 4}" for n in range(16)]))
    told = worse_groups(h, attribute(h), pattern)
    assert [sentence[: len(expected or "")] for sentence in told] == ([expected] if expected else [])


def test_a_chassis_pattern_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"scoring.chassis = '\(r': not a regular expression"):
        by_name(["r1"], "(r")


def test_of_many_groups_hardly_one_looks_bad_by_chance():
    """Four histories of 200 switches of four alike nodes: one sentence at most, however few or many failures there are."""
    told = 0
    rng = np.random.default_rng(5)
    for failures in (120, 480, 1000, 1600):
        nodes = rng.integers(0, 800, failures)
        rows = [{"nodes": [n], "start": 0.0, "end": 400.0, "user": n % 4} for n in range(800)]
        rows += [_fail([int(n)], float(rng.uniform(0, 390)), int(n) % 4, culprit=int(n)) for n in nodes]
        h = history(rows, n_nodes=800, as_of=420.0, switch=[n // 4 for n in range(800)])
        told += len(worse_groups(h, attribute(h)))
    assert told <= 1


def test_a_switch_whose_nodes_have_not_worked_is_not_worse():
    rows = [*_work(4), *[_fail([n], 50.0 * n, 1, culprit=n) for n in range(2)]]
    h = history(rows, n_nodes=16, as_of=420.0, switch=[n // 4 for n in range(16)])
    assert worse_groups(h, attribute(h)) == ()


def _quiet(users, hours=4.0, count=12, node=0):
    """Jobs that die on one node after hours, and nothing says why."""
    rows = [{**_fail([node], 30.0 * k, k % users), "end": 30.0 * k + hours, "work": k % users} for k in range(count)]
    return [*_work(40), *rows, *[_fail([n], 10.0 * n, n % 4, work=n % 4) for n in range(1, 40)]]


@pytest.mark.parametrize(
    ("rows", "events", "told"),
    [
        (_quiet(4), (), ["n0"]),
        (_quiet(4, node=7), (), ["n7"]),
        (_quiet(1), (), []),  # one user's broken work
        (_quiet(4, hours=0.5), (), []),  # early: most of these break themselves
        (_quiet(4, count=3), (), []),  # chance
        (_quiet(4), [(0, REPAIRED, 0, 395.0, NAN)], []),  # before the repair
        (_quiet(4), [(0, MARKED_IGNORE, 0, 0.0, NAN)], []),
        (_work(40), (), []),
    ],
    ids=["four users", "another node", "one user", "early", "few", "repaired", "ignored", "none"],
)
def test_a_node_that_stands_out_by_count_is_told_beside_the_lemons(rows, events, told):
    h = history(rows, events, n_nodes=40, as_of=420.0)
    scored = attribute(h)
    found = outliers(h, scored)
    assert [one.name for one in found] == told
    assert outliers(h, scored, frozenset(told)) == []
    for one in found:
        assert one.failures == 12 + (one.name == "n7") and one.users == 4 and one.usual < 2
        assert f"{one.failures} jobs of 4 users failed on it after over 2 h, where {one.usual:.1f} are usual" in one.words


JOB = 9999


@pytest.mark.parametrize(
    ("row", "events", "cause", "words"),
    [
        (_fail([0, 5], 200.0, 1, culprit=0), [(0, DRAIN, REASON_HARDWARE, 204.05, NAN)], "node",
         "n0, 100%: was drained for a hardware reason 3 min later; 6 jobs of 3 other users died there within a week of it"),
        (_fail([0, 5], 200.0, 1, culprit=0), [(0, DRAIN, REASON_HARDWARE, 204.05, NAN, "Xid 79")], "node",
         "n0, 100%: was drained for a hardware reason (Xid 79) 3 min later; "),
        (_fail([0, 5], 200.0, 1, culprit=0), (), "node", "named by Slurm as the failed node"),
        (_fail([0, 5], 200.0, 1), (), "node", "times as often as the median node"),
        (_fail([5, 6, 7, 8], 200.0, 1), (), "unknown", "unknown; the job itself"),
        ({"nodes": [5], "start": 200.0, "end": 200.05, "outcome": WRONG, "user": 2}, (), "job", "the job itself"),
        ({"nodes": [5], "start": 200.0, "end": 201.0, "outcome": RIGHT}, (), "none", "ended right"),
        ({"nodes": [5], "start": 200.0, "end": 201.0, "outcome": SURVIVED}, (), "none", "time limit"),
        ({"nodes": [5], "start": 200.0, "end": 201.0, "job": 1}, (), "none", "never ran in the 17.5 days that are scored"),
    ],
    ids=["drained", "drained, with the reason", "failed node", "likeliest", "unknown", "own", "right", "timeout", "absent"],
)  # fmt: skip
def test_who_broke_it(row, events, cause, words):
    h = history([*_bad_node(), {"job": JOB, **row}], events, n_nodes=12, as_of=420.0)
    verdict = who_broke(h, attribute(h), JOB)
    assert verdict.cause == cause
    assert words in verdict.sentence
    if cause != "none":
        assert sum(share for _, share in verdict.nodes) + verdict.own == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (FAILED, "it failed after 3 min, and "),
        (MARKED, "its result, marked wrong, came after 3 min, and "),
        (STEP_FAILED, "a step of the completed job failed after 3 min, and "),
    ],
)
def test_what_failed_is_told(how, words):
    row = {"nodes": [5], "start": 200.0, "end": 200.05, "outcome": WRONG, "user": 2, "job": JOB}
    h = history([*_bad_node(), row], n_nodes=12, as_of=420.0)
    sentence = who_broke(h, attribute(h), JOB, last=(how, 0.0)).sentence
    assert "the job itself, " in sentence and words in sentence


def test_a_node_where_several_users_jobs_die_at_once_is_told_beside_the_numbers():
    """In seconds no rate can be told: by the numbers each of these jobs broke itself."""
    early = [{"nodes": [5], "start": 200 + u / 10, "end": 200.01 + u / 10, "outcome": WRONG, "user": u} for u in range(3)]
    other = {"nodes": [6], "start": 300.0, "end": 300.01, "outcome": WRONG, "user": 2, "job": JOB + 1}
    h = history([*_work(12), *early[:2], {**early[2], "job": JOB}, other], n_nodes=12, as_of=420.0)
    scored = attribute(h)
    assert "early failures came within an hour (n5: 3 jobs of 3 users)" in who_broke(h, scored, JOB).sentence
    assert "early failures" not in who_broke(h, scored, JOB + 1).sentence


def _long_history(seed=0, n_nodes=60, bad=3, span=90 * 24.0):
    """Bad nodes fail every four days, others never but by chance; half of the failures are named."""
    rng = np.random.default_rng(seed)
    rows = _work(n_nodes, hours=span, step=24.0)
    for n in range(n_nodes):
        for at in rng.uniform(0, span - 5, rng.poisson(span / 96 if n < bad else span / 3000)):
            rows.append(_fail([n, int(rng.integers(bad, n_nodes))], float(at), int(rng.integers(0, 4)), culprit=n))
    for i, row in enumerate(rows):  # every job its own kind of work, so that only resubmissions make a run
        row["work"] = i
    return history(rows, n_nodes=n_nodes, as_of=span), bad


def test_backtest_finds_planted_nodes():
    h, bad = _long_history()
    result = backtest(h, 60, 30, worst_share=0.05)
    assert result.auc["scores"].value > 0.6
    assert result.auc["scores"].low < result.auc["scores"].value <= result.auc["scores"].high
    assert result.lift["scores"][0.05].value > 5
    assert result.failed_nodes >= bad
    assert 0.2 < result.avoidable < 1
    assert 0 < result.weeks < 20
    assert sum(c[0] for c in result.calibration) == result.nodes
    assert result.calibration[2][2] > result.calibration[0][2]
    assert "weeks of steering" in backtest_text(result)
    assert "scored on 60 days, tested on the 30 that followed" in backtest_text(result)


def test_backtest_tells_how_much_of_the_first_part_the_history_has():
    h, _ = _long_history(span=40 * 24.0)
    text = backtest_text(backtest(h, 60, 30))
    assert "scored on 10.0 days (of 60 days, as the history begins then: a shorter --test leaves more), tested on" in text


def test_backtest_reads_nothing_of_the_test_part():
    h, _ = _long_history()
    split = h.as_of - 30 * 86400
    assert attribute(until(h, split)).hazard.tolist() == attribute(until(until(h, split + 86400), split)).hazard.tolist()


def test_backtest_sees_a_node_whose_jobs_all_died_at_once():
    """Its failure counts though it worked not a second of the test part; the same with a second gives the same verdict."""
    h, _ = _long_history()
    split = h.as_of - 30 * 86400

    def with_last_node(seconds):
        tasks = h.tasks
        kept = (tasks.node != 59) | (tasks.start < split)
        columns = [getattr(tasks, f.name)[kept] for f in fields(tasks)]
        dead = [59, int(tasks.attempt[-1]), split + H, split + H + seconds, 80.0, 100.0, -1.0, True]
        return replace(h, tasks=type(tasks)(*(np.append(c, np.array(d, c.dtype)) for c, d in zip(columns, dead))))

    none, second = (backtest(with_last_node(seconds), 60, 30) for seconds in (0.0, 1.0))
    assert (none.nodes, none.failures, none.failed_nodes) == (second.nodes, second.failures, second.failed_nodes)
    assert none.nodes == 60
    assert none.auc["scores"].value == pytest.approx(second.auc["scores"].value)


def test_the_lift_of_worst_nodes_without_an_hour_is_unknown():
    assert np.isnan(_lift(np.array([2.0, 1.0]), np.array([1.0, 0.0]), np.array([0.0, 10.0]), 0.01))
    assert _lift(np.array([2.0, 1.0]), np.array([1.0, 1.0]), np.array([5.0, 15.0]), 0.01) == pytest.approx(2.0)


def test_backtest_by_tickets(tmp_path):
    h, _ = _long_history()
    tickets = tmp_path / "tickets.csv"
    tickets.write_text(f"node,time,what\nn0,{h.as_of - 5 * 86400},Xid\nn1,2026-01-01T12:00:00,fan\nunknown,1,\n")
    strangers = []
    truth = read_truth(str(tickets), h, strangers)
    assert strangers == ["unknown"]
    assert truth[0].tolist() == [0, 1]
    result = backtest(h, 60, 30, truth=truth)
    assert result.failures == 2 if T0 + 60 * 86400 <= truth[1][1] <= h.as_of else 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("host,when\na,1\n", "no columns `node` and `time`"),
        ("node,time\nn0,yesterday\n", "line 2: 'yesterday' is not a time"),
        (None, "can't be read"),
        ('node,time\n"n0,1\n' + "x" * 200_000, "can't be read"),
        ("node,time\nn0,nan\n", "line 2: 'nan' is not a time"),
        ("node,time\nn0,1e300\n", "'1e300' is not a time"),
    ],
)
def test_bad_tickets_are_refused(tmp_path, content, message):
    h, _ = _long_history(n_nodes=5)
    tickets = tmp_path / "t.csv"
    if content is not None:
        tickets.write_text(content)
    with pytest.raises(InputError, match=message):
        read_truth(str(tickets), h)


def test_a_resubmitted_run_stays_on_one_side():
    run = [
        {"nodes": [0], "start": 90.0, "end": 99.0, "outcome": WRONG, "user": 0, "work": 0},
        {"nodes": [0], "start": 101.0, "end": 110.0, "outcome": WRONG, "user": 0, "work": 0},  # again: same run
        {"nodes": [0], "start": 112.0, "end": 120.0, "user": 0, "work": 0},
        {"nodes": [0], "start": 121.0, "end": 130.0, "user": 0, "work": 0},  # after a right end: a new run
        {"nodes": [1], "start": 90.0, "end": 99.0, "user": 1, "work": 1},
        {"nodes": [1], "start": 101.0, "end": 110.0, "user": 1, "work": 1},
        {"nodes": [2], "start": 60.0, "end": 62.0, "outcome": WRONG, "user": 2, "work": 2},
        {"nodes": [2], "start": 101.0, "end": 110.0, "user": 2, "work": 2},  # over a day later: a new run
    ]
    h = history(run, as_of=240.0)
    assert straddling(h, T0 + 100 * H).tolist() == [False, True, True, False, False, False, False, False]


@pytest.mark.parametrize(("train", "test"), [(1, 9), (5, 5.5)])
def test_backtest_refuses_an_empty_part(train, test):
    rows = [r for r in random_rows(1, n_nodes=4) if r["start"] > 150]
    with pytest.raises(InputError, match="one of the two parts"):
        backtest(history(rows, as_of=240.0), train, test)


@pytest.mark.parametrize(
    ("score", "bad", "expected"),
    [
        ([1, 2, 3, 4], [0, 0, 1, 1], 1.0),
        ([4, 3, 2, 1], [0, 0, 1, 1], 0.0),
        ([1, 1, 1, 1], [0, 1, 0, 1], 0.5),
        ([1, 2, 2, 3], [0, 1, 0, 0], 0.5),
    ],
)
def test_auc(score, bad, expected):
    assert auc(np.array(score, float), np.array(bad, bool)) == pytest.approx(expected)


@pytest.mark.parametrize(("text", "expected"), [("60d", 60), ("8w", 56), ("36h", 1.5), ("7", 7)])
def test_lengths(text, expected):
    assert days(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "0d", "-3d", "60 days", "d"])
def test_bad_lengths(text):
    with pytest.raises(UsageError, match="write 60d"):
        days(text)


def test_events_alone_can_be_evidence():
    events = [(4, DOWN, REASON_HARDWARE, 24.0 * k + 1, 24.0 * k + 2) for k in range(0, 17, 2)]
    assert _lemons(_work(12), events)[2] == [4]
