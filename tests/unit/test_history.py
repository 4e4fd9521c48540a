"""load_history: what the scorer reads, as it was known at a moment."""

import numpy as np
import pytest

from accounting.history import columns as c
from accounting.history import event_rows, node_rows, truncate
from accounting.history.columns_reader import load_history, outcome_of
from accounting.scoring.trust import from_events, marked_now
from accounting.sources import events, node_inventory
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import ConfigError, StoreError
from tests.accounting_rows import put, row, stores

NOW = 100_000.0


@pytest.fixture
def made(tmp_path):
    return stores(tmp_path / "h.db")


def load(made, as_of=NOW, days=90, settings=None):
    return load_history(made["c"].db, "c", as_of, days, settings or Settings())


def event(node, kind, start, reason="", end=None, source="slurmdbd"):
    classify = events.Reasons(Settings()["events.reasons"])
    return events.Event(node, kind, start, end, "", reason, classify(reason), "root", source)


def spec(name="n1", memory=64000, **more):
    return node_inventory.NodeSpec(name, memory, 16, **more)


def only(history, job):
    """Positions of the tasks of a job's attempts."""
    return np.flatnonzero(np.isin(history.tasks.attempt, np.flatnonzero(history.attempts.job == job)))


@pytest.mark.parametrize(
    ("state", "code", "outcome"),
    [
        ("COMPLETED", "0:0", c.RIGHT),
        ("NODE_FAIL", "1:0", c.WRONG),
        ("NODE_FAIL", "0:0", c.WRONG),
        ("BOOT_FAIL", "0:0", c.WRONG),
        ("FAILED", "3:0", c.WRONG),
        ("FAILED", "0:9", c.WRONG),
        ("OUT_OF_MEMORY", "0:125", c.SILENT),
        ("PREEMPTED", "0:15", c.SILENT),
        ("DEADLINE", "0:0", c.SILENT),
        ("REVOKED", "0:0", c.SILENT),
        ("TIMEOUT", "0:0", c.SURVIVED),
        ("CANCELLED by 1001", "0:15", c.SILENT),
        ("REQUEUED", "0:0", c.SILENT),
        ("NEVER_SEEN_BEFORE", "0:0", c.SILENT),
    ],
)
def test_outcome_table(made, state, code, outcome):
    put(made, row(1, State=state, ExitCode=code))
    history = load(made)
    assert history.attempts.outcome.tolist() == [outcome]
    right = {c.RIGHT: 1.0, c.WRONG: -1.0}.get(outcome, np.nan)
    np.testing.assert_equal(history.tasks.correct, [right])


def test_outcomes_are_settings():
    mine = Settings({"outcomes.states": {"TIMEOUT": "wrong"}, "outcomes.exit_codes": {"75": "silent", "0:9": "survived"}})
    assert outcome_of("TIMEOUT", 0, 0, mine) == c.WRONG
    assert outcome_of("FAILED", 75, 0, mine) == c.SILENT
    assert outcome_of("FAILED", 0, 9, mine) == c.SURVIVED
    assert outcome_of("FAILED", 1, 0, mine) == c.WRONG
    assert outcome_of("COMPLETED", 75, 0, mine) == c.RIGHT
    assert outcome_of("PREEMPTED", np.nan, np.nan, mine) == c.SILENT
    own = Settings({"outcomes.exit_codes": {"1": "silent"}})  # which Slurm gives to lost nodes' jobs as well, from 24.11 on
    assert [outcome_of(state, 1, 0, own) for state in ("FAILED", "NODE_FAIL", "BOOT_FAIL")] == [c.SILENT, c.WRONG, c.WRONG]
    assert outcome_of("X", 0, 0, Settings({"outcomes.other": "survived"})) == c.SURVIVED
    with pytest.raises(ConfigError, match="one of right"):
        Settings({"outcomes.states": {"FAILED": "maybe"}})


def test_never_started_charges_no_node(made):
    put(
        made,
        row(1, State="CANCELLED by 5", Start="None", NodeList="None assigned", AllocNodes="0"),
        row(2, State="PENDING", Start="Unknown", End="Unknown", NodeList="None assigned"),
        row(3, State="DEADLINE", Start="", NodeList=""),
    )
    history = load(made)
    assert len(history.tasks) == 0 and len(history.nodes) == 0 and len(history.attempts) == 0


