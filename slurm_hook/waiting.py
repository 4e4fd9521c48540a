"""What dispatch knows of the jobs that wait: which are ours, whose excludes are whose, and what it did before.

The state file is private (it names users' jobs) and only a memory: the mark in each job's Comment is enough to tell our
excludes from the user's, so a lost file costs a little history, never correctness.
"""

from __future__ import annotations

import json
import os

from . import hostlist, jobs, snapshot
from .errors import SnapshotError
from .jobs import Job
from .light import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

FORMAT = 1
FORGET = 86400.0  # seconds after which a pipeline without living jobs is forgotten


class Tracked(Record):
    """One waiting job. Lists are folded.

    submit: of the attempt this is about (Slurm resets it on a requeue); user: the user's own excludes; ours: what we
    excluded last; before: what we had excluded until then, in case the update never arrived; confined: since when the
    job is confined to a pool, 0 not; rest: not to be confined again before this time; culprits: nodes that ended an
    earlier attempt; ran_on: nodes of the running attempt; restarts: requeues seen; requeued: by us; hands_off: the user
    changed the excludes after us; told: the admin knows why it wasn't requeued; nice: what we set; group: the pipeline.
    """

    submit: float = 0.0
    user: str = ""
    ours: str = ""
    before: str = ""
    confined: float = 0.0
    rest: float = 0.0
    culprits: str = ""
    ran_on: str = ""
    restarts: int = 0
    requeued: int = 0
    hands_off: bool = False
    told: bool = False
    nice: int = 0
    group: str = ""


def concerns(job: Job) -> bool:
    """A waiting job that dispatch may touch: marked, not of the control group, without nodes of its own choice, not held."""
    found = job.mark
    return (
        job.pending
        and found is not None
        and found.mode != "control"
        and not job.req_nodes
        and not job.reservation
        and not job.held
    )


def adopt(job: Job, known: Tracked | None) -> Tracked:
    """What we know of a waiting job, brought up to date with its excludes as they are now.

    A job seen for the first time: its mark says which excludes are the user's. Where the excludes are neither what we
    set nor what they were before, the user has changed them: all are the user's now, and we keep our hands off.
    """
    now_set = frozenset(jobs.nodes_of(job.excludes))
    if known is None:
        return _first_sight(job, now_set)
    if known.hands_off:
        return known._replace(submit=job.submit, user=job.excludes)
    user = frozenset(jobs.nodes_of(known.user))
    for ours in (known.ours, known.before):
        if now_set == user | frozenset(jobs.nodes_of(ours)):
            return known._replace(submit=job.submit, ours=ours)
    return known._replace(submit=job.submit, user=job.excludes, ours="", before="", confined=0.0, hands_off=True)


def _first_sight(job: Job, now_set: frozenset[str]) -> Tracked:
    found = job.mark
    if found is None or not found.decided:
        return Tracked(submit=job.submit, user=job.excludes)
    user = frozenset(jobs.nodes_of(found.excludes))
    if not user <= now_set:
        return Tracked(submit=job.submit, user=job.excludes, hands_off=True)
    ours = hostlist.fold(now_set - user)
    since = (job.submit or 1.0) if found.mode == "steer" and ours else 0.0
    return Tracked(submit=job.submit, user=hostlist.fold(user), ours=ours, before=ours, confined=since)


def excludes_of(tracked: Tracked) -> frozenset[str]:
    """The excludes as they ought to stand on the job now."""
    return frozenset(jobs.nodes_of(tracked.user)) | frozenset(jobs.nodes_of(tracked.ours))


class State(Record):
    """The state file. invested: run time in seconds by pipeline and job; seen: when a pipeline last had a living job;
    facts: what was last read of nodes' surroundings; fingerprint: of the queue at the last pass."""

    tracked: Mapping[int, Tracked] = {}
    invested: Mapping[str, Mapping[str, float]] = {}
    seen: Mapping[str, float] = {}
    facts: Mapping[str, Any] = {}
    fingerprint: str = ""
    last_full: float = 0.0


