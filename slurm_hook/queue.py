"""The waiting stages and a pipeline's stages as rows: who waits how long, with which urgency. Pure."""

from __future__ import annotations

from . import dispatch, jobs, mark, priority, waiting
from .config import Settings
from .jobs import Job, PastJob
from .light import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Stage(Record):
    """A waiting stage. wait in hours since its dependencies were met; completion: share of all that the waiting stages'
    pipelines have invested; urgency and priority in hours; demand in MiB; invested in node-less run hours."""

    job: str
    user: str
    name: str
    pipeline: str
    nodes: int
    demand: float
    wait: float
    completion: float
    urgency: float
    priority: float
    invested: float
    reason: str
    steered: str


class Queue(Record):
    """stages: in descending priority; others: how many stages of others wait, which the caller may not see."""

    stages: tuple[Stage, ...]
    others: int = 0


def waiting_stages(
    found: Sequence[Job], settings: Settings, now: float, *, method: str, past: Mapping[str, float] | None = None,
    user: str | None = None,
) -> Queue:  # fmt: skip
    """All waiting stages by allocation priority, among them the user's own shown, or all where user is None.

    found: jobs with details where they wait; past: seconds that each pipeline has invested in jobs that slurmctld has
    forgotten. A waiting stage: pending and not held, its dependencies met or not; arrays count once.
    """
    group = waiting.groups(found, {})
    invested = _invested(found, group, now, past or {})
    stages = [job for job in found if job.pending and not job.held]
    tasks = [
        priority.Waiting(
            f"{job.id:012d}", dispatch.waited(job, now), invested.get(group[job.id], 0.0), dispatch.demand_of(job, settings)
        )
        for job in stages
    ]
    smoothing = 0.0 if method == "published" else priority.SMOOTHING
    scored = priority.priorities(tasks, smoothing)
    rows = [
        _row(stages[i], scored[i], tasks[i], group[stages[i].id])
        for i in priority.placing_order(tasks, smoothing)
        if user is None or stages[i].user == user
    ]
    return Queue(tuple(rows), 0 if user is None else sum(job.user != user for job in stages))


def _invested(found: Iterable[Job], group: Mapping[int, str], now: float, past: Mapping[str, float]) -> dict[str, float]:
    sums = dict(past)
    for job in found:
        sums[group[job.id]] = sums.get(group[job.id], 0.0) + jobs.run_seconds(job, now)
    return sums


def _row(job: Job, scored: priority.Priority, task: priority.Waiting, pipeline: str) -> Stage:
    found = job.mark
    return Stage(
        job=job.label, user=job.user, name=(found.stage if found and found.stage else job.name), pipeline=short(pipeline),
        nodes=job.nodes, demand=task.demand, wait=scored.wait_hours, completion=scored.completion, urgency=scored.urgency,
        priority=scored.priority, invested=task.processing / 3600.0,
        reason=job.reason or ("Dependency" if job.dependency else "None"), steered=found.mode if found else "",
    )  # fmt: skip


def short(pipeline: str) -> str:
    """A pipeline's key as its owner reads it: `llama`, or `#12` for jobs that only dependencies tie together."""
    return pipeline.partition("/")[2] or "#" + pipeline.partition("#")[2]


class Part(Record):
    """One stage of a pipeline. hours: run so far (all attempts); node_hours: the same times nodes; after: job ids that it
    still waits for; turn: it is what the pipeline waits for now."""

    job: str
    name: str
    state: str
    nodes: str
    width: int
    hours: float
    node_hours: float
    after: str = ""
    turn: bool = False


def pipeline_parts(name: str, found: Sequence[Job], past: Iterable[PastJob], user: str, now: float) -> tuple[Part, ...]:
    """Stages of one user's pipeline, by name or by the id of any job in its chain, in the order of their job ids.

    past: what accounting knows, for stages that slurmctld has forgotten.
    """
    group = waiting.groups(found, {})
    keys = {f"{user}/{name}", f"{user}#{name.lstrip('#')}"}
    keys |= {group[job.id] for job in found if job.user == user and str(job.id) == name.lstrip("#")}
    current = {job.id: job for job in found if job.user == user and group[job.id] in keys}
    attempts: dict[int, list[PastJob]] = {}
    for record in past:
        given = mark.parse(record.comment)
        if (given is not None and given.pipeline == name) or record.id in current:
            attempts.setdefault(record.id, []).append(record)
    return tuple(_part(job, current.get(job), attempts.get(job, ()), now) for job in sorted({*current, *attempts}))


def _part(number: int, job: Job | None, attempts: Sequence[PastJob], now: float) -> Part:
    runs = [(record.elapsed, len(jobs.nodes_of(record.node_list))) for record in attempts if record.state != "RUNNING"]
    if job is not None and (job.state not in _ENDED or not attempts):
        runs.append((jobs.run_seconds(job, now), len(jobs.nodes_of(job.node_list))))
    hours, node_hours = sum(s for s, _ in runs) / 3600.0, sum(s * n for s, n in runs) / 3600.0
    if job is None:
        last = attempts[-1]
        given = mark.parse(last.comment)
        title = given.stage if given and given.stage else last.name
        return Part(str(number), title, last.state, last.node_list, len(jobs.nodes_of(last.node_list)), hours, node_hours)
    given = job.mark
    return Part(
        job=job.label, name=given.stage if given and given.stage else job.name, state=job.state,
        nodes="" if job.pending else job.node_list, width=job.nodes, hours=hours, node_hours=node_hours,
        after=",".join(str(link.job) for link in jobs.links(job.dependency)), turn=job.pending and not job.dependency,
    )  # fmt: skip


_ENDED = frozenset({
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE", "BOOT_FAIL", "REVOKED",
})  # fmt: skip
