"""Dispatch at work: reads Slurm, publishes live.json, applies what `dispatch.plan` says and looks again afterwards.

A quiet pass costs three RPCs (squeue's two, and reservations, to whose nodes nobody may be confined); nodes are read when
the queue has changed, and else at every second pass. One dispatcher works, a second one leaves (BusyError). The state is
written before anything is changed, so that a pass killed at any moment leaves nothing behind that the next one doesn't
understand.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import time
from contextlib import contextmanager

from ..common.config import STEERING
from ..common.errors import BusyError, SlurmError, SnapshotError
from ..common.installed import disabled
from ..common.record import TYPE_CHECKING, Record
from ..published import decision_log, snapshot
from ..published.snapshot import Live, Reservation, Scores
from ..slurm import cluster, commands, jobs
from ..slurm.jobs import Job
from . import lost_marks, queue_heads, reorder, requeue, tracking
from . import updates as dispatch
from .tracking import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from ..common.config import Settings
    from .updates import Plan, Update

LOCK_WAIT = 60.0  # seconds that a release waits for a pass to end
FACTS_AGE = 300.0  # seconds after which partitions and topology are read again
BRIEFLY = 0.5  # seconds that a dispatcher tries to become the one: a guard looks at the lock for an instant
POOL_AGE = 60.0  # seconds during which a pool given counts as taken
_GONE = ("no longer pending", "already completing or completed", "Invalid job id", "already finished")


class Report(Record):
    """What a pass did. applied: jobs whose excludes changed; started: jobs that had begun before their update; left: updates
    for the next pass; reordered: jobs whose nice changed; problems: sentences for the admin."""

    waiting: int = 0
    applied: int = 0
    started: int = 0
    left: int = 0
    reordered: int = 0
    full: bool = False
    problems: tuple[str, ...] = ()


@contextmanager
def lock(state_path: str, suffix: str = ".lock", wait: float = 0.0) -> Iterator[None]:
    """Only one dispatcher on a state file at a time; `.pass.lock`: only one that changes jobs right now.

    Raises BusyError when another still holds it after `wait` seconds.
    """
    path = state_path + suffix
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError as err:
        folder = os.path.dirname(path) or "."
        raise SnapshotError(f"{path}: there is no folder {folder}; make it, or name another file with [dispatch] state") from err
    except OSError as err:
        raise SnapshotError(f"{path}: can't be opened ({err.strerror}); run dispatch as the service user") from err
    try:
        snapshot.hand_over(descriptor, os.path.dirname(path) or ".")
        _take(descriptor, path, time.monotonic() + wait)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: str, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BusyError(f"another dispatcher holds {path}; one is enough") from None
            time.sleep(0.05)
        else:
            return


def one_pass(settings: Settings, now: float | None = None) -> Report:
    """One pass, under the lock. Raises BusyError, SlurmError, SnapshotError."""
    with lock(settings["dispatch.state"], wait=BRIEFLY):
        return locked_pass(settings, time.time() if now is None else now)


def locked_pass(settings: Settings, now: float, publish: bool = True) -> Report:
    """One pass of whoever holds the dispatcher's lock; publish: live.json is written."""
    with lock(settings["dispatch.state"], ".pass.lock", LOCK_WAIT):
        return _pass(settings, now, publish)


def _pass(settings: Settings, now: float, publish: bool) -> Report:
    path, problems = settings["dispatch.state"], []
    try:
        state = tracking.read_state(path)
    except SnapshotError as err:
        problems.append(str(err))
        tracking.discard(path)
        state = State()
    if disabled(settings) or (settings["steer.mode"] not in STEERING and not settings["dispatch.requeue"]):
        return _switched_off(settings, state)._replace(problems=tuple(problems))
    found = jobs.load()
    full = _is_news(state, found, settings, now)
    facts = _facts(state.facts, now)
    shown = commands.run(["scontrol", "-a", "-o", "show", "node"]) if full else ""
    nodes = cluster.parse_nodes(shown)
    facts["usable"] = queue_heads.usable_in(nodes) if nodes else facts.get("usable", {})
    group = tracking.groups(found, state.chains)
    live = _live(found, facts, nodes, now)._replace(chains=tracking.numbers(tracking.remember(found, group)))
    if publish:  # submissions need it whatever becomes of the rest
        snapshot.write_json(settings["publish.path"], snapshot.LIVE_NAME, snapshot.live_to_json(live))
    if full:
        found = _with_details(found)
    state = _remember(state, found, facts, now, full=full, group=group)
    if not full:
        tracking.write_state(path, state)
        return Report(waiting=_count(found), problems=tuple(problems))
    world = _world(settings, found, nodes, live, state)
    if settings["dispatch.requeue"]:
        state, said = _requeue(world, state, requeue.parse_faults(shown))
        problems += said
    if settings["steer.mode"] not in STEERING:
        tracking.write_state(path, state)
        return _switched_off(settings, state)._replace(full=True, problems=tuple(problems))
    state = _found_again(state, found, now)
    plan = dispatch.plan(world, state.tracked, state.left)
    report = _carry_out(settings, plan, state)
    report = report._replace(reordered=_reorder(world, report))
    return report._replace(waiting=_count(found), full=True, problems=(*problems, *report.problems))