def read_state(path: str) -> State:
    """The state of the last pass; empty where there is none.

    Raises SnapshotError where the file is damaged: `discard` then sets it aside.
    """
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        if data.get("format") != FORMAT:
            raise ValueError(f"format {data.get('format')!r}")
        fields = frozenset(Tracked._fields)
        tracked = {int(k): Tracked(**{n: x for n, x in v.items() if n in fields}) for k, v in data["tracked"].items()}
        rest = {k: data[k] for k in ("invested", "seen", "facts", "fingerprint", "last_full")}
    except FileNotFoundError:
        return State()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise SnapshotError(f"{path}: can't be used ({err}); dispatch starts a new one") from err
    return State(tracked=tracked, **rest)


def write_state(path: str, state: State) -> None:
    """Write the state whole or not at all, readable by its owner only."""
    data = state._asdict()
    data["tracked"] = {str(job): _sparse(tracked) for job, tracked in state.tracked.items()}
    snapshot.write_json(os.path.dirname(path) or ".", os.path.basename(path), {"format": FORMAT, **data}, mode=0o600)


def discard(path: str) -> None:
    """Set a damaged state file aside, so that it can be looked at."""
    os.replace(path, f"{path}.damaged")


def _sparse(tracked: Tracked) -> dict[str, Any]:
    plain = Tracked()._asdict()
    return {k: v for k, v in tracked._asdict().items() if v != plain[k]}


def groups(found: Sequence[Job], tracked: Mapping[int, Tracked]) -> dict[int, str]:
    """The pipeline of each job: by its mark (`alice/llama`), else the jobs that dependencies tie together.

    Slurm forgets a dependency that is met, so what an earlier pass saw (`tracked`) counts too. A job that nothing ties
    to another is a pipeline of its own (`alice#12`).
    """
    by_id = {job.id: job for job in found}
    parent: dict[int, int] = {job.id: job.id for job in found}

    def root(job: int) -> int:
        while parent[job] != job:
            parent[job] = parent[parent[job]]
            job = parent[job]
        return job

    for job in found:
        for link in jobs.links(job.dependency):
            if link.job in by_id and by_id[link.job].user == job.user:
                high, low = sorted((root(job.id), root(link.job)), reverse=True)
                parent[high] = low
    names: dict[int, str] = {}
    for job in sorted(found, key=lambda j: j.id):
        given = _given_name(job, tracked.get(job.id))
        if given:
            names.setdefault(root(job.id), given)
    return {job.id: _given_name(job, None) or names.get(root(job.id), f"{job.user}#{root(job.id)}") for job in found}


def _given_name(job: Job, tracked: Tracked | None) -> str:
    found = job.mark
    if found is not None and found.pipeline:
        return f"{job.user}/{found.pipeline}"
    return tracked.group if tracked is not None else ""


def invest(
    state: State, found: Sequence[Job], group: Mapping[int, str], now: float
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Run time by pipeline and job, brought up to date; pipelines without living jobs are forgotten after a day."""
    invested = {name: dict(parts) for name, parts in state.invested.items()}
    seen = dict(state.seen)
    for job in found:
        name = group[job.id]
        ran = jobs.run_seconds(job, now)
        if ran > 0:
            # a requeued job keeps its id: each attempt has a key of its own
            invested.setdefault(name, {})[f"{job.id}@{job.start:.0f}"] = ran
        if job.state in ("PENDING", "RUNNING", "CONFIGURING", "SUSPENDED", "REQUEUED", "COMPLETING"):
            seen[name] = now
    dead = {name for name in {*invested, *seen} if now - seen.get(name, 0.0) > FORGET}
    return (
        {name: parts for name, parts in invested.items() if name not in dead},
        {name: when for name, when in seen.items() if name not in dead},
    )