def test_as_of_hides_what_came_later(made):
    put(made, row(1, State="FAILED", End="9000"), row(2, Start="20000", End="21000"))
    event_rows.save(made["c"], [event("n1", "down", 9000, "xid 79", end=9500)])
    then = load(made, as_of=5000.0)
    assert then.attempts.outcome.tolist() == [c.SURVIVED]
    assert then.tasks.end.tolist() == [5000.0] and np.isnan(then.tasks.correct).all()
    assert len(then.events) == 0
    between = load(made, as_of=9200.0)
    assert between.attempts.outcome.tolist() == [c.WRONG] and np.isnan(between.events.end).all()
    assert len(load(made).attempts) == 2


def test_window_leaves_out_what_ended_before(made):
    put(made, row(1, Start="1000", End="2000"), row(2, Start="90000", End="95000"))
    assert load(made, days=0.5).attempts.job.tolist() == [2]


def test_running_and_overdue(made):
    put(
        made,
        row(1, State="RUNNING", Start="99000", End="Unknown"),
        row(2, State="RUNNING", Start="1000", End="Unknown", TimelimitRaw="10"),
        row(3, State="RUNNING", Start="1000", End="Unknown", TimelimitRaw="UNLIMITED"),
    )
    assert load(made).attempts.outcome.tolist() == [c.SURVIVED, c.SILENT, c.SURVIVED]
    assert load(made).tasks.end.tolist() == [NOW, 1600.0, NOW]  # it can't have filled its node longer


DAY = 86_400


@pytest.mark.parametrize(
    ("kind", "start", "source", "node", "outcome"),
    [
        ("down", 2000, "slurmdbd", "n2", c.SILENT),
        ("down", int(NOW) - DAY - 1, "slurmdbd", "n1", c.SILENT),
        ("down", int(NOW) - DAY + 1, "slurmdbd", "n1", c.SURVIVED),  # accounting may be late
        ("down", 900, "slurmdbd", "n1", c.SURVIVED),  # before it began
        ("down", 1000, "slurmdbd", "n1", c.SURVIVED),
        ("drain", 2000, "slurmdbd", "n1", c.SURVIVED),  # lets jobs run
        ("down", 2000, "health", "n1", c.SURVIVED),  # Slurm let it be
        ("down", 2000, "slurmdbd", "n3", c.SURVIVED),  # none of its nodes
    ],
)
@pytest.mark.parametrize("limit", ["UNLIMITED", "5000", ""])
def test_no_job_outlives_its_nodes(made, kind, start, source, node, outcome, limit):
    """RUNNING for ever: a record that never got its end says nothing from a day on after one of its nodes went down."""
    runs = {"State": "RUNNING", "End": "Unknown", "NodeList": "n[1-2]", "AllocNodes": "2", "TimelimitRaw": limit}
    put(made, row(1, **runs), row(2, NodeList="n[1-3]", End="90000"), row(3, **{**runs, "NodeList": "n4", "AllocNodes": "1"}))
    event_rows.save(made["c"], [event(node, kind, start, end=start + 60, source=source)])
    history = load(made)
    assert history.attempts.outcome.tolist() == [outcome, c.RIGHT, c.SURVIVED]
    assert set(history.tasks.end[only(history, 1)].tolist()) == {start if outcome == c.SILENT else NOW}
    assert load(made, days=0.5).attempts.outcome.tolist()[::2] == [outcome, c.SURVIVED]  # however long ago it was
    if 1000 < start < NOW - DAY:  # and before it was, all ran
        assert load(made, as_of=start + 60.0).attempts.outcome.tolist()[0] == c.SURVIVED


def test_no_attempt_outlives_the_next_of_its_job(made):
    runs = {"State": "RUNNING", "End": "Unknown", "TimelimitRaw": "UNLIMITED"}
    put(made, row(1, **runs), row(1, Submit="5000", Start="5001", **runs), row(2, **runs))
    assert load(made).attempts.outcome.tolist() == [c.SILENT, c.SURVIVED, c.SURVIVED]
    assert load(made).tasks.end.tolist() == [5000.0, NOW, NOW]


def test_capacity_is_what_the_node_had_then(made):
    put(made, row(1), row(2, Start="50000", End="51000"))
    node_rows.save(made["c"], [spec(memory=64000)], 2000, "scontrol")
    node_rows.save(made["c"], [spec(memory=64000)], 3000, "scontrol")
    node_rows.save(made["c"], [spec(memory=128000)], 40000, "scontrol")
    history = load(made)
    assert history.tasks.demand.tolist() == [8000, 8000]
    assert history.tasks.capacity.tolist() == [64000, 128000]
    specs = made["c"].conn.execute("SELECT valid_from FROM node_specs ORDER BY 1").fetchall()
    assert specs == [(2000,), (40000,)]