def _count(found: Sequence[Job]) -> int:
    return sum(tracking.concerns(job) for job in found)


def _is_news(state: State, found: Sequence[Job], settings: Settings, now: float) -> bool:
    """The queue has changed, there are jobs to look at again, or nobody has looked for long."""
    late = abs(now - state.last_full) >= 1.9 * settings["dispatch.period"]
    return late or bool(state.left) or fingerprint(found) != state.fingerprint or any(t.confined for t in state.tracked.values())


def _with_details(found: Sequence[Job]) -> list[Job]:
    """Details filled in for jobs of ours that wait."""
    known = jobs.details(job.id for job in found if tracking.concerns(job))
    return [job._replace(details=known[job.id]) if job.id in known else job for job in found]


def fingerprint(found: Sequence[Job]) -> str:
    """Changes whenever a job comes, goes, starts, or is changed in what matters here.

    Not with each priority or reason: these change by themselves while a job waits, and are published at each pass anyway.
    """
    digest = hashlib.sha256()
    for job in sorted(found, key=lambda j: (j.id, j.label)):
        matters = (job.id, job.label, job.state, job.submit, job.held, job.eligible, job.holds, job.excludes, job.req_nodes)
        digest.update(repr(matters).encode())
    return digest.hexdigest()


def _facts(old: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Reservations, and partitions and topology, which are read again only now and then."""
    facts = {**old, "reservations": parse_reservations(commands.run(["scontrol", "-o", "show", "reservation"]))}
    if abs(now - facts.get("read", 0.0)) > FACTS_AGE:
        config = parse_config(commands.run(["scontrol", "show", "config"]))
        facts["partitions"] = parse_partitions(commands.run(["scontrol", "-a", "-o", "show", "partition"]), config)
        facts["topology"] = _topology()
        facts["cluster"] = config.get("ClusterName", "")
        facts["read"] = now
    return facts


def _topology() -> str:
    code, out, _ = commands.attempt(["scontrol", "show", "topology"])
    return "block" if code == 0 and "BlockName=" in out else "tree" if code == 0 and "SwitchName=" in out else ""


def parse_config(text: str) -> dict[str, str]:
    """Settings of `scontrol show config`."""
    return {key.strip(): value.strip() for key, equals, value in (line.partition("=") for line in text.split("\n")) if equals}


def parse_partitions(text: str, config: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Partitions of `scontrol -o show partition` as live.json holds them; config: what counts where a partition is silent."""
    found = {}
    for line in text.split("\n"):
        if line.startswith("PartitionName="):
            field = dict(word.partition("=")[::2] for word in line.split())
            found[field["PartitionName"]] = {
                "nodes": "" if field.get("Nodes", "(null)") == "(null)" else field["Nodes"],
                "default": field.get("Default") == "YES",
                "max_time": jobs.parse_limit(field.get("MaxTime", "")),
                "state": field.get("State", ""),
                **({"max_nodes": int(field["MaxNodes"])} if field.get("MaxNodes", "").isdigit() else {}),
                **({"tier": int(field["PriorityTier"])} if field.get("PriorityTier", "1") != "1" else {}),
                **_unasked(field, config or {}),
            }
    return found


def _unasked(field: Mapping[str, str], config: Mapping[str, str]) -> dict[str, Any]:
    """What jobs of a partition get without asking: whole nodes, and memory (MiB) and CPUs by default.

    idle_only: a node where something runs may have room and still take no job of it.
    """
    capped = any(field.get(key, "UNLIMITED") != "UNLIMITED" for key in ("MaxCPUsPerNode", "MaxCPUsPerSocket"))
    facts: dict[str, Any] = {"mem": _default_memory(field) or _default_memory(config) or ("all", 0)}
    if capped or field.get("OverSubscribe") == "EXCLUSIVE" or "YES" in (field.get("ExclusiveUser"), field.get("ExclusiveTopo")):
        facts["idle_only"] = True
    for name, key in (("DefCpuPerGPU", "cpus_per_gpu"), ("DefMemPerGPU", "mem_per_gpu")):
        told = [words.get("JobDefaults", "").partition(f"{name}=")[2].partition(",")[0] for words in (field, config)]
        number = next(filter(str.isdigit, told), "")
        facts.update({key: int(number)} if number else {})
    return facts


def _default_memory(words: Mapping[str, str]) -> tuple[str, int] | None:
    for key, kind in (("DefMemPerCPU", "cpu"), ("DefMemPerNode", "node")):
        if words.get(key, "").isdigit() and int(words[key]):
            return kind, int(words[key])
    return None


def parse_reservations(text: str) -> list[dict[str, Any]]:
    """Reservations of `scontrol -o show reservation` as live.json holds them; times must be epoch seconds."""
    found = []
    for line in text.split("\n"):
        if not line.startswith("ReservationName="):
            continue
        # the first of each name counts: a comment is free text and comes later
        field = dict(word.partition("=")[::2] for word in reversed(line.split()))
        start, end = field.get("StartTime", ""), field.get("EndTime", "")
        found.append({
            "name": field["ReservationName"], "nodes": list(jobs.nodes_of(field.get("Nodes", ""))),
            "start": float(start) if start.isdigit() else 0.0, "end": float(end) if end.isdigit() else 4e9,
        })  # fmt: skip
    return found


def _live(found: Sequence[Job], facts: Mapping[str, Any], nodes: Mapping[str, cluster.Node], now: float) -> Live:
    pools = (*(dispatch.recent_pools(found, nodes, now, POOL_AGE) if nodes else ()), *queue_heads.named(found, now))
    reservations = tuple(Reservation(r["name"], r["start"], r["end"], tuple(r["nodes"])) for r in facts["reservations"])
    room = queue_heads.Room(facts["usable"], reservations, now)
    return Live(
        cluster=facts["cluster"], created=now, reservations=reservations, partitions=facts["partitions"],
        topology=facts["topology"], queue_head=queue_heads.queue_head(found, room), pools=pools,
    )  # fmt: skip


def _remember(
    state: State, found: Sequence[Job], facts: Mapping[str, Any], now: float, *, full: bool, group: Mapping[int, str]
) -> State:
    invested, seen = tracking.invest(state, found, group, now)
    return state._replace(
        invested=invested, seen=seen, chains=tracking.remember(found, group), facts=facts, fingerprint=fingerprint(found),
        last_full=now if full else state.last_full,
    )  # fmt: skip


def _world(
    settings: Settings, found: Sequence[Job], nodes: Mapping[str, cluster.Node], live: Live, state: State
) -> dispatch.World:
    group = tracking.groups(found, state.chains)
    sums = {name: sum(parts.values()) for name, parts in state.invested.items()}
    return dispatch.World(
        jobs=found, nodes=nodes, scores=_scores(settings), settings=settings, live=live, now=live.created,
        period=settings["dispatch.period"], seed=lambda: random.SystemRandom().getrandbits(48),
        invested={job.id: sums.get(group[job.id], 0.0) for job in found}, clock=time.process_time,
    )  # fmt: skip


def _scores(settings: Settings) -> Scores:
    """The published scores; scores of no age at all where there are none, so that nothing of ours stays on a job."""
    try:
        return snapshot.read_scores(settings["publish.path"], trusted_uids=(os.getuid(),))
    except SnapshotError:
        return Scores(id="", cluster="", created=0.0, as_of=0.0, method="attributed", settings={}, nodes={})


def _carry_out(settings: Settings, plan: Plan, state: State) -> Report:
    """Write down what is going to be done, do it, and look at the jobs again."""
    tracked = dict(plan.tracked)
    for update in plan.updates:
        tracked[update.job.id] = update.tracked
    path = settings["dispatch.state"]
    state = state._replace(left=plan.unseen)
    tracking.write_state(path, state._replace(tracked=tracked))
    outcome = [(update, set_excludes(update.job, update.excludes)) for update in plan.updates]
    problems = [f"job {u.job.id}: {said}" for u, (done, said) in outcome if not done and said]
    for update, (done, _) in outcome:
        if done and update.decision is not None:
            given = {"job": update.job.id, "why": update.why, "partition": update.job.partition[:64]}
            decision_log.send(decision_log.line(update.decision, by="dispatch", applied=True, **given))
    tracked.update((u.job.id, tracking.arrived(u.tracked)) for u, (done, _) in outcome if done)
    if plan.updates:
        problems += _look_again([update for update, (done, _) in outcome if done])
        tracking.write_state(path, state._replace(tracked=tracked, fingerprint=""))
    done_count = sum(done for _, (done, _) in outcome)
    started = sum(not done and not said for _, (done, said) in outcome)
    return Report(applied=done_count, started=started, left=plan.left + len(plan.unseen), problems=tuple(problems))


def _found_again(state: State, found: Sequence[Job], now: float) -> State:
    """With the jobs whose mark is gone; where accounting doesn't answer, it is asked again some minutes later."""
    wanted = lost_marks.candidates(found, state.tracked)
    if not wanted or abs(now - state.facts.get("unanswered", 0.0)) < FACTS_AGE:
        return state
    try:
        return state._replace(tracked={**state.tracked, **lost_marks.search(wanted)})
    except SlurmError:
        return state._replace(facts={**state.facts, "unanswered": now})


def _reorder(world: dispatch.World, report: Report) -> int:
    """Set nice by allocation priority, or back to 0 where reordering is off; within what the pass may still change."""
    path = world.settings["dispatch.state"]
    state = tracking.read_state(path)
    wanted = world.settings["dispatch.reorder"]
    if not wanted and not any(tracked.nice for tracked in state.tracked.values()):
        return 0
    # read again: a job that was held meanwhile must not be touched
    details = {job.id: job.details for job in world.jobs}
    found = [job._replace(details=details.get(job.id)) for job in jobs.load()]
    ours = dispatch.in_order(world, [job for job in found if tracking.concerns(job)])
    changes = reorder.resets(found, state.tracked)
    if wanted:
        changes = reorder.nices(reorder.candidates(ours, state.tracked), world.settings["dispatch.nice_range"])
    tracked = dict(state.tracked)
    for job, nice in changes[: max(0, world.settings["dispatch.max_updates"] - report.applied)]:
        if set_nice(job, nice):
            tracked[job.id] = tracked.get(job.id, tracking.Tracked())._replace(nice=nice)
    if changes:
        tracking.write_state(path, state._replace(tracked=tracked, fingerprint=""))
    return len(changes)


def set_nice(job: Job, nice: int) -> bool:
    """Set a waiting job's nice; False where it has started or gone."""
    code, _, _ = commands.attempt(["scontrol", "update", f"JobId={job.id}", f"Nice={nice}"])
    return code == 0


def set_excludes(job: Job, excludes: str) -> tuple[bool, str]:
    """Set ExcNodeList, and nothing else. (True, "") done; (False, "") it has started or ended; else what Slurm said.

    Slurm refuses this on a running job, harmlessly; of an array it changes the tasks that still wait.
    """
    code, _, err = commands.attempt(["scontrol", "update", f"JobId={job.id}", f"ExcNodeList={excludes}"])
    if code == 0:
        return True, ""
    if job.array and ("No error" in err or _rest_took(job, excludes)):
        return True, ""
    return (False, "") if any(word in err for word in _GONE) else (False, err.strip()[:200] or f"exit code {code}")


def _rest_took(job: Job, excludes: str) -> bool:
    """True where an array's waiting rest has these excludes: 24.11 tells only of the tasks that it could not change."""
    wanted = set(jobs.nodes_of(excludes))
    return any(found.id == job.id and found.pending and set(jobs.nodes_of(found.excludes)) == wanted for found in jobs.load())


def _look_again(updates: Sequence[Update]) -> list[str]:
    """The state after our updates: a job that Slurm holds because of one gets its former excludes back."""
    problems = []
    now_found = {job.id: job for job in jobs.load()}
    for update in updates:
        job = now_found.get(update.job.id)
        if job is None:
            continue
        if job.pending and job.priority == 0 and update.job.priority > 0 and job.reason == "BadConstraints":
            set_excludes(job, update.tracked.user)
            problems.append(f"job {job.id}: Slurm held it for its excludes {update.excludes}; they are taken off again")
        if job.state == "RUNNING" and not job.array and job.nodes < update.job.nodes:
            problems.append(f"job {job.id}: runs on {job.nodes} nodes and asked for {update.job.nodes}")
    return problems


def _requeue(world: dispatch.World, state: State, faults: Mapping[str, requeue.Fault]) -> tuple[State, list[str]]:
    """Requeue what died of its node, the culprit excluded. Slurm lets a requeued job wait for two minutes: time enough."""
    tracked, said = dict(state.tracked), []
    for item in requeue.requeues(world, state.tracked, faults):
        job = item.job
        if item.obstacle:
            tracked[job.id] = item.tracked._replace(told=True)
            said.append(f"job {job.label} died of its node but isn't requeued: {item.obstacle}")
            decision_log.send(decision_log.event("dispatch", "leave", job.id, reason=item.obstacle[:200]))
            continue
        code, _, err = commands.attempt(["scontrol", "requeue", str(job.id)])
        if code != 0:
            tracked[job.id] = item.tracked._replace(told=True)
            said.append(f"job {job.label} died of its node and Slurm doesn't requeue it: {err.strip()[:200]}")
            continue
        tracked[job.id] = requeue.after(item)
        done, why = set_excludes(job, item.excludes) if item.culprits else (True, "")
        tracked[job.id] = tracking.arrived(tracked[job.id]) if done else tracked[job.id]
        said.append(requeue.words(item))
        decision_log.send(decision_log.event("dispatch", "requeue", job.id, excludes=item.culprits))
        said += [] if done else [f"job {job.label}: {why or 'it has already started'}"]
    return state._replace(tracked=tracked), said


def _switched_off(settings: Settings, state: State) -> Report:
    """Switched off, by mode or by the disable file: what dispatch had excluded before is taken off, then nothing is done.

    Culprits of jobs that were requeued stay excluded as long as requeueing is on.
    """
    keep = {job for job, t in state.tracked.items() if t.requeued} if settings["dispatch.requeue"] else set()
    if disabled(settings):
        keep = set()
    if not any(t.nice or (t.ours and not (job in keep and t.ours == t.culprits)) for job, t in state.tracked.items()):
        return Report()
    return _release_all(settings, state, keep)


def release(settings: Settings, by: str = "dispatch") -> Report:
    """Take all our excludes off waiting jobs; what `workhorse disable` and uninstall call. Waits for a running pass.

    A dispatcher that is still on would put them back: switch it off first.
    """
    path = settings["dispatch.state"]
    with lock(path, ".pass.lock", LOCK_WAIT):
        try:
            state = tracking.read_state(path)
        except SnapshotError:
            state = State()
        return _release_all(settings, state, by=by)


def _release_all(settings: Settings, state: State, keep: Iterable[int] = (), by: str = "dispatch") -> Report:
    """No limit on updates here: an admin who switches us off wants us gone."""
    kept, found = set(keep), jobs.load()
    state = _found_again(state._replace(facts={}), found, time.time())._replace(facts=state.facts)
    for job, nice in reorder.resets(found, state.tracked):
        set_nice(job, nice)
    updates = dispatch.releases(found, state.tracked, kept)
    outcome = [(update, set_excludes(update.job, update.excludes)) for update in updates]
    problems = tuple(f"job {u.job.id}: {said}" for u, (done, said) in outcome if not done and said)
    for update, (done, _) in outcome:
        if done:
            decision_log.send(decision_log.event(by, "release", update.job.id))
    if os.path.isdir(os.path.dirname(settings["dispatch.state"]) or "."):
        tracked = {job: t for job, t in state.tracked.items() if job in kept}
        tracked.update({u.job.id: tracking.arrived(u.tracked) for u, (done, _) in outcome if done and u.job.id in kept})
        tracking.write_state(settings["dispatch.state"], state._replace(tracked=tracked, fingerprint=""))
    return Report(applied=sum(done for _, (done, _) in outcome), full=True, problems=problems)
