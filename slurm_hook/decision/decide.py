"""Request, scores and live state → decision: which nodes a job may use, and why. Pure apart from the seed it is given.

One function for all who ask: the wrapper, the cli_filter, `workhorse plan` and dispatch. Nothing here demands a node; a
decision only names nodes to exclude (the pool of a steered job is what is left).
"""

from __future__ import annotations

import math

from ..common.errors import PlacementError, RequestError, SnapshotError
from ..common.record import TYPE_CHECKING
from ..published import mark
from . import drawing, placement, safe_excludes, switches
from .candidates import (
    Field,
    able,
    blocked,
    candidates,
    counted,
    gpu_mem,
    groups,
    most_nodes,
    need_of,
    of_field,
    others,
    partition_of,
    places,
    resource_of,
    startable,
    total_demand,
)
from .case import Case, Decision, Listing
from .spare import Spare, spared

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from typing import Any

    from ..slurm.request import Request


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
        fields = [candidates(case, request, lean and request.nodes_given) for request in case.requests]
        fallback, obstacle = why_not_steer(case) if mode in ("steer", "observe") else ("", f"mode {mode}")
        open_now: list[int] | None = None
        if not obstacle:
            steered, open_now = _steer(case, fields[0], base)
            if steered.action == "steer":
                return steered
            fallback, obstacle = "nodes", steered.reason
        base = base._replace(fallback=fallback)
        total = total_demand(case, case.requests[0])
        if total:
            base = base._replace(demand=total, total=total)
            fields = [counted(case, fields[0], total)]
            base = base._replace(nodes=fields[0].least)
        return _avoid(case, fields, base, obstacle, open_now)
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


def why_not_steer(case: Case) -> tuple[str, str]:
    """Why the job may not be confined to a pool: one of `log.FALLBACKS` to count by, and in words; both "" where it may."""
    request, live = case.requests[0], case.live
    if live is None or live.age(case.now) > case.settings["steer.live_max_age"]:
        return "dispatch", "dispatch is not heard of"
    partition = partition_of(case, request)
    obstacles = (
        ("job", "heterogeneous", len(case.requests) > 1), ("partition", "block topology", live.topology == "block"),
        ("job", "array", request.array), ("partition", "several partitions", "," in request.partition),
        ("job", "begin", request.begin), ("job", "dependency", request.dependency), ("job", "wait", request.wait),
        ("job", f"asks for {', '.join(request.inner)}", request.inner),
        ("comment", "the job has a comment of its own", request.comment and mark.parse(request.comment) is None),
        ("comment", "the user's excludes are too many for a mark", _too_long_for_a_mark(request.exclude)),
        ("partition", "the partition is not up", live.partitions.get(partition, {}).get("state", "UP") != "UP"),
        ("waiting", "a job waits in this partition", live.queue_head.get(partition)),
    )  # fmt: skip
    return next(((label, obstacle) for label, obstacle, there in obstacles if there), ("", ""))


def _too_long_for_a_mark(names: Sequence[str]) -> bool:
    from ..common import hostlist  # noqa: PLC0415 - only where the user excludes nodes

    return bool(names) and len(hostlist.fold(names)) > mark.MAX_EXCLUDES


def demand_per_node(case: Case, field: Field) -> float:
    """What the job takes of the capacity resource on each node, MiB; all of a node where it asks for whole nodes."""
    need, biggest = field.need, max(field.capacity, default=0.0)
    if case.directives.demand and field.least:
        return case.directives.demand / field.least
    sample = case.nodes[field.names[0]]
    if need.alone and (need.whole or not need.gpus):
        return biggest
    if resource_of(case, sample.gpus) == "gpu_mem":
        return need.gpus * gpu_mem(case, need.gpu_type or sample.gpu_type)
    return biggest if need.whole else need.mem


def _rank(case: Case, field: Field) -> float:
    """Cost rank of the job among the site's recent ones: its nodes times its time limit (a day where it has none). 1 for
    the published method."""
    if case.scores.method == "published":
        return 1.0
    request = case.requests[0]
    minutes = request.minutes if request.minutes is not None else 24 * 60.0
    node_hours = max(1, field.least) * minutes / 60.0
    return placement.cost_rank(case.scores.cost_quantiles, node_hours, sacrifice=case.settings["steer.sacrifice"])