@pytest.mark.parametrize(
    ("resource", "demand", "capacity"), [("auto", 2 * 80000, 8 * 80000), ("mem", 8000, 64000), ("gpu_mem", 160000, 640000)]
)
def test_capacity_resource(made, resource, demand, capacity):
    put(made, row(1, AllocTRES="cpu=8,mem=8000M,node=1,gres/gpu=2"))
    node_rows.save(made["c"], [spec(gpus=8, gpu_type="h100")], 0, "scontrol")
    settings = Settings({"scoring.capacity_resource": resource, "scoring.gpu_mem": {"h100": 80000}})
    history = load(made, settings=settings)
    assert (history.tasks.demand[0], history.tasks.capacity[0]) == (demand, capacity)
    assert history.nodes.gpu_types == ["h100"]


def test_nodes_without_gpus_are_measured_by_memory(made):
    put(made, row(1), row(2, NodeList="n2", AllocTRES="cpu=1,mem=1G,gres/gpu=1"))
    node_rows.save(made["c"], [spec("n1"), spec("n2", gpus=4)], 0, "scontrol")
    history = load(made)
    assert history.tasks.demand.tolist() == [8000, 81920]


def test_inventory_is_inferred_from_what_ran_at_once(made):
    one = {"AllocTRES": "cpu=8,mem=8000M,gres/gpu:a100=2,gres/gpu=2"}
    put(made, row(1, Start="1000", End="3000", **one), row(2, Start="2000", End="4000", **one), row(3, Start="4000", **one))
    node_rows.infer(made["c"])
    found = made["c"].conn.execute("SELECT memory_mib, cpus, gpus, gpu_type, source FROM node_current").fetchall()
    assert found == [(16000, 16, 4, "a100", "inferred")]
    assert "no inventory" in load(made).notes[0]
    node_rows.save(made["c"], [spec("n1", gpus=4)], 90_000, "scontrol")
    assert load(made).notes == []  # what is inferred of earlier times stays


def test_the_inventory_of_a_dump_tells_no_time(made):
    put(made, row(1, Start="5000", End="7000"), row(2, Start="6000", End="9000"))
    node_rows.save(made["c"], [spec("n1"), spec("n2")], 0, "file")
    found = made["c"].conn.execute("SELECT name, first_seen, last_seen FROM nodes ORDER BY name").fetchall()
    assert found == [("n1", 5000, 9000), ("n2", None, None)]


def failing(made, state="NODE_FAIL", **more):
    put(made, row(1, State=state, NodeList="n[1-4]", AllocNodes="4", AllocTRES="cpu=8,mem=8G,node=4", **more))


def culprits(history):
    return [history.nodes.names[n] for n in history.tasks.node[history.tasks.culprit]]


@pytest.mark.parametrize(
    ("state", "kind", "start", "reason", "expected"),
    [
        ("NODE_FAIL", "down", 4600, "Not responding", ["n2"]),
        ("NODE_FAIL", "down", 4600, "", ["n2"]),
        ("NODE_FAIL", "down", 4600 + 1799, "?", ["n2"]),
        ("NODE_FAIL", "down", 4600 + 1801, "?", []),
        ("NODE_FAIL", "drain", 4700, "xid 48: DBE", ["n2"]),
        ("NODE_FAIL", "drain", 4700, "quota", []),
        ("FAILED", "down", 4600, "", []),
        ("FAILED", "drain", 4700, "ECC errors", ["n2"]),
        ("COMPLETED", "down", 4600, "xid 79", []),
        ("TIMEOUT", "down", 4600, "xid 79", []),
    ],
)
def test_events_name_the_culprit(made, state, kind, start, reason, expected):
    failing(made, state)
    event_rows.save(made["c"], [event("n2", kind, start, reason)])
    assert culprits(load(made)) == expected


def test_failed_node_names_the_culprit(made):
    failing(made, FailedNode="n3")
    assert culprits(load(made)) == ["n3"]
    failing(made, "COMPLETED", FailedNode="n3")
    assert culprits(load(made)) == []


def test_planned_stop_is_nobodys_fault(made):
    failing(made)
    event_rows.save(made["c"], [event("n2", "down", 4600, "reboot requested")])
    history = load(made)
    assert history.attempts.outcome.tolist() == [c.SILENT] and culprits(history) == []
    event_rows.save(made["c"], [event("n3", "down", 4610, "Not responding")])
    history = load(made)
    assert history.attempts.outcome.tolist() == [c.WRONG] and culprits(history) == ["n3"]


def test_reasons_follow_the_settings_of_now(made):
    failing(made, "FAILED")
    event_rows.save(made["c"], [event("n2", "drain", 4600, "purple haze")])
    assert culprits(load(made)) == []
    assert culprits(load(made, settings=Settings({"events.reasons": {"hardware": "purple"}}))) == ["n2"]


