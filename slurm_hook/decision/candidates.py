"""Which nodes a job could get: those that could hold it at all, and those that could start it now. Pure.

Where many jobs are judged against the same nodes (`Case.memo`), what they have in common is worked out once.
"""

from __future__ import annotations

import math

from ..common.errors import PlacementError
from ..common.record import TYPE_CHECKING, Record
from ..published import mark
from ..published.snapshot import AVOID_BELOW, NodeScore
from . import feasibility

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..published.snapshot import Live
    from ..slurm.cluster import Node
    from ..slurm.request import Request
    from .case import Case
    from .feasibility import Need

_UNKNOWN = NodeScore("")  # of a node that came after the scores
RECENT_POOL = 60.0  # seconds during which a pool given to another submission counts as taken


class Field(Record):
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

    def only(self, kept: Sequence[int]) -> Field:
        """The candidates at these positions, which rise."""
        if len(kept) == len(self.names):
            return self
        return self._replace(
            names=tuple(self.names[i] for i in kept), capacity=tuple(self.capacity[i] for i in kept),
            capability=tuple(self.capability[i] for i in kept), relative=tuple(self.relative[i] for i in kept),
            leaves=tuple(self.leaves[i] for i in kept),
            bad=tuple(self.bad[i] for i in kept),
        )  # fmt: skip


def candidates(case: Case, request: Request, lean: bool = False) -> Field:
    """Nodes that could hold the component at all, with what the draw needs of them."""
    field = _all_candidates(case, request)
    there = len(field.names)
    if request.exclude and lean:
        field = field._replace(without=request.exclude)
        there -= len(places(case, request, field).keys() & {*request.exclude})
    elif request.exclude:
        excluded = set(request.exclude)
        field = field.only([i for i, name in enumerate(field.names) if name not in excluded])
        there = len(field.names)
    if there < max(1, field.least):
        raise PlacementError(f"{there} nodes could hold this, {max(1, field.least)} are needed")
    return field


def _all_candidates(case: Case, request: Request) -> Field:
    """The same without regard to the user's excludes."""
    partition = partition_of(case, request)
    if not request.nodes_given or case.memo is None:
        return _field(case, request)
    need = need_of(case, request, request.nodes_min)
    sizes = _once(
        case,
        ("sizes", partition),
        lambda: {feasibility.size(case.nodes[name]): case.nodes[name] for name in others(case, request)},
    )
    # jobs of many sizes fit on nodes of few
    kind = partition, request.constraint, frozenset(size for size, node in sizes.items() if feasibility.can_hold(node, need))
    field: Field = _once(case, ("field", kind), lambda: _field(case, request))
    return field._replace(least=request.nodes_min, need=need, kind=kind)


def _once(case: Case, key: tuple[Any, ...], work: Callable[[], Any]) -> Any:
    """What `work` gives, worked out once for all cases that share a memo."""
    if case.memo is None:
        return work()
    if key not in case.memo:
        case.memo[key] = work()
    return case.memo[key]


def _field(case: Case, request: Request) -> Field:
    excluded = set() if request.nodes_given else set(request.exclude)  # a count of ours rests on what is left
    there = [case.nodes[name] for name in others(case, request)]
    usable = [node for node, good in zip(there, feasibility.each(there, lambda node: node.usable)) if good]
    if excluded:
        usable = [node for node in usable if node.name not in excluded]
    if request.constraint:
        named = {node.name: node for node in usable}
        usable = [named[name] for name in feasibility.by_constraint(named, request.constraint)]
    demand = total_demand(case, request)
    count = request.nodes_min
    need = feasibility.Need()
    if usable:
        if not request.nodes_given:
            largest = max(node.cpus for node in usable), max(node.gpus for node in usable)
            count = 0 if demand else feasibility.least_nodes(request, *largest)
        need = need_of(case, request, max(1, count))
    holds = feasibility.each(usable, lambda node: feasibility.can_hold(node, need))
    chosen = sorted([node for node, good in zip(usable, holds) if good])  # by name, which comes first in a node
    names = tuple([node.name for node in chosen])
    scores = [case.scores.nodes.get(name, _UNKNOWN) for name in names]
    return Field(
        names, tuple(feasibility.each(chosen, lambda node: _free(case, node))), tuple([s.capability for s in scores]),
        tuple([s.relative for s in scores]), tuple([s.switch for s in scores]),
        tuple([_bad(s, case.now) for s in scores]), count, need,
    )  # fmt: skip


