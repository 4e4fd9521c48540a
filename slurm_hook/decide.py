"""Request, scores and live state → decision: which nodes a job may use, and why. Pure apart from the seed it is given.

One function for all who ask: the wrapper, the cli_filter, `workhorse plan` and dispatch. Nothing here demands a node; a
decision only names nodes to exclude (the pool of a steered job is what is left).
"""

from __future__ import annotations

import math

from . import drawing, feasible, mark, placement, topology
from .case import Candidate, Case, Decision
from .errors import PlacementError, RequestError, SnapshotError
from .light import TYPE_CHECKING, Record
from .snapshot import NodeScore
from .spare import Spare, spared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .cluster import Node
    from .feasible import Need
    from .request import Request
    from .snapshot import Live

_UNKNOWN = NodeScore("")  # of a node that came after the scores
AVOID_BELOW = 0.5  # of the cluster's median capability: what mode avoid counts as bad besides lemons and suspects
RECENT_POOL = 60.0  # seconds during which a pool given to another submission counts as taken


class _Field(Record):
    """Candidates of one component: positions match in all lists. without: some that the user excludes, still among them;
    kind: what the candidates depend on, these apart."""

    names: tuple[str, ...]
    capacity: tuple[float, ...]
    capability: tuple[float | None, ...]
    relative: tuple[float | None, ...]
    leaves: tuple[str, ...]
    bad: tuple[str, ...]
    least: int
    need: Need
    without: tuple[str, ...] = ()
    kind: tuple[Any, ...] = ()

    def only(self, kept: Sequence[int]) -> _Field:
        """The candidates at these positions."""
        return self._replace(
            names=tuple(self.names[i] for i in kept), capacity=tuple(self.capacity[i] for i in kept),
            capability=tuple(self.capability[i] for i in kept), relative=tuple(self.relative[i] for i in kept),
            leaves=tuple(self.leaves[i] for i in kept),
            bad=tuple(self.bad[i] for i in kept),
        )  # fmt: skip


def decide(case: Case) -> Decision:
    """The decision for a job. Never raises for what a job may ask: what isn't understood is left alone, with the reason."""
    base = Decision("pass", "", seed=case.seed, snapshot=case.scores.id)
    mode = case.mode or case.settings["steer.mode"]
    try:
        _check(case)
        if in_control_group(case, mode):
            return base._replace(action="control", reason="control group")
        # where many are decided at once the user's excludes are taken from sums, not from lists of thousands
        lean = case.memo is not None and mode == "avoid"
        fields = [_candidates(case, request, lean and request.nodes_given) for request in case.requests]
        obstacle = "" if mode in ("steer", "observe") else f"mode {mode}"
        obstacle = obstacle or why_not_steer(case)
        if not obstacle:
            steered = _steer(case, fields[0], base)
            if steered.action == "steer":
                return steered
            obstacle = steered.reason
        total = total_demand(case, case.requests[0])
        if total:
            base = base._replace(demand=total, total=total)
            fields = [_counted(case, fields[0], total)]
            base = base._replace(nodes=fields[0].least)
        return _avoid(case, fields, base, obstacle)
    except (RequestError, PlacementError, SnapshotError) as err:
        return base._replace(reason=str(err))


def in_control_group(case: Case, mode: str) -> bool:
    """A random share of the jobs is left untouched, to be compared with; from the decision's seed, so it can be replayed.

    Not a job that gave only a total demand: untouched it would run on one node.
    """
    share = case.settings["steer.control_share"]
    if share <= 0 or mode not in ("avoid", "steer") or case.memo is not None or total_demand(case, case.requests[0]):
        return False
    return placement.draw([share, 1.0 - share], [1.0, 1.0], count=1, seed=f"{case.seed}/control") == [0]


def _check(case: Case) -> None:
    """What makes a job none of our business, whatever the mode."""
    first = case.requests[0]
    age = case.scores.age(case.now)
    if age > case.settings["steer.max_age_hours"] * 3600:
        raise SnapshotError(f"the scores are {age / 3600:.0f} h old; run `workhorse refresh`")
    if not case.directives.steer:
        raise RequestError("steer=off")
    for request in case.requests:
        asked = mark.parse(request.comment)
        if asked is not None and asked.decided:
            raise RequestError("already decided")
        if request.nodelist:
            raise RequestError("the user named the nodes")
        if request.clusters:
            raise RequestError("sent to a cluster by name")
        if request.reservation:
            raise RequestError("runs in a reservation")
        if request.odd:
            raise RequestError(f"asks for {', '.join(request.odd)}")
    if any(r.exclude != first.exclude for r in case.requests):
        raise RequestError("components with excludes of their own")


