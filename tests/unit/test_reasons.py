"""Which of Slurm's reasons hold nodes from others, and that one user's job that can't start turns steering off for nobody."""

from pathlib import Path

import pytest

from slurm_hook.common.hostlist import expand
from slurm_hook.dispatch import queue_heads, updates
from slurm_hook.dispatch.updates import STEER
from slurm_hook.published.snapshot import Reservation
from slurm_hook.slurm import jobs, pending_reasons
from tests.unit.jobs_made import NOW, job, nodes, world

NAMES = Path(__file__).resolve().parents[1] / "data/pending_reasons.txt"
DOWN = "Nodes required for job are DOWN"
ALL = [line.strip() for line in NAMES.read_text(encoding="utf-8").splitlines() if line[0] != "#"]


@pytest.mark.parametrize("line", ALL)
def test_each_reason_of_slurms_is_in_one_row_of_the_table(line):
    name, holds = line[1:], line[0] == "+"
    assert [row for row, beginnings in pending_reasons.TABLE for word in beginnings if name.startswith(word)] == [holds]
    assert pending_reasons.holds_nodes(name) is holds


@pytest.mark.parametrize(
    ("told", "holds"),
    [
        # sentences that squeue tells in place of a name
        (f"{DOWN}, DRAINED or reserved for jobs in higher priority partitions", True),
        (f"{DOWN}, DRAINED, REBOOTING or reserved for jobs in higher priority partitions", True),
        ("ReqNodeNotAvail, UnavailableNodes:gpu[01,03],cpu7", False), ("ReqNodeNotAvail, May be reserved for other job", False),
        ("ReqNodeNotAvail, Reserved for maintenance", False), ("Reservation x was deleted", False),
        ("uid 1000 not in group permitted to use this partition (llm). groups allowed: ml", False),
        ("job requeued in held state", False), ("launch failed requeued held", False),
        # tasks of an array, which squeue tells as one
        ("JobArrayTaskLimit,Resources", True), ("Resources,JobArrayTaskLimit", True), ("BeginTime,JobArrayTaskLimit", False),
        # of a version to come: others do without a pool
        ("MoonPhase", True), ("", True),
    ],
)  # fmt: skip
def test_sentences_and_unknown_reasons(told, holds):
    assert pending_reasons.holds_nodes(told) is holds


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"reason": "PartitionConfig", "nodes": 400}, ""), ({"reason": "Priority", "nodes": 400}, ""),  # whatever Slurm says
        ({"reason": "ReqNodeNotAvail, UnavailableNodes:n1", "req_nodes": "n1", "nodes": 1}, ""),
        # what Slurm keeps for a job that names its nodes are these nodes
        ({"reason": "Resources", "req_nodes": "n[1-2]", "nodes": 2}, "n[1-2]"),
        ({"reason": f"{DOWN}, DRAINED or reserved for jobs in higher priority partitions", "nodes": 8}, ""),
        ({"reservation": "mine"}, ""), ({"priority": 0}, ""), ({"reason": "BeginTime"}, ""),
        ({"reason": "Licenses"}, ""), ({"dependency": "afterok:9(unfulfilled)"}, ""), ({"partition": "elsewhere"}, ""),
    ],
)  # fmt: skip
def test_a_job_that_gets_no_nodes_turns_steering_off_for_nobody(changes, named):
    there = nodes(8, n8="DOWN")
    waits = job(9, user="mallory", comment="", **{"priority": 900, **changes})
    room = queue_heads.Room(queue_heads.usable_in(there))
    assert queue_heads.queue_head([waits], room).get("llm") is None
    pools = queue_heads.named([waits], NOW)
    assert pools == (((NOW, named),) if named else ())
    made = world([job(1, reason="Priority"), waits], there)
    (update,) = [u for u in updates.plan(made._replace(live=made.live._replace(pools=pools)), {}).updates if u.job.id == 1]
    assert update.why == STEER
    assert not set(expand(named)) - set(jobs.nodes_of(update.excludes))


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "Resources", "nodes": 7}, {"reason": "Priority"}, {"reason": "None"}, {"reason": "MoonPhase"},
        {"reason": "Resources", "req_nodes": "n1", "nodes": 7},  # -w names one of those that it needs
        {"reason": "Resources", "partition": "llm,elsewhere"},
    ],
)  # fmt: skip
def test_a_job_that_gets_the_next_nodes_still_counts(changes):
    there = nodes(8, n8="DOWN")
    waits = job(9, user="mallory", comment="", **{"priority": 900, **changes})
    assert queue_heads.queue_head([waits], queue_heads.Room(queue_heads.usable_in(there)))["llm"] == 900
    assert not [u for u in updates.plan(world([job(1, reason="Priority"), waits], there), {}).updates if u.why == STEER]


RESERVED = (
    Reservation("later", NOW + 7200, NOW + 10800, ("n1", "n2", "n3", "n4", "n5")),
    Reservation("soon", NOW + 600, NOW + 900, ("n6",)),
    Reservation("over", NOW - 900, NOW - 1, ("n7",)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("usable", "minutes", "least", "counts"),
    [
        ("n[1-7]", 5, 7, True), ("n[1-7]", 60, 7, False), ("n[1-7]", 60, 6, True), ("n[1-7]", 180, 2, False),
        ("n[1-7]", 180, 1, True), ("n[1-7]", None, 2, False), ("n[1-7]", 5, 8, False), ("", 5, 1, False),
    ],
)  # fmt: skip
def test_who_needs_more_nodes_than_are_up_and_not_reserved_does_not_count(usable, minutes, least, counts):
    """Slurm plans it for when they are back; until then others get the free ones."""
    waits = job(9, nodes=least, minutes=minutes)
    assert bool(queue_heads.queue_head([waits], queue_heads.Room({"llm": usable}, RESERVED, NOW))) is counts
    assert queue_heads.queue_head([waits], queue_heads.Room({}, RESERVED, NOW)), (
        "where the nodes aren't known the reason alone counts"
    )


def test_a_partition_whose_nodes_are_all_down_has_no_room():
    assert queue_heads.usable_in(nodes(2, "DOWN")) == {"llm": ""}
    assert queue_heads.usable_in(nodes(3, n2="DOWN")) == {"llm": "n[1,3]"}