def need_of(case: Case, request: Request, count: int) -> Need:
    """What it takes of each of so many nodes."""
    need = feasibility.need_per_node(request, count)
    if case.live is None:
        return need
    return feasibility.in_partition(need, request, case.live.partitions.get(partition_of(case, request), {}))


def counted(case: Case, field: Field, total: float) -> Field:
    """The candidates with the node count that a total demand takes, whichever of them the job will get. Raises PlacementError."""
    from . import sizing  # noqa: PLC0415 - few jobs give a total demand

    whole = [capacity_of(case, case.nodes[name]) for name in field.names]
    count = sizing.nodes_for(total, whole)
    if not count:
        raise PlacementError(
            f"a demand of {total:.0f} MiB is more than the {len(whole)} nodes that could hold this have"
            f" ({math.fsum(whole):.0f} MiB)"
        )
    if case.live is None:
        raise PlacementError(f"a demand of {total:.0f} MiB takes {count} nodes, and dispatch tells no limits of partitions")
    most = most_nodes(case, case.requests[0])
    if count > most:
        raise PlacementError(
            f"a demand of {total:.0f} MiB takes {count} nodes, and the partition gives at most {most:.0f} to a job"
        )
    return field._replace(least=count)


def most_nodes(case: Case, request: Request) -> float:
    """The partition's own limit on the nodes of a job."""
    facts = case.live.partitions.get(partition_of(case, request), {}) if case.live is not None else {}
    return float(facts.get("max_nodes", math.inf))


def total_demand(case: Case, request: Request) -> float:
    """Demand of the whole job in MiB where only that is given (no node count), else 0."""
    if request.nodes_given or request.ntasks or request.gpus or len(case.requests) > 1:
        return 0.0
    asked = mark.parse(request.comment)
    return case.directives.demand or (asked.demand if asked else 0.0)


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


def gpu_mem(case: Case, kind: str) -> float:
    table = case.settings["scoring.gpu_mem"]
    return float(table.get(kind, table.get("default", 81920)))


def _free(case: Case, node: Node) -> float:
    if resource_of(case, node.gpus) == "gpu_mem":
        return (node.gpus - node.gpus_used) * gpu_mem(case, node.gpu_type)
    return node.mem - node.mem_used


def capacity_of(case: Case, node: Node) -> float:
    """All of the capacity resource that a node has, MiB."""
    return node.gpus * gpu_mem(case, node.gpu_type) if resource_of(case, node.gpus) == "gpu_mem" else node.mem


def startable(case: Case, request: Request, field: Field) -> list[int]:
    """Positions of the candidates on which the job could start now (promise 2)."""
    roomy, taken = _roomy(case, request, field), blocked(case, request)
    if taken:
        return [i for i, name in enumerate(field.names) if name in roomy and name not in taken]
    return [i for i, name in enumerate(field.names) if name in roomy]


def blocked(case: Case, request: Request) -> frozenset[str]:
    """Nodes given to others a moment ago, or reserved for what the job would run into."""
    live = case.live
    if live is None:
        return frozenset()
    given: frozenset[str] = _once(case, ("given", live.pools), lambda: _recently_given(live, case.now))
    ahead = feasibility.reserved(live.reservations, case.now, _minutes(case, request))
    return given | ahead if ahead else given