def test_members_that_end_together_are_one_failure(made):
    put(
        made,
        row(11, JobID="10_1", State="FAILED", End="5000"),
        row(12, JobID="10_2", State="FAILED", End="5030"),
        row(13, JobID="10_3", State="FAILED", End="9000"),
        row(14, JobID="10_4", State="COMPLETED", End="5010"),
        row(20, JobID="20+0", State="NODE_FAIL", End="5000"),
        row(21, JobID="20+1", State="NODE_FAIL", End="5001"),
        row(30, State="FAILED", End="5000"),
    )
    history = load(made)
    group = dict(zip(history.attempts.job.tolist(), history.attempts.group.tolist()))
    assert group[11] == group[12] and group[20] == group[21]
    assert len(set(group.values())) == 5


def test_marks(made):
    put(made, row(1), row(2))
    store = made["c"]
    store.conn.execute("INSERT INTO job_marks VALUES (?, 2, 900, 'wrong', '', 'me', 5)", (store.cluster_id,))
    event_rows.save(store, [event("n1", "repaired", 5000, source="mark"), event("n1", "ignore", 6000, source="mark")])
    history = load(made)
    assert history.attempts.outcome.tolist() == [c.RIGHT, c.WRONG]
    assert history.events.kind.tolist() == [c.REPAIRED, c.MARKED_IGNORE]


def test_a_mark_with_an_end_holds_until_then_whatever_is_marked_meanwhile(made):
    """One without holds until the next."""
    put(made, row(1), row(2, NodeList="n2"))
    until = NOW + 50_000
    marks = [event(n, "ignore", 5000, end=end, source="mark") for n, end in (("n1", int(until)), ("n2", None))]
    event_rows.save(made["c"], [*marks, *[event(n, "repaired", 80_000, source="mark") for n in ("n1", "n2")]])
    for history in (load(made), truncate.until(load(made, as_of=NOW + 1), NOW)):
        trust = from_events(history.events, 2, NOW)
        assert trust.ignored == {0: [(5000.0, until)], 1: [(5000.0, 80_000.0)]}
        assert marked_now(history.events, c.MARKED_IGNORE, 2, NOW).tolist() == [True, False]
    assert not marked_now(load(made, as_of=until + 1).events, c.MARKED_IGNORE, 2, until + 1).any()


def test_failed_step_of_a_completed_job_is_a_failed_attempt(made):
    four = {"NodeList": "n[1-4]", "AllocNodes": "4", "AllocTRES": "cpu=8,mem=8G,node=4"}
    put(
        made,
        row(1, **four),
        row("1.batch", NodeList="n1"),
        row("1.0", NodeList="n[2-3]", Start="1100", End="2000", State="NODE_FAIL"),
        row("1.1", NodeList="n[2-4]", Start="2100", End="4500"),
    )
    history = load(made)
    assert history.attempts.outcome.tolist() == [c.RIGHT, c.WRONG]
    parts = [
        (history.nodes.names[n], int(a), float(s), float(e), float(k))
        for n, a, s, e, k in zip(
            history.tasks.node, history.tasks.attempt, history.tasks.start, history.tasks.end, history.tasks.correct
        )
    ]
    assert sorted(parts) == [
        ("n1", 0, 1000, 4600, 1.0),
        ("n2", 0, 2000, 4600, 1.0),
        ("n2", 1, 1000, 2000, -1.0),
        ("n3", 0, 2000, 4600, 1.0),
        ("n3", 1, 1000, 2000, -1.0),
        ("n4", 0, 1000, 4600, 1.0),
    ]


@pytest.mark.parametrize(("down", "attempts"), [(2000, 2), (None, 1)])
def test_cancelled_step_counts_only_when_its_node_went_down(made, down, attempts):
    put(
        made,
        row(1, NodeList="n[1-2]", AllocNodes="2"),
        row("1.0", NodeList="n2", Start="1100", End="2000", State="CANCELLED", ExitCode="0:9"),
    )
    if down:
        event_rows.save(made["c"], [event("n2", "down", down, "Not responding")])
    history = load(made)
    assert len(history.attempts) == attempts
    assert culprits(history) == (["n2"] if down else [])


def test_unknown_cluster(made):
    put(made, row(1))
    with pytest.raises(StoreError, match="known: c"):
        load_history(made["c"].db, "other", NOW, 90, Settings())


def test_clusters_do_not_mix(made):
    put(made, row(1), row(1, Cluster="d", State="FAILED", NodeList="m1"))
    assert load(made).nodes.names == ["n1"]
    other = load_history(made["c"].db, "d", NOW, 90, Settings())
    assert other.nodes.names == ["m1"] and other.attempts.outcome.tolist() == [c.WRONG]
