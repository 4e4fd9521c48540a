"""Requeue elsewhere: which stages died of their node and may go on under the same job id. Pure.

Opt-in (`dispatch.requeue`), and independent of steering. A stage that died of its own error, that Slurm or its launcher has
taken up again, or whose dependents can't be helped any more is left as it is.
"""

from __future__ import annotations

import re

from ..common import hostlist
from ..common.config import Settings
from ..common.record import TYPE_CHECKING, Record
from ..decision import match
from ..decision.directives import Directives
from ..slurm import jobs
from ..slurm.jobs import Job
from . import tracking, updates
from .tracking import Tracked
from .updates import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LATE = 1800.0  # seconds after a job's end in which a node's fault still explains it
EARLY = 60.0  # and before it: clocks differ
_REASON = re.compile(r" Reason=(?:(.*) \[[^\]@ ]+@(\d+)\]|(.*))")


class Fault(Record):
    """What Slurm says against a node: the reason, and since when (epoch seconds, 0 unknown)."""

    reason: str
    since: float


class Requeue(Record):
    """A stage to requeue, or where `obstacle` says why not, to be told of once.

    culprits: nodes to exclude, folded; excludes: all that the job is to have then, folded; kept: culprits without which too
    few nodes would be left, folded.
    """

    job: Job
    tracked: Tracked
    culprits: str = ""
    obstacle: str = ""
    excludes: str = ""
    kept: str = ""


def parse_faults(text: str) -> dict[str, Fault]:
    """Reasons by node from `scontrol -o show node`; times must be printed as epoch seconds."""
    found = {}
    for line in text.split("\n"):
        match_ = _REASON.search(line)
        if line.startswith("NodeName=") and match_:
            found[line[9:].split(" ", 1)[0]] = Fault(match_[1] or match_[3] or "", float(match_[2] or 0))
    return found


def class_of(reason: str, settings: Settings) -> str:
    """Class of a drain or down reason by `[events.reasons]`: the first whose expression is found."""
    for name, pattern in settings["events.reasons"].items():
        if re.search(pattern, reason, re.IGNORECASE):
            return str(name)
    return "unknown"


def requeues(world: World, tracked: Mapping[int, Tracked], faults: Mapping[str, Fault]) -> list[Requeue]:
    """Stages of ours that died of their node since the last passes and that nobody has taken up again."""
    most, found = world.settings["dispatch.retry"], []
    for job in world.jobs:
        if not _died(job) or not concerns(job, world.settings):
            continue
        known = tracking.adopt(job, tracked.get(job.id))
        if known.told or known.requeued >= most:
            continue
        culprits = culprits_of(job, world, faults)
        if not culprits and job.state != "NODE_FAIL":
            continue  # its own error
        obstacle = _obstacle(job, world.jobs) or _named(job, culprits)
        found.append(_planned(Requeue(job, known, hostlist.fold(culprits), obstacle), world))
    return found


def _planned(item: Requeue, world: World) -> Requeue:
    """With its excludes: what it has and the culprits; where that leaves too few nodes, a pool was drawn for the attempt
    that died, and ours go, or else the culprits."""
    culprits = {*jobs.nodes_of(item.culprits)}
    for have in (item.job.excludes, item.tracked.user):
        excludes = culprits | {*jobs.nodes_of(have)}
        if culprits and _leaves_enough(item.job, world, excludes):
            return item._replace(excludes=hostlist.fold(excludes))
    return item._replace(culprits="", kept=item.culprits)


def _died(job: Job) -> bool:
    return job.state in ("NODE_FAIL", "FAILED") and not job.het and job.end > 0


def concerns(job: Job, settings: Settings) -> bool:
    """Marked as ours, or matched by `[match]`: in mode observe nothing is marked."""
    if job.mark is not None:
        return True
    request = updates.request_of(job, Tracked())._replace(comment=job.comment, name=job.name)
    gpus = job.details.gpus if job.details is not None else 0
    return bool(match.reason(request, Directives(), settings, nodes=job.nodes, gpus=gpus))


def culprits_of(job: Job, world: World, faults: Mapping[str, Fault]) -> list[str]:
    """Nodes of the job that are broken now and became so about when it ended: down, or drained for a hardware reason."""
    return [name for name in jobs.nodes_of(job.node_list) if name in world.nodes and _guilty(name, job, world, faults)]


def _guilty(name: str, job: Job, world: World, faults: Mapping[str, Fault]) -> bool:
    node, fault = world.nodes[name], faults.get(name, Fault("", 0.0))
    if fault.since and not job.start <= fault.since <= job.end + LATE:
        return False
    if fault.since and job.state == "FAILED" and _worked_on(name, job, world, fault.since):
        return False
    if node.state in ("DOWN", "ERROR", "UNKNOWN") or "NOT_RESPONDING" in node.flags:
        return True
    return updates.is_broken(node) and fault.since > 0 and class_of(fault.reason, world.settings) == "hardware"


def _worked_on(name: str, job: Job, world: World, since: float) -> bool:
    """Between the job's end and the fault another began on the node and came through: it was well then."""
    return any(
        other.state == "COMPLETED" and job.end <= other.start and other.end <= since and name in jobs.nodes_of(other.node_list)
        for other in world.jobs
    )


def _obstacle(job: Job, found: Iterable[Job]) -> str:
    """Why requeueing would do no good, "" where it would."""
    for other in found:
        if other.id == job.id:
            continue
        if other.user == job.user and other.name == job.name and other.submit >= job.end - 1:
            return f"its launcher has submitted it again as job {other.id}"
        broken = any(link.job == job.id and link.state == "failed" for link in jobs.links(other.dependency))
        if broken and other.pending and other.user == job.user:
            return f"job {other.label}, which depends on it, is already invalid"
    return ""


def _named(job: Job, culprits: Sequence[str]) -> str:
    named = sorted({*jobs.nodes_of(job.req_nodes)} & {*culprits})
    return f"its user named the node {named[0]}" if named else ""


def _leaves_enough(job: Job, world: World, excludes: set[str]) -> bool:
    parts = frozenset(job.partition.split(","))
    left = sum(n.usable and name not in excludes and not parts.isdisjoint(n.partitions) for name, n in world.nodes.items())
    return left >= max(1, job.nodes)


def after(item: Requeue) -> Tracked:
    """What is remembered of a job once it is requeued: the culprits are excludes of ours."""
    known = item.tracked
    culprits = {*jobs.nodes_of(known.culprits), *jobs.nodes_of(item.culprits)}
    ours = hostlist.fold({*jobs.nodes_of(item.excludes)} - {*jobs.nodes_of(known.user)}) if item.excludes else known.ours
    return known._replace(
        requeued=known.requeued + 1, culprits=hostlist.fold(culprits), ours=ours, before=known.ours, ran_on="", confined=0.0,
    )  # fmt: skip


def words(item: Requeue) -> str:
    """What is said of a stage that is requeued."""
    died = f"job {item.job.label} died of its node and is requeued"
    if item.kept:
        return f"{died}; {item.kept} can't be left out, as too few nodes would remain"
    return f"{died} without {item.culprits or 'a known culprit'}"
