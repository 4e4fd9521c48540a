"""Which stages go on elsewhere under the same id: those that died of their node and that nobody has taken up again."""

import pytest

from slurm_hook.common.config import Settings
from slurm_hook.dispatch import requeue, tracking
from slurm_hook.dispatch.requeue import Fault
from slurm_hook.dispatch.tracking import Tracked
from slurm_hook.published import mark
from tests.unit.jobs_made import NOW, job, nodes, world

DOWN = {"n2": Fault("Not responding", NOW - 90)}


def died(**changes):
    plain = {
        "state": "FAILED",
        "node_list": "n[1-2]",
        "start": NOW - 900,
        "end": NOW - 100,
        "reason": "NonZeroExitCode",
        "priority": 1,
    }
    return job(**{**plain, **changes})


def found(*jobs, known=None, faults=None, there=None, **settings):
    made = world(list(jobs), there=there or nodes(8, n2="DOWN"))
    chosen = Settings({"dispatch.requeue": True, **settings})
    return requeue.requeues(made._replace(settings=chosen), known or {}, DOWN if faults is None else faults)


def test_a_stage_whose_node_went_down_is_requeued_without_it():
    (item,) = found(died(excludes="n5"), known={1: Tracked(user="n5")})
    assert (item.culprits, item.obstacle) == ("n2", "")
    then = requeue.after(item)
    assert (then.user, then.ours, then.culprits, then.requeued) == ("n5", "n2", "n2", 1)


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"node_list": "n[3-4]"}, DOWN),  # its own error: its nodes are well
        ({}, {"n2": Fault("Not responding", NOW - 5000)}),  # the node was down before
        ({"end": NOW - 9000}, DOWN),  # and long after
        ({"state": "COMPLETED"}, DOWN), ({"state": "CANCELLED"}, DOWN), ({"state": "TIMEOUT"}, DOWN),
        ({"state": "OUT_OF_MEMORY"}, DOWN),
        ({"state": "PENDING"}, DOWN), ({"state": "RUNNING"}, DOWN), ({"label": "1+0"}, DOWN),
        ({"comment": "", "nodes": 1}, DOWN),  # not ours
    ],
)  # fmt: skip
def test_what_is_left_as_it_is(changes, faults):
    assert found(died(**changes), faults=faults) == []


@pytest.mark.parametrize(
    ("reason", "guilty"),
    [
        ("Xid 79: GPU has fallen off the bus", True),
        ("ECC errors", True),
        ("planned firmware update", False),
        ("asked by bob", False),
    ],
)
def test_a_drain_counts_only_for_a_hardware_reason(reason, guilty):
    there = nodes(8)
    there["n2"] = there["n2"]._replace(flags=frozenset({"DRAIN"}))
    items = found(died(), there=there, faults={"n2": Fault(reason, NOW - 50)})
    assert [i.culprits for i in items] == (["n2"] if guilty else [])


def test_node_fail_without_a_known_culprit_goes_on_without_an_exclude():
    (item,) = found(died(state="NODE_FAIL"), there=nodes(8), faults={})
    assert (item.culprits, item.obstacle) == ("", "")


def test_unmarked_jobs_count_where_the_match_rules_take_them():
    assert len(found(died(comment="", nodes=2))) == 1
    assert found(died(comment="mine", nodes=2), **{"match.accounts": ["other"]}) == []


def test_not_more_often_than_retry_and_told_once():
    assert found(died(), known={1: Tracked(requeued=1)}) == []
    assert len(found(died(), known={1: Tracked(requeued=1)}, **{"dispatch.retry": 2})) == 1
    assert found(died(), known={1: Tracked(told=True)}) == []


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (job(7, submit=NOW - 50), "submitted it again as job 7"), (job(7, submit=NOW - 50, state="RUNNING"), "job 7"),
        (job(7, name="eval", dependency="afterok:1(failed)", reason="DependencyNeverSatisfied"), "job 7, which depends on it"),
        (job(7, submit=NOW - 500), ""), (job(7, submit=NOW - 50, name="other"), ""), (job(7, submit=NOW - 50, user="bob"), ""),
        (job(7, name="eval", reason="Dependency", dependency="afterany:1(unfulfilled)"), ""),
    ],
)  # fmt: skip
def test_obstacles(other, words):
    (item,) = found(died(), other)
    assert (words in item.obstacle) if words else item.obstacle == ""


def test_a_node_that_the_user_named_is_no_reason_to_wait_for_ever():
    (item,) = found(died(req_nodes="n[1-2]"))
    assert item.obstacle == "its user named the node n2"


def test_no_culprit_is_excluded_that_the_job_needs():
    (item,) = found(died(nodes=8), there=nodes(8, n2="DOWN"))
    assert (item.culprits, item.obstacle) == ("", "")


def test_reasons_are_read_from_scontrol():
    text = (
        "NodeName=n1 Arch=x86_64 State=DOWN Partitions=llm Reason=Not responding [slurm@1800000000]\n"
        "NodeName=n2 State=IDLE Partitions=llm\n"
        "NodeName=n3 State=IDLE+DRAIN Reason=odd [text] Reason=x [root@1800000001] Comment=hm\n"
        "NodeName=n4 State=DOWN Reason=no time\n"
    )
    assert requeue.parse_faults(text) == {
        "n1": Fault("Not responding", 1.8e9), "n3": Fault("odd [text] Reason=x", 1800000001.0), "n4": Fault("no time", 0.0),
    }  # fmt: skip


def test_a_stage_confined_to_the_pool_that_failed_may_go_elsewhere():
    """The excludes of its own pool leave no node to spare: they go, its user's and the culprit stay."""
    pool = died(excludes="n3,n4,n5,n6,n7,n8", comment=mark.text(mark.Mark(mode="steer", snapshot="s1", excludes="n8")))
    (item,) = found(pool)
    assert (item.culprits, item.excludes, item.kept) == ("n2", "n[2,8]", "")
    then = requeue.after(item)
    assert (then.user, then.ours, then.culprits) == ("n8", "n2", "n2")
    again = tracking.adopt(pool._replace(state="PENDING", excludes="n2,n8"), then)
    assert (again.ours, again.hands_off) == ("n2", False)


def test_a_culprit_that_cannot_be_spared_is_told():
    (item,) = found(died(nodes=8, node_list="n[1-8]"))
    assert (item.culprits, item.kept) == ("", "n2")
    assert requeue.words(item) == "job 1 died of its node and is requeued; n2 can't be left out, as too few nodes would remain"
    assert requeue.words(item._replace(kept="")).endswith("without a known culprit")


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({}, True),
        ({"state": "FAILED"}, False),  # as a job that the same node killed would
        ({"node_list": "n3"}, False),
        ({"start": NOW - 200}, False),  # it was there before
        ({"end": NOW - 20}, False),  # it ended when the node was broken
    ],
)
@pytest.mark.parametrize("state", ["DOWN", "DRAIN"])
def test_a_node_that_worked_on_after_the_failure_did_not_cause_it(changes, own, state):
    there = nodes(8, **({"n2": "DOWN"} if state == "DOWN" else {}))
    there["n2"] = there["n2"]._replace(flags=frozenset({state}))
    plain = {"number": 2, "state": "COMPLETED", "node_list": "n2", "start": NOW - 90, "end": NOW - 60, "name": "b", "submit": 1.0}
    other = job(**{**plain, **changes})
    items = found(died(), other, there=there, faults={"n2": Fault("xid 79", NOW - 50)})
    assert bool(items) is not own
