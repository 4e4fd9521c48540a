"""Dispatch, the decision of one pass: which excludes each waiting stage should have now. Pure, no clock, no Slurm.

A stage that could start now may be confined to a drawn pool, for one pass; what didn't start by the next is widened
again. All others keep the few excludes of mode avoid, brought up to date: a node that went down, a suspect that is
none any more, or an exclude that a job can't spare drops out. Nothing but ExcNodeList is ever changed.
"""

from __future__ import annotations

from ..common import hostlist
from ..common.config import Settings
from ..common.record import TYPE_CHECKING, Record
from ..decision import decide, feasibility
from ..decision.decide import Case, Decision
from ..decision.directives import Directives
from ..published import mark
from ..published.mark import Mark
from ..published.snapshot import Live, Scores
from ..slurm import jobs
from ..slurm.cluster import Node
from ..slurm.jobs import Job
from ..slurm.request import Request
from . import priority, queue_heads, tracking
from .budget import Budget
from .tracking import Tracked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

REST_PASSES = 10  # passes during which a stage that didn't start in its pool is not confined again
LOOKS = 300_000  # nodes looked at for draws in one pass: the rest of the draws is for the next passes
WIDEN, STEER, CULPRIT, REFRESH, RELEASE = "widen", "steer", "culprit", "refresh", "release"
USERS = 4  # whose updates a pass has room for, however many one of them needs
_ORDER = {RELEASE: 0, WIDEN: 1, CULPRIT: 2, STEER: 3, REFRESH: 4}  # what comes first where the updates of a pass are limited
_NOT_SHARED = {"NO": "exclusive", "USER": "user", "MCS": "mcs", "TOPO": "topo"}  # squeue's words for --exclusive=…
_RUNS = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED"})
_BROKEN = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "NOT_RESPONDING", "UNKNOWN"})


class World(Record):
    """Everything that one pass rests on. jobs: all that slurmctld knows, details filled in for those that wait; nodes:
    live; live: what this pass publishes; period: seconds between passes; seed: gives a new seed at each call; clock: seconds
    that this process has worked (0.0 of `float`: time doesn't count)."""

    jobs: Sequence[Job]
    nodes: Mapping[str, Node]
    scores: Scores
    settings: Settings
    live: Live
    now: float
    period: float
    seed: Callable[[], int]
    invested: Mapping[int, float] = {}
    clock: Callable[[], float] = float


class Update(Record):
    """An ExcNodeList to set: the whole list, folded, and what brought it about."""

    job: Job
    excludes: str
    why: str
    tracked: Tracked
    decision: Decision | None = None


class Plan(Record):
    """updates: in the order to apply; tracked: of all jobs of ours, as it stands before any update; left: updates that
    didn't fit this pass; unseen: jobs for which it had no time."""

    updates: tuple[Update, ...]
    tracked: Mapping[int, Tracked]
    left: int = 0
    unseen: tuple[int, ...] = ()


