"""The waiting stages and a pipeline's stages as rows: who waits how long, with which urgency. Pure."""

from __future__ import annotations

from collections import Counter

from ..common.config import Settings
from ..common.record import TYPE_CHECKING, Record
from ..dispatch import priority, tracking, updates
from ..dispatch.tracking import State
from ..published import mark
from ..slurm import jobs
from ..slurm.jobs import Job, PastJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Past(Record):
    """What slurmctld has forgotten. chains: pipeline of jobs that were tied together, by id; invested: seconds that each
    pipeline ran in attempts that slurmctld doesn't know any more."""

    chains: Mapping[int, str] = {}
    invested: Mapping[str, float] = {}


def past_of_user(records: Sequence[PastJob], found: Sequence[Job], user: str, seen: Mapping[int, int] | None = None) -> Past:
    """What one user's accounting tells: chains by what each submission named, and the attempts that ended.

    seen: what dispatch published of chains (by id the first job's), as dependencies in scripts aren't in accounting.
    """
    chains = chains_of(records, user, seen)
    group = tracking.groups(found, chains)
    current = {job.id: job for job in found if job.user == user}
    invested: dict[str, float] = {}
    for record in records:
        job = current.get(record.id)
        known = job is not None and not job.pending and record.end > job.start
        if record.end and not known:
            name = group[job.id] if job is not None else chains.get(record.id, f"{user}#{record.id}")
            invested[name] = invested.get(name, 0.0) + record.elapsed
    return Past(chains, invested)


def past_of_state(state: State, found: Sequence[Job], now: float) -> Past:
    """What dispatch remembers of everybody's jobs."""
    group = tracking.groups(found, state.chains)
    invested, _ = tracking.invest(state, found, group, now)
    current = {f"{job.id}@{job.start:.0f}" for job in found if jobs.run_seconds(job, now) > 0}
    sums = {name: sum(s for key, s in parts.items() if key not in current) for name, parts in invested.items()}
    return Past(state.chains, sums)


def chains_of(records: Sequence[PastJob], user: str, seen: Mapping[int, int] | None = None) -> dict[int, str]:
    """Pipeline of each of one user's past jobs, by mark or by what it was submitted to wait for; lone ones left out."""
    own = {record.id for record in records}
    ties = [(record.id, job) for record in records for job in record.after]
    ties += [(job, first) for job, first in (seen or {}).items() if job in own or first in own]
    runs: dict[str, int] = {}
    ties += [(record.id, runs.setdefault(record.name, record.id)) for record in records if tracking.is_run(record.name)]
    forest = tracking.Forest(own | {job for tie in ties for job in tie})
    for one, other in ties:
        forest.join(one, other)
    named: dict[int, str] = {}
    for record in records:
        given = mark.parse(record.comment)
        if given is not None and given.pipeline:
            named.setdefault(forest.root(record.id), f"{user}/{given.pipeline}")
    found = {job: named.get(forest.root(job), f"{user}#{forest.root(job)}") for job in forest.parent}
    size = Counter(found.values())
    return {job: name for job, name in found.items() if size[name] > 1 or "/" in name}


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
    found: Sequence[Job], settings: Settings, now: float, *, method: str, past: Past | None = None, user: str | None = None
) -> Queue:
    """All waiting stages by allocation priority, among them the user's own shown, or all where user is None.

    found: jobs with details where they wait. A waiting stage: pending and not held, its dependencies met or not; arrays
    count once.
    """
    known = past or Past()
    group = tracking.groups(found, known.chains)
    invested = _invested(found, group, now, known.invested)
    stages = [job for job in found if job.pending and not job.held]
    tasks = [
        priority.Waiting(
            f"{job.id:012d}", updates.waited(job, now), invested.get(group[job.id], 0.0), updates.demand_of(job, settings)
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
    still waits for; turn: it is what the pipeline waits for now; never: job ids whose end keeps it from ever starting."""

    job: str
    name: str
    state: str
    nodes: str
    width: int
    hours: float
    node_hours: float
    after: str = ""
    turn: bool = False
    never: str = ""


def pipeline_parts(
    name: str, found: Sequence[Job], past: Iterable[PastJob], user: str, now: float, *, seen: Mapping[int, int] | None = None
) -> tuple[Part, ...]:
    """Stages of one user's pipeline, by name or by the id of any job in its chain, in the order of their job ids.

    past: what accounting knows, for stages that slurmctld has forgotten.
    """
    past = list(past)
    chains = chains_of(past, user, seen)
    group = tracking.groups(found, chains)
    number = name.lstrip("#")
    keys = {f"{user}/{name}", f"{user}#{number}"}
    keys |= {group[job.id] for job in found if job.user == user and str(job.id) == number}
    keys |= {chains[int(number)]} if number.isdecimal() and int(number) in chains else set()
    current = {job.id: job for job in found if job.user == user and group[job.id] in keys}
    attempts: dict[int, list[PastJob]] = {}
    for record in past:
        if chains.get(record.id, f"{user}#{record.id}") in keys or record.id in current:
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
    given, links = job.mark, jobs.links(job.dependency)
    return Part(
        job=job.label, name=given.stage if given and given.stage else job.name, state=job.state,
        nodes="" if job.pending else job.node_list, width=job.nodes, hours=hours, node_hours=node_hours,
        after=_ids(links), turn=job.pending and not job.dependency, never=_ids(k for k in links if k.state == "failed"),
    )  # fmt: skip


def _ids(links: Iterable[jobs.Link]) -> str:
    return ",".join(str(link.job) for link in links)


_ENDED = frozenset({
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE", "BOOT_FAIL", "REVOKED",
})  # fmt: skip