def why_not_steer(case: Case) -> str:
    """Why the job may not be confined to a pool, "" where it may."""
    request, live = case.requests[0], case.live
    if live is None or live.age(case.now) > case.settings["steer.live_max_age"]:
        return "dispatch is not heard of"
    partition = _partition(case, request)
    obstacles = (
        ("heterogeneous", len(case.requests) > 1), ("block topology", live.topology == "block"),
        ("array", request.array), ("several partitions", "," in request.partition), ("begin", request.begin),
        ("dependency", request.dependency), ("wait", request.wait), ("contiguous", request.contiguous),
        ("the job has a comment of its own", request.comment and mark.parse(request.comment) is None),
        ("the user's excludes are too many for a mark", _too_long_for_a_mark(request.exclude)),
        ("the partition is not up", live.partitions.get(partition, {}).get("state", "UP") != "UP"),
        ("a job waits in this partition", live.queue_head.get(partition)),
    )  # fmt: skip
    return next((obstacle for obstacle, there in obstacles if there), "")


def _too_long_for_a_mark(names: Sequence[str]) -> bool:
    from . import hostlist  # noqa: PLC0415 - only where the user excludes nodes

    return bool(names) and len(hostlist.fold(names)) > mark.MAX_EXCLUDES


def _partition(case: Case, request: Request) -> str:
    """The job's partition: its own, else the default one ("" where that isn't known)."""
    if request.partition or case.live is None:
        return request.partition
    return next((name for name, facts in case.live.partitions.items() if facts.get("default")), "")


def _candidates(case: Case, request: Request, lean: bool = False) -> _Field:
    """Nodes that could hold the component at all, with what the draw needs of them."""
    field = _all_candidates(case, request)
    there = len(field.names)
    if request.exclude and lean:
        field = field._replace(without=request.exclude)
        there -= len(_places(case, request, field).keys() & {*request.exclude})
    elif request.exclude:
        excluded = set(request.exclude)
        field = field.only([i for i, name in enumerate(field.names) if name not in excluded])
        there = len(field.names)
    if there < max(1, field.least):
        raise PlacementError(f"{there} nodes could hold this, {max(1, field.least)} are needed")
    return field


def _all_candidates(case: Case, request: Request) -> _Field:
    """The same without regard to the user's excludes."""
    partition = _partition(case, request)
    if not request.nodes_given or case.memo is None:
        return _field(case, request)
    need = feasible.need_per_node(request, request.nodes_min)
    sizes = _once(
        case, ("sizes", partition), lambda: {feasible.size(case.nodes[name]): case.nodes[name] for name in _others(case, request)}
    )
    # jobs of many sizes fit on nodes of few
    kind = partition, request.constraint, frozenset(size for size, node in sizes.items() if feasible.can_hold(node, need))
    field: _Field = _once(case, ("field", kind), lambda: _field(case, request))
    return field._replace(least=request.nodes_min, need=need, kind=kind)


def _once(case: Case, key: tuple[Any, ...], work: Callable[[], Any]) -> Any:
    """What `work` gives, worked out once for all cases that share a memo."""
    if case.memo is None:
        return work()
    if key not in case.memo:
        case.memo[key] = work()
    return case.memo[key]


def _field(case: Case, request: Request) -> _Field:
    excluded = set() if request.nodes_given else set(request.exclude)  # a count of ours rests on what is left
    good = feasible.by_kind(lambda node: node.usable)
    usable = {name: case.nodes[name] for name in _others(case, request) if good(case.nodes[name]) and name not in excluded}
    if request.constraint:
        usable = {name: usable[name] for name in feasible.by_constraint(usable, request.constraint)}
    demand = total_demand(case, request)
    count = request.nodes_min
    need = feasible.Need()
    if usable:
        if not request.nodes_given:
            largest = max(node.cpus for node in usable.values()), max(node.gpus for node in usable.values())
            count = 0 if demand else feasible.least_nodes(request, *largest)
        need = feasible.need_per_node(request, max(1, count))
    holds, free = feasible.by_kind(lambda node: feasible.can_hold(node, need)), feasible.by_kind(lambda node: _free(case, node))
    names = tuple(sorted(name for name, node in usable.items() if holds(node)))
    scores = [case.scores.nodes.get(name, _UNKNOWN) for name in names]
    return _Field(
        names, tuple([free(usable[name]) for name in names]), tuple([s.capability for s in scores]),
        tuple([s.relative for s in scores]), tuple([s.switch for s in scores]),
        tuple([_bad(s, case.now) for s in scores]), count, need,
    )  # fmt: skip