def _steer(case: Case, field: Field, base: Decision) -> tuple[Decision, list[int]]:
    """Draw a pool of nodes that can start the job now; action "pass" with the reason where there is none.

    Gives the positions of all candidates that can start it, too.
    """
    request = case.requests[0]
    total = total_demand(case, request)
    open_now = startable(case, request, field)
    rank = _rank(case, field)
    out = ("lemon", "suspect") if _lemons_out(case, rank) else ("suspect",)
    kept = [i for i in open_now if field.bad[i] not in out]
    contended = _contended(case, request)
    if contended:
        kept = [i for i in kept if contended.isdisjoint(case.nodes[field.names[i]].partitions)]
    pool_of = _draw(case, field, _firm(case, field, kept, total, rank), total, rank)
    if isinstance(pool_of, str):
        return base._replace(reason=pool_of), open_now
    pool, probability, demand = pool_of
    if 0 < request.switches < len({field.leaves[i] for i in pool}):  # Slurm would rather wait for fewer
        return base._replace(reason="no such few switches are free now"), open_now
    if total and len(pool) > most_nodes(case, request):
        return base._replace(reason="the partition gives fewer nodes to a job"), open_now
    names = {field.names[i] for i in pool}
    excludes = set(others(case, request)) - names - {*request.exclude}
    if excludes - _sure(case, excludes, len(pool) if total else 0):
        return base._replace(reason="nodes of another kind may be all that it fits on"), open_now
    steered = base._replace(
        action="steer", reason="startable now", pool=tuple(sorted(names)),
        excludes=tuple(sorted(excludes)), nodes=len(pool) if total else 0,
        candidates=_listing(field, open_now, probability, demand), demand=demand, total=total, rank=rank,
    )  # fmt: skip
    return steered, open_now


def _contended(case: Case, request: Request) -> frozenset[str]:
    """Other partitions where a job waits and that aren't of a lower tier: Slurm keeps nodes that both have for that job."""
    if case.live is None or not case.live.queue_head:
        return frozenset()
    own = case.live.tier(partition_of(case, request))
    return frozenset(part for part, head in case.live.queue_head.items() if head and case.live.tier(part) >= own)


def _lemons_out(case: Case, rank: float) -> bool:
    """Whether lemons are no candidates of this job: where it is worth good nodes. A cheap one may get them, as from Slurm
    itself; were lemons left out for all, they would stay idle and be all that is left when a large job comes."""
    return case.scores.method == "published" or placement.drops_out_first(True, None, rank)


def _firm(case: Case, field: Field, kept: list[int], total: float, rank: float) -> list[int]:
    """The candidates without the doubtful ones where the task is worth it and enough are left (attributed method)."""
    if case.scores.method == "published" or not placement.drops_out_first(True, None, rank):
        return kept
    firm = [i for i in kept if not placement.drops_out_first(False, field.relative[i], rank)]
    if total:
        enough = math.fsum(field.capacity[i] for i in firm) > total
    else:
        enough = 0 < _pool_size(case.requests[0], field.least, len(kept)) <= len(firm)
    return firm if enough else kept