def _roomy(case: Case, request: Request, field: Field) -> frozenset[str]:
    """Candidates with room right now. What the user excludes is no matter here, so a pass works it out once."""
    if not field.kind:
        starts = feasibility.each(
            [case.nodes[name] for name in field.names], lambda node: feasibility.can_start(node, field.need)
        )
        return frozenset([name for name, yes in zip(field.names, starts) if yes])
    loads, enough = _loads(case, request, field), able(case, request, field)
    found: frozenset[str] = _once(
        case, ("roomy", field.kind, enough), lambda: frozenset(n for load in enough for n in loads[load])
    )
    return found


def _loads(case: Case, request: Request, field: Field) -> dict[tuple[Any, ...], list[str]]:
    """Candidates that take jobs now, by what runs there: all that are loaded alike can start a job, or none."""

    def work() -> dict[tuple[Any, ...], list[str]]:
        alike: dict[tuple[Any, ...], list[str]] = {}
        for name in _all_candidates(case, request).names:
            node = case.nodes[name]
            if node.open and (node.idle or not idle):
                alike.setdefault(feasibility.load(node), []).append(name)
        return alike

    idle = field.need.alone or field.need.whole
    found: dict[tuple[Any, ...], list[str]] = _once(case, ("loads", field.kind, idle), work)
    return found


def able(case: Case, request: Request, field: Field) -> frozenset[tuple[Any, ...]]:
    """The loads under which a node can start the job; none where that isn't worked out for many."""
    if not field.kind:
        return frozenset()
    loads = _loads(case, request, field)
    return frozenset(load for load, names in loads.items() if feasibility.can_start(case.nodes[names[0]], field.need))


def of_field(case: Case, request: Request, field: Field, what: Any, work: Callable[[], Any]) -> Any:
    """What follows from the candidates alone: worked out once where no exclude of the user's makes them special."""
    if not field.kind or (request.exclude and not field.without):
        return work()
    return _once(case, (what, field.kind), work)


def _minutes(case: Case, request: Request) -> float | None:
    if request.minutes is not None or case.live is None:
        return request.minutes
    limit = case.live.partitions.get(partition_of(case, request), {}).get("max_time")
    return float(limit) if limit is not None else None


def _recently_given(live: Live, now: float) -> frozenset[str]:
    from ..common import hostlist  # noqa: PLC0415 - only where pools were given lately

    return frozenset(name for given, folded in live.pools if now - given < RECENT_POOL for name in hostlist.expand(folded))


def others(case: Case, request: Request) -> list[str]:
    """All nodes that the job could land on: those of its partition, or of the cluster."""
    partition = partition_of(case, request)
    allowed = set(partition.split(",")) - {""}

    def names() -> list[str]:
        return [name for name, node in case.nodes.items() if not allowed or not allowed.isdisjoint(node.partitions)]

    found: list[str] = _once(case, ("others", partition), names)
    return found


def partition_of(case: Case, request: Request) -> str:
    """The job's partition: its own, else the default one ("" where that isn't known)."""
    if request.partition or case.live is None:
        return request.partition
    return next((name for name, facts in case.live.partitions.items() if facts.get("default")), "")


def groups(case: Case, request: Request, field: Field) -> list[tuple[Any, ...]]:
    """Of each candidate, the sets of candidates that may be all the job can use: those of one partition, where it goes to one
    of several or which is its own isn't known, and nodes of one shape, as sockets, cores and threads aren't weighed. Empty
    where all are alike.
    """
    nodes = [case.nodes[name] for name in field.names]
    shapes = feasibility.each(nodes, lambda node: (node.cpus, node.gpus))
    partition = partition_of(case, request)
    if partition and "," not in partition:
        return [(shape,) for shape in shapes] if len(set(shapes)) > 1 else []
    asked = set(partition.split(",")) - {""}
    return [
        tuple(group for part in node.partitions if not asked or part in asked for group in ((part,), (part, shape)))
        for node, shape in zip(nodes, shapes)
    ]


def places(case: Case, request: Request, field: Field) -> dict[str, int]:
    """Position of each candidate."""
    found: dict[str, int] = of_field(case, request, field, "at", lambda: {name: i for i, name in enumerate(field.names)})
    return found