def total_demand(case: Case, request: Request) -> float:
    """Demand of the whole job in MiB where only that is given (no node count), else 0."""
    if request.nodes_given or request.ntasks or request.gpus or len(case.requests) > 1:
        return 0.0
    asked = mark.parse(request.comment)
    return case.directives.demand or (asked.demand if asked else 0.0)


def _counted(case: Case, field: _Field, total: float) -> _Field:
    """The candidates with the node count that a total demand takes, whichever of them the job will get. Raises PlacementError."""
    from . import sizing  # noqa: PLC0415 - few jobs give a total demand

    whole = [capacity_of(case, case.nodes[name]) for name in field.names]
    count = sizing.nodes_for(total, whole)
    if not count:
        raise PlacementError(
            f"a demand of {total:.0f} MiB is more than the {len(whole)} nodes that could hold this have"
            f" ({math.fsum(whole):.0f} MiB)"
        )
    return field._replace(least=count)


def _bad(score: NodeScore, now: float) -> str:
    """What speaks against a node: suspect (now, so it counts more), lemon, weak, or nothing."""
    if score.suspect_until > now:
        return "suspect"
    if score.lemon:
        return "lemon"
    relative, capability = score.relative, score.capability
    return "weak" if (capability is not None and capability < 0) or (relative is not None and relative < AVOID_BELOW) else ""


def resource_of(case: Case, gpus: int) -> str:
    """mem or gpu_mem: what demand and capacity are measured in for a node with this many GPUs."""
    resource = case.settings["scoring.capacity_resource"]
    return resource if resource != "auto" else "gpu_mem" if gpus else "mem"


def _gpu_mem(case: Case, kind: str) -> float:
    table = case.settings["scoring.gpu_mem"]
    return float(table.get(kind, table.get("default", 81920)))


def _free(case: Case, node: Node) -> float:
    if resource_of(case, node.gpus) == "gpu_mem":
        return (node.gpus - node.gpus_used) * _gpu_mem(case, node.gpu_type)
    return node.mem - node.mem_used


def capacity_of(case: Case, node: Node) -> float:
    """All of the capacity resource that a node has, MiB."""
    return node.gpus * _gpu_mem(case, node.gpu_type) if resource_of(case, node.gpus) == "gpu_mem" else node.mem


def demand_per_node(case: Case, field: _Field) -> float:
    """What the job takes of the capacity resource on each node, MiB; all of a node where it asks for whole nodes."""
    need, biggest = field.need, max(field.capacity, default=0.0)
    if case.directives.demand and field.least:
        return case.directives.demand / field.least
    sample = case.nodes[field.names[0]]
    if need.alone and (need.whole or not need.gpus):
        return biggest
    if resource_of(case, sample.gpus) == "gpu_mem":
        return need.gpus * _gpu_mem(case, need.gpu_type or sample.gpu_type)
    return biggest if need.whole else need.mem


def _rank(case: Case, field: _Field) -> float:
    """Cost rank of the job among the site's recent ones: its nodes times its time limit (a day where it has none). 1 for
    the published method."""
    if case.scores.method == "published":
        return 1.0
    request = case.requests[0]
    minutes = request.minutes if request.minutes is not None else 24 * 60.0
    node_hours = max(1, field.least) * minutes / 60.0
    return placement.cost_rank(case.scores.cost_quantiles, node_hours, sacrifice=case.settings["steer.sacrifice"])


def _steer(case: Case, field: _Field, base: Decision) -> Decision:
    """Draw a pool of nodes that can start the job now; action "pass" with the reason where there is none."""
    request = case.requests[0]
    total = total_demand(case, request)
    startable = _startable(case, request, field)
    rank = _rank(case, field)
    out = ("lemon", "suspect") if _lemons_out(case, rank) else ("suspect",)
    kept = [i for i in startable if field.bad[i] not in out]
    pool_of = _draw(case, field, _firm(case, field, kept, total, rank), total, rank)
    if isinstance(pool_of, str):
        return base._replace(reason=pool_of, candidates=_listing(field, startable))
    pool, probability, demand = pool_of
    names = {field.names[i] for i in pool}
    user = set(request.exclude)
    return base._replace(
        action="steer", reason="startable now", pool=tuple(sorted(names)),
        excludes=tuple(sorted(set(_others(case, request)) - names - user)), nodes=len(pool) if total else 0,
        candidates=_listing(field, startable, probability, demand), demand=demand, total=total, rank=rank,
    )  # fmt: skip


