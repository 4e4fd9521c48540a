"""What dispatch knows of the jobs that wait: which are ours, whose excludes are whose, and what it did before.

The state file is private (it names users' jobs) and only a memory: the mark in each job's Comment is enough to tell our
excludes from the user's, so a lost file costs a little history, never correctness.
"""

from __future__ import annotations

import json
import os
import re

from ..common import hostlist
from ..common.errors import HostlistError, SnapshotError
from ..common.record import TYPE_CHECKING, Record
from ..published import snapshot
from ..slurm import jobs
from ..slurm.jobs import Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

FORMAT = 1
_RUN = re.compile(r"(?:^|_)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_BASE = re.compile(r"\d+")
LIVING = frozenset({"PENDING", "RUNNING", "CONFIGURING", "SUSPENDED", "REQUEUED", "COMPLETING"})
MAX_CHAINED = 1000  # jobs of one user's chains that live.json names
FORGET = 86400.0  # seconds after which a pipeline without living jobs is forgotten


class Tracked(Record):
    """One waiting job. Lists are folded.

    submit: of the attempt this is about (Slurm resets it on a requeue); user: the user's own excludes; ours: what we
    excluded last; before: what we had excluded until then, while our update isn't known to have arrived; confined: since
    when the job is confined to a pool, 0 not; rest: not to be confined again before this time; culprits: nodes that ended
    an earlier attempt; ran_on: nodes of the running attempt; restarts: requeues seen; requeued: by us; hands_off: the user
    changed the excludes after us; told: the admin knows why it wasn't requeued; nice: what we set.
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
        and job.readable
    )


def adopt(job: Job, known: Tracked | None) -> Tracked:
    """What we know of a waiting job, brought up to date with its excludes as they are now.

    A job seen for the first time: its mark says which excludes are the user's. Once our last update is known to have arrived
    any other excludes are the user's word (until then, what they were before is none): we keep our hands off.
    """
    now_set = frozenset(jobs.nodes_of(job.excludes))
    if known is None:
        return _first_sight(job, now_set)
    if known.hands_off:
        return known._replace(submit=job.submit, user=job.excludes)
    user = frozenset(jobs.nodes_of(known.user))
    for ours in (known.ours, known.before):
        if now_set == user | frozenset(jobs.nodes_of(ours)):
            return arrived(known._replace(submit=job.submit, ours=ours))
    return known._replace(submit=job.submit, user=job.excludes, ours="", before="", confined=0.0, hands_off=True)


def arrived(tracked: Tracked) -> Tracked:
    """The job has the excludes that we set."""
    return tracked._replace(before=tracked.ours)


def _first_sight(job: Job, now_set: frozenset[str]) -> Tracked:
    found = job.mark
    if found is None or not found.decided:
        return Tracked(submit=job.submit, user=job.excludes)
    user = _within(found.excludes, now_set)
    if user is None:
        return Tracked(submit=job.submit, user=job.excludes, hands_off=True)
    ours = hostlist.fold(now_set - user)
    since = (job.submit or 1.0) if found.mode == "steer" and ours else 0.0
    return Tracked(submit=job.submit, user=hostlist.fold(user), ours=ours, before=ours, confined=since)


def _within(folded: str, names: frozenset[str]) -> frozenset[str] | None:
    """A list that a mark holds, where all of it is among the names; None else. Anybody can write a monstrous one: it is
    expanded no further than to as many names."""
    try:
        found = frozenset(hostlist.expand(folded, len(names)))
    except HostlistError:
        return None
    return found if found <= names else None


class State(Record):
    """The state file. invested: run time in seconds by pipeline and job; seen: when a pipeline last had a living job;
    chains: pipeline of jobs that dependencies tied together when they were last seen, by id; facts: what was last read of
    nodes' surroundings; fingerprint: of the queue at the last pass; left: jobs for which the last pass had no time."""

    tracked: Mapping[int, Tracked] = {}
    invested: Mapping[str, Mapping[str, float]] = {}
    seen: Mapping[str, float] = {}
    chains: Mapping[int, str] = {}
    facts: Mapping[str, Any] = {}
    fingerprint: str = ""
    last_full: float = 0.0
    left: tuple[int, ...] = ()


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
        chains = {int(k): str(v) for k, v in data.get("chains", {}).items()}
    except FileNotFoundError:
        return State()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise SnapshotError(f"{path}: can't be used ({err}); dispatch starts a new one") from err
    return State(tracked=tracked, chains=chains, left=tuple(data.get("left", ())), **rest)


def write_state(path: str, state: State) -> None:
    """Write the state whole or not at all, readable by its owner only."""
    data = state._asdict()
    data["chains"] = {str(job): name for job, name in state.chains.items()}
    data["tracked"] = {str(job): _sparse(tracked) for job, tracked in state.tracked.items()}
    snapshot.write_json(os.path.dirname(path) or ".", os.path.basename(path), {"format": FORMAT, **data}, mode=0o600)


def discard(path: str) -> None:
    """Set a damaged state file aside, so that it can be looked at."""
    os.replace(path, f"{path}.damaged")


def _sparse(tracked: Tracked) -> dict[str, Any]:
    plain = Tracked()._asdict()
    return {k: v for k, v in tracked._asdict().items() if v != plain[k]}


def groups(found: Sequence[Job], chains: Mapping[int, str]) -> dict[int, str]:
    """The pipeline of each job: by its mark (`alice/llama`), else the jobs that dependencies tie together (`alice#12`).

    Slurm forgets a dependency that is met and a job that ended some minutes ago, so what was known before (`chains`)
    counts too. A job that nothing ties to another is a pipeline of its own.
    """
    forest = Forest(job.id for job in found)
    for one, other in _ties(found):
        forest.join(one, other)
    for first, *others in _by_name(found, chains):
        for other in others:
            forest.join(first, other)
    names: dict[int, str] = {}
    for job in sorted(found, key=lambda j: j.id):
        root = forest.root(job.id)
        names[root] = _better(names.get(root, ""), _known_name(job, chains))
    return {job.id: _marked_name(job) or names[forest.root(job.id)] or f"{job.user}#{forest.root(job.id)}" for job in found}


class Forest:
    """Jobs that belong together; the root of each tree is its smallest id."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.parent = {job: job for job in ids}

    def root(self, job: int) -> int:
        while self.parent[job] != job:
            self.parent[job] = self.parent[self.parent[job]]
            job = self.parent[job]
        return job

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.root(one), self.root(other)))
        self.parent[high] = low


def _ties(found: Sequence[Job]) -> Iterator[tuple[int, int]]:
    """Pairs of one user's jobs that belong together: one waits for the other, or they are parts of one, or of one workflow."""
    by_id = {job.id: job for job in found}
    parts: dict[int, Job] = {}  # tasks of an array and components of a het job by the number that users know
    for job in found:
        if job.array or job.het:
            base = int(_BASE.match(job.label)[0])  # type: ignore[index]
            yield parts.setdefault(base, job).id, job.id
    alike: dict[tuple[str, str], int] = {}
    for job in found:
        for link in jobs.links(job.dependency) if job.dependency else ():
            other = by_id.get(link.job) or parts.get(link.job)
            if other is not None and other.user == job.user:
                yield job.id, other.id
        if "singleton" in job.dependency or is_run(job.name):  # `singleton` waits for all of the same name
            alike[job.user, job.name] = job.id
    for job in found if alike else ():
        if (job.user, job.name) in alike:
            yield alike[job.user, job.name], job.id


def is_run(name: str) -> bool:
    """A name made up for one run of a workflow (snakemake's executor does so): all that bear it are of that run."""
    return _RUN.search(name) is not None


def _by_name(found: Iterable[Job], chains: Mapping[int, str]) -> Iterable[list[int]]:
    """Jobs that were seen in the same chain before."""
    named: dict[str, list[int]] = {}
    for job in found:
        name = _known_name(job, chains)
        if name and not _marked_name(job):
            named.setdefault(name, []).append(job.id)
    return named.values()


def _known_name(job: Job, chains: Mapping[int, str]) -> str:
    """The pipeline by mark, else by memory; the number may have been another user's job before."""
    before = chains.get(job.id, "")
    return _marked_name(job) or (before if before.startswith((f"{job.user}#", f"{job.user}/")) else "")


def _marked_name(job: Job) -> str:
    found = job.mark
    return f"{job.user}/{found.pipeline}" if found is not None and found.pipeline else ""


def _better(one: str, other: str) -> str:
    """Of two names of one chain: the one given by its owner, else that of the older job."""
    if not one or not other:
        return one or other
    return min(one, other, key=lambda name: ("/" not in name, int(name.rpartition("#")[2]) if "/" not in name else 0))


def numbers(chains: Mapping[int, str]) -> dict[str, int]:
    """Chains as live.json tells them: by id the number of the first job; those that their owners named are left out, and the
    older ones of a user who has very many: every steered submission reads the file."""
    told: dict[str, dict[str, int]] = {}
    for job, name in sorted(chains.items(), reverse=True):
        mine = told.setdefault(name.rpartition("#")[0], {})
        if "/" not in name and len(mine) < MAX_CHAINED:
            mine[str(job)] = int(name.rpartition("#")[2])
    return {job: first for mine in told.values() for job, first in mine.items()}


def remember(found: Iterable[Job], group: Mapping[int, str]) -> dict[int, str]:
    """What `groups` is to be told the next time: jobs that aren't a pipeline of their own alone."""
    return {job.id: group[job.id] for job in found if group[job.id] != f"{job.user}#{job.id}"}


def invest(
    state: State, found: Sequence[Job], group: Mapping[int, str], now: float
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Run time by pipeline and job, brought up to date; pipelines without living jobs are forgotten after a day."""
    invested = {name: dict(parts) for name, parts in state.invested.items()}
    seen = dict(state.seen)
    for old, name in _renamed(state, found, group):
        invested.setdefault(name, {}).update(invested.pop(old, {}))
    for job in found:
        name = group[job.id]
        ran = jobs.run_seconds(job, now)
        if ran > 0:
            # a requeued job keeps its id: each attempt has a key of its own
            invested.setdefault(name, {})[f"{job.id}@{job.start:.0f}"] = ran
        if job.state in LIVING:
            seen[name] = now
    dead = {name for name in {*invested, *seen} if now - seen.get(name, 0.0) > FORGET}
    return (
        {name: parts for name, parts in invested.items() if name not in dead},
        {name: when for name, when in seen.items() if name not in dead},
    )


def _renamed(state: State, found: Iterable[Job], group: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """Former and present name of chains that a new dependency, or a mark, has joined to others."""
    for job in found:
        before = state.chains.get(job.id) or f"{job.user}#{job.id}"
        if before in state.invested and before != group[job.id] and "/" not in before and before.startswith(f"{job.user}#"):
            yield before, group[job.id]
