"""Excludes that Slurm can't refuse: what it takes without them it takes with them. Pure.

A call becomes sbatch and can't be made a second time, so only such excludes are added. The argument: let Slurm have found
nodes for the job, some of them excluded here. Each of these can be replaced by a node that has at least as much, is kept and
isn't among those found, as long as at least as many such nodes are kept as the job may take.
"""

from __future__ import annotations

import math

from ..common.record import TYPE_CHECKING, Record
from . import feasibility

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ..slurm.cluster import Node
    from ..slurm.request import Request
    from .feasibility import Need


class Kind(Record):
    """What Slurm may ask of a node for one job. features: those that its constraint names; partitions: that it may go to."""

    cpus: float
    mem: float
    gpus: float
    gpu_type: str
    features: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()

    def stands_for(self, other: Kind) -> bool:
        """A node of this kind is good for whatever one of the other is."""
        return (
            self.cpus >= other.cpus
            and self.mem >= other.mem
            and self.gpus >= other.gpus
            and self.gpu_type == other.gpu_type
            and self.features >= other.features
            and self.partitions >= other.partitions
        )


def sure(nodes: Sequence[Node], kinds: Sequence[Kind], excluded: Collection[str], most: int, *, exact: bool = False) -> set[str]:
    """Those of the excludes that can't be what makes Slurm refuse a job of at most `most` nodes.

    nodes: all that the job could land on; kinds: of each; exact: a node stands for others of its own kind only.
    """
    kept: dict[Kind, int] = {}
    lost: set[Kind] = set()
    usable = feasibility.each(nodes, lambda node: node.usable)
    for node, kind, works in zip(nodes, kinds, usable):
        if node.name in excluded:
            lost.add(kind)
        elif works:
            kept[kind] = kept.get(kind, 0) + 1
    unsure = {kind for kind in lost if _standing_for(kind, kept, exact) < most}
    if not unsure:
        return set(excluded)
    return {node.name for node, kind in zip(nodes, kinds) if node.name in excluded and kind not in unsure}


def _standing_for(kind: Kind, kept: dict[Kind, int], exact: bool) -> int:
    if exact:
        return kept.get(kind, 0)
    return sum(count for other, count in kept.items() if other.stands_for(kind))


def kinds_of(nodes: Sequence[Node], request: Request, partitions: Iterable[str] | None, need: Need | None = None) -> list[Kind]:
    """The kind of each node for this job. partitions: those that it may go to (one: no matter; None: it could be any);
    need: what it takes of a node, where that is known: more than twice as much (gpus: more) is no matter then."""
    asked = None if partitions is None else frozenset(partitions)
    cpus, mem, gpus = math.inf, math.inf, math.inf
    if need is not None and not request.inner:
        if each_the_same(request):
            cpus, gpus = 2 * need.cpus, need.gpus
        if each_the_same(request) or request.mem_node or not need.mem:
            mem = 0.0 if need.whole or need.bare else 2 * need.mem

    def facts(node: Node) -> Kind:
        named = frozenset(feature for feature in node.features if feature in request.constraint)
        kind = node.gpu_type if request.gpu_type else ""
        return Kind(min(node.cpus, cpus), min(node.mem, mem), min(node.gpus, gpus), kind, named)

    kinds: list[Kind] = feasibility.each(nodes, facts)
    if asked is not None and len(asked) == 1:
        return kinds
    parts = (frozenset(node.partitions) if asked is None else asked.intersection(node.partitions) for node in nodes)
    return [kind._replace(partitions=part) for kind, part in zip(kinds, parts)]


def each_the_same(request: Request) -> bool:
    """Every node has to give the same, however many there are: nothing is shared out among them."""
    return not request.gpus and (not request.ntasks or (request.nodes_given and request.ntasks_per_node > 0))


def most_nodes(request: Request, kinds: Sequence[Kind]) -> int:
    """The most nodes that it may take to satisfy the job on nodes of these kinds: where each node has to give the same, the
    fewest do; where tasks or GPUs are counted, there may be need for as many as the smallest nodes take."""
    if each_the_same(request):
        return max(1, request.nodes_min)
    if request.nodes_given:
        return next((n for n in range(min(request.nodes_max, len(kinds)), 0, -1) if request.allows(n)), request.nodes_min)
    known = set(kinds)
    by_tasks = math.ceil(request.ntasks / min((_tasks(request, kind) for kind in known), default=1))
    by_gpus = math.ceil(request.gpus / min((kind.gpus for kind in known if kind.gpus), default=1))
    return max(1, by_tasks + by_gpus)


def _tasks(request: Request, kind: Kind) -> int:
    """How many of the job's tasks a node of this kind holds, where it holds any."""
    cpus = max(1, request.cpus_per_task)
    per_node = [request.ntasks_per_node or int(kind.cpus // cpus)]
    if request.mem_cpu:
        per_node.append(int(kind.mem // (request.mem_cpu * cpus)))
    if request.mem_gpu and request.gpus_per_task:
        per_node.append(int(kind.mem // (request.mem_gpu * request.gpus_per_task)))
    if request.gpus_per_task:
        per_node.append(int(kind.gpus // request.gpus_per_task))
    return max(1, min(per_node))