def _lemons_out(case: Case, rank: float) -> bool:
    """Whether lemons are no candidates of this job: where it is worth good nodes. A cheap one may get them, as from Slurm
    itself; were lemons left out for all, they would stay idle and be all that is left when a large job comes."""
    return case.scores.method == "published" or placement.drops_out_first(True, None, rank)


def _firm(case: Case, field: _Field, kept: list[int], total: float, rank: float) -> list[int]:
    """The candidates without the doubtful ones where the task is worth it and enough are left (attributed method)."""
    if case.scores.method == "published":
        return kept
    firm = [i for i in kept if not placement.drops_out_first(False, field.relative[i], rank)]
    if total:
        enough = math.fsum(field.capacity[i] for i in firm) > total
    else:
        enough = 0 < _pool_size(case.requests[0], field.least, len(kept)) <= len(firm)
    return firm if enough else kept


def _draw(
    case: Case, field: _Field, kept: Sequence[int], total: float, rank: float
) -> tuple[list[int], dict[int, float], float] | str:
    """Positions drawn, probability by position and demand; or why nothing can be drawn."""
    sub = field.only(kept)
    wanted = _pool_size(case.requests[0], field.least, len(kept))
    if not kept or (not total and wanted == 0):
        return "not enough nodes can start it now"
    demand = demand_per_node(case, sub)
    if total and case.scores.method == "published":
        demand = total  # step 12 compares the whole demand with each node
    chances, pull, cap = placement.chances(
        case.scores.method, demand, sub.capacity, sub.capability, rank=rank, gamma=case.settings["steer.gamma"]
    )
    drawn = drawing.pool(
        sub.leaves, chances, pull, sub.capacity, count=wanted, total=total, seed=case.seed, ratio_cap=cap
    )  # fmt: skip
    if not drawn:
        return "not enough nodes can start it now"
    return [kept[i] for i in drawn], dict(zip(kept, chances)), demand


def _pool_size(request: Request, count: int, there: int) -> int:
    """How many nodes to draw: the most that the user's count allows and that are there; 0 where even the least aren't."""
    if not request.nodes_given:
        return count if there >= count else 0
    return next((n for n in range(min(request.nodes_max, there), request.nodes_min - 1, -1) if request.allows(n)), 0)


def _startable(case: Case, request: Request, field: _Field) -> list[int]:
    """Positions of the candidates on which the job could start now (promise 2)."""
    roomy, blocked = _roomy(case, request, field), _blocked(case, request)
    return [i for i, name in enumerate(field.names) if name in roomy and name not in blocked]


def _blocked(case: Case, request: Request) -> frozenset[str]:
    """Nodes given to others a moment ago, or reserved for what the job would run into."""
    live = case.live
    if live is None:
        return frozenset()
    given: frozenset[str] = _once(case, ("given", live.pools), lambda: _recently_given(live, case.now))
    ahead = feasible.reserved(live.reservations, case.now, _minutes(case, request))
    return given | ahead if ahead else given


def _roomy(case: Case, request: Request, field: _Field) -> frozenset[str]:
    """Candidates with room right now. What the user excludes is no matter here, so a pass works it out once."""
    if not field.kind:
        starts = feasible.by_kind(lambda node: feasible.can_start(node, field.need))
        return frozenset([name for name in field.names if starts(case.nodes[name])])
    loads, able = _loads(case, request, field), _able(case, request, field)
    found: frozenset[str] = _once(case, ("roomy", field.kind, able), lambda: frozenset(n for load in able for n in loads[load]))
    return found


def _loads(case: Case, request: Request, field: _Field) -> dict[tuple[Any, ...], list[str]]:
    """Candidates that take jobs now, by what runs there: all that are loaded alike can start a job, or none."""

    def work() -> dict[tuple[Any, ...], list[str]]:
        alike: dict[tuple[Any, ...], list[str]] = {}
        for name in _all_candidates(case, request).names:
            node = case.nodes[name]
            if node.open and (node.idle or not idle):
                alike.setdefault(feasible.load(node), []).append(name)
        return alike

    idle = field.need.alone or field.need.whole
    found: dict[tuple[Any, ...], list[str]] = _once(case, ("loads", field.kind, idle), work)
    return found