def _draw(
    case: Case, field: Field, kept: Sequence[int], total: float, rank: float
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


def _avoid(case: Case, fields: Sequence[Field], base: Decision, obstacle: str, open_now: Sequence[int] | None) -> Decision:
    """Exclude the worst nodes, as many as the setting allows and as every component can spare.

    open_now: positions of the first component's candidates that can start it, where that is known.
    """
    first = case.requests[0]
    if case.memo is None and open_now is None:
        open_now = startable(case, first, fields[0])
    most = max(1, int(len(others(case, first)) * case.settings["steer.max_excluded"]))
    worst = of_field(case, first, fields[0], "worst", lambda: _worst_first(fields)) if len(fields) == 1 else _worst_first(fields)
    if fields[0].without:
        own = set(fields[0].without)
        worst = [name for name in worst if name not in own]
    known = [open_now, *[None] * (len(fields) - 1)]
    excluded = spared(worst, most, [_spare(case, *component) for component in zip(case.requests, fields, known, _leasts(fields))])
    if case.memo is None:
        certain = _sure(case, excluded, base.nodes)
        excluded = [name for name in excluded if name in certain]
    listing = _listing(fields[0], open_now) if case.memo is None and open_now is not None else ()
    if not excluded:  # a node that turns bad while the job waits can be avoided then
        return base._replace(ours=True, reason=f"{obstacle}; no node to avoid", candidates=listing)
    return base._replace(action="avoid", reason=obstacle, excludes=tuple(sorted(excluded)), candidates=listing)


def _sure(case: Case, excluded: Collection[str], count: int) -> set[str]:
    """Those of our excludes that Slurm can't refuse; count: of nodes, where that is ours."""
    certain, most = set(excluded), count
    for request in case.requests:
        user = {*request.exclude}
        nodes = [case.nodes[name] for name in others(case, request) if name not in user]
        partition = partition_of(case, request)
        known = case.live is not None and partition in case.live.partitions
        need = need_of(case, request, max(1, request.nodes_min)) if known else None
        kinds = safe_excludes.kinds_of(nodes, request, partition.split(",") if partition else None, need)
        most += 0 if count else safe_excludes.most_nodes(request, kinds)
        certain &= safe_excludes.sure(nodes, kinds, certain, most, exact=bool(request.inner))
    return certain


def _worst_first(fields: Sequence[Field]) -> list[str]:
    order = {"suspect": 0, "lemon": 0, "weak": 1}
    keys: dict[str, tuple[int, float, str]] = {}
    for field in fields:
        for name, bad, capability in zip(field.names, field.bad, field.capability):
            if bad:
                keys[name] = order[bad], math.inf if capability is None else capability, name
    return sorted(keys, key=lambda name: keys[name])


def _leasts(fields: Sequence[Field]) -> list[int]:
    """The nodes that must be left of each component's candidates: components start together, so that those which could use
    the same nodes need enough for all of them."""
    least = [max(1, field.least) for field in fields]
    if len(fields) == 1:
        return least
    names = [frozenset(field.names) for field in fields]
    return [sum(n for n, other in zip(least, names) if not own.isdisjoint(other)) for own in names]


def _spare(case: Case, request: Request, field: Field, known: Sequence[int] | None, least: int) -> Spare:
    belongs = of_field(case, request, field, "groups", lambda: groups(case, request, field))

    def opened() -> tuple[frozenset[int], dict[str, int], dict[Any, int]]:
        found = startable(case, request, field) if known is None else known
        return frozenset(found), switches.count_by_leaf([field.leaves[i] for i in found]), _by_group(belongs, found)

    able_now = ("open", blocked(case, request), able(case, request, field))
    open_now, open_sums, open_group_sums = of_field(case, request, field, able_now, opened)
    return Spare(
        leaves=field.leaves, at=places(case, request, field), open_now=open_now, open_sums=open_sums,
        sums=of_field(case, request, field, "sums", lambda: switches.count_by_leaf(field.leaves)),
        least=least, without=field.without, groups=belongs, open_group_sums=open_group_sums,
        group_sums=of_field(case, request, field, "group sums", lambda: _by_group(belongs, range(len(belongs)))),
    )  # fmt: skip


def _by_group(belongs: Sequence[tuple[Any, ...]], positions: Iterable[int]) -> dict[Any, int]:
    """How many of the candidates at these positions are in each group."""
    counts: dict[Any, int] = {group: 0 for mine in belongs for group in mine}
    for i in positions if belongs else ():
        for group in belongs[i]:
            counts[group] += 1
    return counts


def _listing(
    field: Field, open_now: Sequence[int], probability: Mapping[int, float] | None = None, demand: float = 0.0
) -> Listing:
    def rows() -> Iterable[tuple[Any, ...]]:
        chances, now, count = probability or {}, set(open_now), range(len(field.names))
        return zip(
            field.names, field.capacity, placement.fit(demand, field.capacity), field.capability,
            [chances.get(i, 0.0) for i in count], [i in now for i in count], field.bad,
        )  # fmt: skip

    return Listing(len(field.names), rows)