def plan(world: World, known: Mapping[int, Tracked], left: Iterable[int] = ()) -> Plan:
    """The updates of one pass, at most `dispatch.max_updates` of them. left: jobs that earlier passes didn't come to.

    A user's jobs that take longer than one user's may are left to the next pass; confined ones and those left come first.
    """
    turn = {job: number for number, job in enumerate(left)}

    def in_turn(job: Job, tracked: Mapping[int, Tracked]) -> tuple[bool, int]:
        return not (job.id in tracked and tracked[job.id].confined), turn.get(job.id, len(turn))

    by_turn = sorted(world.jobs, key=lambda job: in_turn(job, known))
    tracked, updates, unseen = follow(by_turn, known, world.nodes, Budget(world.period, world.clock))
    skip = {*unseen, *(job for job, found in tracked.items() if found.hands_off)}
    ours = in_order(world, [job for job in world.jobs if tracking.concerns(job) and job.id not in skip])
    passing, budget, undecided = _Pass(world, tracked), Budget(world.period, world.clock), []
    for job in sorted(ours, key=lambda job: in_turn(job, tracked)):
        if budget.allows(job.user):
            updates += passing.consider(job)
            budget.charge(job.user)
        else:
            undecided.append(job.id)
    most = world.settings["dispatch.max_updates"]
    updates = shared_out(updates, most // USERS)
    return Plan(tuple(updates[:most]), tracked, max(0, len(updates) - most), (*undecided, *unseen))


def shared_out(updates: Iterable[Update], each: int) -> list[Update]:
    """The most urgent first, but of each user so many before anybody's rest."""
    count: dict[str, int] = {}
    keys = []
    for update in sorted(updates, key=lambda update: _ORDER[update.why]):
        count[update.job.user] = count.get(update.job.user, 0) + 1
        keys.append((count[update.job.user] > each, update))
    return [update for _, update in sorted(keys, key=lambda key: key[0])]


def follow(
    found: Iterable[Job], known: Mapping[int, Tracked], nodes: Mapping[str, Node], budget: Budget
) -> tuple[dict[int, Tracked], list[Update], list[int]]:
    """What is known of each job of ours now, updates of those that are ours no more, and the ids of jobs that the budget had
    nothing left for: of these it is what it was."""
    tracked: dict[int, Tracked] = {}
    updates: list[Update] = []
    unseen: list[int] = []
    for job in found:
        if job.mark is None and job.id not in known:
            continue
        if budget.allows(job.user):
            now_known, stranded = _followed(job, known.get(job.id), nodes)
            updates += stranded
            budget.charge(job.user)
        else:
            now_known = known.get(job.id)
            unseen.append(job.id)
        if now_known is not None:
            tracked[job.id] = now_known
    return tracked, updates, unseen


def _followed(job: Job, before: Tracked | None, nodes: Mapping[str, Node]) -> tuple[Tracked | None, list[Update]]:
    """New ones are adopted, running ones remembered, failed nodes of requeued ones noted."""
    if tracking.concerns(job):
        return _with_culprits(job, tracking.adopt(job, before), nodes), []
    if job.state in _RUNS and (before is not None or (job.mark is not None and job.mark.mode != "control")):
        remembered = tracking.adopt(job, None) if before is None else before
        return remembered._replace(ran_on=job.node_list, confined=0.0), []
    if job.pending:
        return before, _stranded(job, before)
    return (before if job.state in ("CONFIGURING", "REQUEUED", "NODE_FAIL", "FAILED") else None), []


def _stranded(job: Job, before: Tracked | None) -> list[Update]:
    """A confined job that is none of ours to decide about any more, as it is held, or its comment, nodes or reservation were
    changed since: it is widened, and left alone from then on."""
    tracked = tracking.adopt(job, before)
    if not tracked.confined or tracked.hands_off:
        return []
    return [Update(job, tracked.user, WIDEN, tracked._replace(confined=0.0, ours="", before=tracked.ours))]


def _with_culprits(job: Job, tracked: Tracked, nodes: Mapping[str, Node]) -> Tracked:
    """A job that waits again after it ran: nodes of that attempt that are broken now ended it."""
    if not tracked.ran_on:
        return tracked
    broken = [name for name in jobs.nodes_of(tracked.ran_on) if name in nodes and is_broken(nodes[name])]
    culprits = {*jobs.nodes_of(tracked.culprits), *broken}
    return tracked._replace(ran_on="", restarts=tracked.restarts + 1, culprits=hostlist.fold(culprits))


def is_broken(node: Node) -> bool:
    """Down, failing, draining or not answering: the state of a node that has just ended a job."""
    return node.state in _BROKEN or bool(node.flags & _BROKEN)


def in_order(world: World, ours: Sequence[Job]) -> list[Job]:
    """Descending allocation priority (step 11 of the method)."""
    tasks = [
        priority.Waiting(
            f"{job.id:012d}", waited(job, world.now), world.invested.get(job.id, 0.0), demand_of(job, world.settings)
        )
        for job in ours
    ]
    smoothing = 0.0 if world.scores.method == "published" else priority.SMOOTHING
    return [ours[i] for i in priority.placing_order(tasks, smoothing)]


def waited(job: Job, now: float) -> float:
    """Seconds since the stage's dependencies were met; 0 while they aren't."""
    if not job.eligible:
        return 0.0
    since = job.details.eligible if job.details is not None and job.details.eligible > 0 else job.submit
    return max(0.0, now - since)


def demand_of(job: Job, settings: Settings) -> float:
    """Demand of the whole job in MiB of the capacity resource: its own word, else what it asks of Slurm."""
    if job.mark is not None and job.mark.demand:
        return job.mark.demand
    asked = job.details or jobs.Details()
    resource = settings["scoring.capacity_resource"]
    if asked.gpus and resource in ("auto", "gpu_mem"):
        return asked.gpus * float(settings["scoring.gpu_mem"].get("default", 0))
    return asked.mem


def request_of(job: Job, tracked: Tracked) -> Request:
    """What decide needs of a job that is already submitted. Slurm has worked out its totals; they are spread evenly."""
    node, found = jobs.per_node(job), job.mark or Mark()
    fixed = node.nodes_max == job.nodes
    return Request(
        nodes_min=job.nodes, nodes_max=job.nodes if fixed else max(node.nodes_max, job.nodes + 1), ntasks_per_node=1,
        cpus_per_task=max(1, node.cpus), mem_node=node.mem or None, gpus_per_node=node.gpus, gpu_type=node.gpu_type,
        exclusive=_NOT_SHARED.get(job.sharing, ""), partition=job.partition, account=job.account, qos=job.qos,
        constraint=job.features, exclude=(*jobs.nodes_of(tracked.user), *jobs.nodes_of(tracked.culprits)), minutes=job.minutes,
        array=job.label if job.array else "", comment=_asking(found), switches=node.switches, odd=node.odd, inner=node.inner,
    )  # fmt: skip


def _asking(found: Mark) -> str:
    """A mark that asks: decide leaves alone what is marked as decided."""
    return mark.text(Mark(pipeline=found.pipeline, stage=found.stage, demand=found.demand, checkpoint=found.checkpoint))


class _Pass:
    """One pass over the waiting jobs: pools given in it are taken for those that follow."""

    def __init__(self, world: World, tracked: dict[int, Tracked]) -> None:
        self.world, self.tracked = world, tracked
        self.pools: list[tuple[float, str]] = []
        self.placed: set[int] = set()
        self.heads = queue_heads.heads(
            world.jobs, queue_heads.Room(queue_heads.usable_in(world.nodes), world.live.reservations, world.now)
        )
        self.components: dict[str, list[Job]] = {}
        for job in world.jobs:
            if job.het and job.pending:
                self.components.setdefault(_base(job), []).append(job)
        self.avoided: dict[tuple[object, ...], Decision] = {}
        self.memo: dict[object, object] = {}
        self.folded: dict[frozenset[str], str] = {}
        self.looks = LOOKS

    def consider(self, job: Job) -> list[Update]:
        """The update of one job, if it needs one."""
        tracked = self.tracked[job.id]
        if tracked.confined:
            if not overdue(job, tracked, self.world):
                return []
            rest = self.world.now + REST_PASSES * self.world.period
            return self._update(job, tracked._replace(confined=0.0, rest=rest), self._avoid(job, tracked), WIDEN)
        if self._may_confine(job, tracked):
            drawn = self._steer(job, tracked)
            if drawn is not None:
                return self._update(job, tracked._replace(confined=self.world.now), drawn, STEER)
        return self._update(job, tracked, self._avoid(job, tracked), CULPRIT if tracked.culprits else REFRESH)

    def _may_confine(self, job: Job, tracked: Tracked) -> bool:
        return (
            self.world.settings["steer.mode"] == "steer"
            and job.holds
            and not (job.array or job.het)
            and job.details is not None
            and 0 < job.details.eligible <= self.world.now
            and job.details.nodes_max == job.nodes
            and tracked.rest <= self.world.now
            and self.looks > 0
            and not self._waits_behind(job)
        )

    def _waits_behind(self, job: Job) -> bool:
        """A job of at least this priority waits for nodes of the partition and has no pool of its own."""
        return any(self._waits_in(part, job) for part in job.partition.split(","))

    def _waits_in(self, part: str, job: Job) -> bool:
        higher = self.world.live.tier(part) > self.world.live.tier(job.partition)
        return any(
            other.id != job.id and (higher or other.priority >= job.priority) and other.id not in self.placed
            for other in self.heads.get(part, ())
        )

    def _steer(self, job: Job, tracked: Tracked) -> Decision | None:
        self.looks -= len(self.world.nodes)
        decision = self._decide(job, tracked, "steer")
        if decision.action != "steer":
            return None
        self.placed.add(job.id)
        self.pools.append((self.world.now, hostlist.fold(decision.pool)))
        return decision

    def _avoid(self, job: Job, tracked: Tracked) -> Decision:
        """Decisions of mode avoid are the same for jobs that ask for the same."""
        # how long a job is matters only to reservations
        minutes = job.minutes if self.world.live.reservations else None
        requests = self._requests(job, tracked)
        key = tuple(request._replace(comment="", account="", qos="", minutes=minutes) for request in requests)
        if key not in self.avoided:
            self.avoided[key] = self._decide(job, tracked, "avoid")
        return self.avoided[key]

    def _requests(self, job: Job, tracked: Tracked) -> tuple[Request, ...]:
        """What the job asks for, and after it the other components, which must find room at the same time."""
        others = [other for other in self.components.get(_base(job), ()) if other.id != job.id]
        known = [self.tracked.get(other.id, Tracked(user=other.excludes)) for other in others]
        return (request_of(job, tracked), *map(request_of, others, known))

    def _decide(self, job: Job, tracked: Tracked, mode: str) -> Decision:
        world = self.world
        pools = tuple(pool for pool in world.live.pools if pool[1] not in _own_pool(job, world)) + tuple(self.pools)
        others = {part: 1 for part in self.heads if mode == "steer" and self._waits_in(part, job)}
        live = world.live._replace(queue_head=others, pools=pools)
        case = Case(
            requests=self._requests(job, tracked), directives=Directives(), scores=world.scores, settings=world.settings,
            nodes=world.nodes, live=live, now=world.now, seed=world.seed(), mode=mode, memo=self.memo,
        )  # fmt: skip
        return decide.decide(case)

    def _update(self, job: Job, tracked: Tracked, decision: Decision, why: str) -> list[Update]:
        """The update that brings the job's excludes to what was decided; none where they stand so already."""
        user = frozenset(jobs.nodes_of(tracked.user))
        ours = (frozenset(decision.excludes) | self._spared(job, tracked, decision)) - user
        if user | ours == frozenset(jobs.nodes_of(job.excludes)):
            self.tracked[job.id] = tracked
            return []
        new = tracked._replace(ours=self._fold(ours), before=self.tracked[job.id].ours)
        return [Update(job, self._fold(user | ours), why, new, decision)]

    def _fold(self, names: frozenset[str]) -> str:
        if names not in self.folded:
            self.folded[names] = hostlist.fold(names)
        return self.folded[names]

    def _spared(self, job: Job, tracked: Tracked, decision: Decision) -> frozenset[str]:
        """Culprits of an earlier attempt, where the job can do without them."""
        culprits = frozenset(jobs.nodes_of(tracked.culprits))
        if not culprits:
            return culprits
        known = {*culprits, *decision.excludes, *jobs.nodes_of(tracked.user)}
        parts = frozenset(job.partition.split(","))
        left = sum(n.usable and name not in known and not parts.isdisjoint(n.partitions) for name, n in self.world.nodes.items())
        return culprits if left >= max(1, job.nodes) else frozenset()


def _base(job: Job) -> str:
    """What the components of a heterogeneous job have in common."""
    return job.label.partition("+")[0]


def _own_pool(job: Job, world: World) -> tuple[str, ...]:
    """The pool that this very job was given: no obstacle to itself."""
    return (pool_of(job, world.nodes),) if job.excludes and world.live.pools else ()


def pool_of(job: Job, nodes: Mapping[str, Node]) -> str:
    """The nodes of its partitions that a job may use, folded."""
    return hostlist.fold(_pool(job, nodes))


def _pool(job: Job, nodes: Mapping[str, Node]) -> list[str]:
    parts, excluded = frozenset(job.partition.split(",")), frozenset(jobs.nodes_of(job.excludes))
    return [name for name, n in nodes.items() if name not in excluded and not parts.isdisjoint(n.partitions)]


def overdue(job: Job, tracked: Tracked, world: World) -> bool:
    """A confined job had its chance: a pass has gone by, or half a period since it could start. Or it has none, as nodes of
    its pool are reserved by now."""
    if not job.eligible or tracked.confined > world.now + world.period:  # the clock has jumped back
        return True
    ahead = feasibility.reserved(world.live.reservations, world.now, job.minutes)
    if ahead and not ahead.isdisjoint(hostlist.expand(pool_of(job, world.nodes))):
        return True
    return world.now - max(tracked.confined, _eligible_since(job)) >= min(world.period / 2, 30.0)


def _eligible_since(job: Job) -> float:
    return job.details.eligible if job.details is not None else 0.0


def recent_pools(found: Iterable[Job], nodes: Mapping[str, Node], now: float, seconds: float) -> tuple[tuple[float, str], ...]:
    """Pools of confined jobs that were submitted or started within the last seconds.

    Of a waiting job only one that free nodes would start, and no more nodes than it asks for: its owner can write any mark.
    Those of one user count until they take half of the nodes from others.
    """
    pools: list[tuple[float, str]] = []
    taken: dict[str, int] = {}
    for job in found:
        given = job.mark
        if given is None or given.mode != "steer" or now - max(job.submit, job.start if not job.pending else 0.0) > seconds:
            continue
        folded = _given_to(job, nodes) if taken.get(job.user, 0) < len(nodes) // 2 else ""
        if folded:
            taken[job.user] = taken.get(job.user, 0) + job.nodes
            pools.append((max(job.submit, 1.0), folded))
    return tuple(pools)


def _given_to(job: Job, nodes: Mapping[str, Node]) -> str:
    """The pool of a job, folded; "" where it has none."""
    if not job.pending:
        return job.node_list
    if not job.holds or not job.excludes:
        return ""
    pool = _pool(job, nodes)
    return hostlist.fold(pool) if len(pool) <= job.nodes else ""


def releases(found: Iterable[Job], known: Mapping[int, Tracked], keep: Iterable[int] = ()) -> list[Update]:
    """Updates that take all our excludes off waiting jobs, held ones and arrays too; the user's own stay.

    keep: jobs that keep the culprits without which they were requeued, while requeueing is still wanted. Confined jobs,
    which can't run elsewhere, come first.
    """
    updates, kept, confined = [], set(keep), set()
    for job in found:
        if not job.pending or (job.mark is None and job.id not in known):
            continue
        tracked = tracking.adopt(job, known.get(job.id))
        stays = frozenset(jobs.nodes_of(tracked.culprits)) if job.id in kept else frozenset()
        ours = frozenset(jobs.nodes_of(tracked.ours))
        if ours - stays and not tracked.hands_off:
            left = hostlist.fold(ours & stays)
            confined |= {job.id} if tracked.confined else set()
            clean = tracked._replace(ours=left, before=tracked.ours, confined=0.0, culprits=left)
            updates.append(Update(job, hostlist.fold({*jobs.nodes_of(tracked.user), *(ours & stays)}), RELEASE, clean))
    return sorted(updates, key=lambda update: update.job.id not in confined)