def _able(case: Case, request: Request, field: _Field) -> frozenset[tuple[Any, ...]]:
    """The loads under which a node can start the job; none where that isn't worked out for many."""
    if not field.kind:
        return frozenset()
    loads = _loads(case, request, field)
    return frozenset(load for load, names in loads.items() if feasible.can_start(case.nodes[names[0]], field.need))


def _of_field(case: Case, request: Request, field: _Field, what: Any, work: Callable[[], Any]) -> Any:
    """What follows from the candidates alone: worked out once where no exclude of the user's makes them special."""
    if not field.kind or (request.exclude and not field.without):
        return work()
    return _once(case, (what, field.kind), work)


def _minutes(case: Case, request: Request) -> float | None:
    if request.minutes is not None or case.live is None:
        return request.minutes
    limit = case.live.partitions.get(_partition(case, request), {}).get("max_time")
    return float(limit) if limit is not None else None


def _recently_given(live: Live, now: float) -> frozenset[str]:
    from . import hostlist  # noqa: PLC0415 - only where pools were given lately

    return frozenset(name for given, folded in live.pools if now - given < RECENT_POOL for name in hostlist.expand(folded))


def _others(case: Case, request: Request) -> list[str]:
    """All nodes that the job could land on: those of its partition, or of the cluster."""
    partition = _partition(case, request)
    allowed = set(partition.split(",")) - {""}

    def names() -> list[str]:
        return [name for name, node in case.nodes.items() if not allowed or not allowed.isdisjoint(node.partitions)]

    found: list[str] = _once(case, ("others", partition), names)
    return found


def _avoid(case: Case, fields: Sequence[_Field], base: Decision, obstacle: str) -> Decision:
    """Exclude the worst nodes, as many as the setting allows and as every component can spare."""
    first = case.requests[0]
    most = max(1, int(len(_others(case, first)) * case.settings["steer.max_excluded"]))
    worst = _of_field(case, first, fields[0], "worst", lambda: _worst_first(fields)) if len(fields) == 1 else _worst_first(fields)
    if fields[0].without:
        own = set(fields[0].without)
        worst = [name for name in worst if name not in own]
    excluded = spared(worst, most, [_spare(case, request, field) for request, field in zip(case.requests, fields)])
    listing = _listing(fields[0], _startable(case, first, fields[0])) if case.memo is None else ()
    if not excluded:  # a node that turns bad while the job waits can be avoided then
        return base._replace(ours=True, reason=f"{obstacle}; no node to avoid", candidates=listing)
    return base._replace(action="avoid", reason=obstacle, excludes=tuple(sorted(excluded)), candidates=listing)


def _worst_first(fields: Sequence[_Field]) -> list[str]:
    order = {"suspect": 0, "lemon": 0, "weak": 1}
    keys: dict[str, tuple[int, float, str]] = {}
    for field in fields:
        for name, bad, capability in zip(field.names, field.bad, field.capability):
            if bad:
                keys[name] = order[bad], math.inf if capability is None else capability, name
    return sorted(keys, key=lambda name: keys[name])


def _spare(case: Case, request: Request, field: _Field) -> Spare:
    def opened() -> tuple[frozenset[int], dict[str, int]]:
        startable = _startable(case, request, field)
        return frozenset(startable), topology.count_by_leaf([field.leaves[i] for i in startable])

    open_now, open_sums = _of_field(case, request, field, ("open", _blocked(case, request), _able(case, request, field)), opened)
    return Spare(
        leaves=field.leaves, at=_places(case, request, field), open_now=open_now, open_sums=open_sums,
        sums=_of_field(case, request, field, "sums", lambda: topology.count_by_leaf(field.leaves)),
        least=max(1, field.least), without=field.without,
    )  # fmt: skip


def _places(case: Case, request: Request, field: _Field) -> dict[str, int]:
    """Position of each candidate."""
    found: dict[str, int] = _of_field(case, request, field, "at", lambda: {name: i for i, name in enumerate(field.names)})
    return found


def _listing(
    field: _Field, startable: Sequence[int], probability: Mapping[int, float] | None = None, demand: float = 0.0
) -> tuple[Candidate, ...]:
    chances, open_now = probability or {}, set(startable)
    count = range(len(field.names))
    rows = zip(
        field.names, field.capacity, placement.fit(demand, field.capacity), field.capability,
        [chances.get(i, 0.0) for i in count], [i in open_now for i in count], field.bad,
    )  # fmt: skip
    return tuple([tuple.__new__(Candidate, row) for row in rows])  # thousands of them
