"""Which nodes can hold a job at all, and which can start it now. Pure.

Everything is judged from the user's own request; what isn't modelled (`Request.odd`, a constraint that counts nodes) is
for the caller to leave alone.
"""

from __future__ import annotations

import math

from ..common.errors import RequestError
from ..common.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ..published.snapshot import Reservation
    from ..slurm.cluster import Node
    from ..slurm.request import Request


MAX_CONSTRAINT = 1024  # characters: Slurm takes no more


class Need(Record):
    """What one node must have: mem in MiB, `whole` for all of its memory, `alone` for a node without other jobs;
    `bare` for one of which no memory is given away."""

    cpus: int = 1
    mem: float = 0.0
    gpus: int = 0
    gpu_type: str = ""
    whole: bool = False
    alone: bool = False
    bare: bool = False


def need_per_node(request: Request, nodes: int) -> Need:
    """What each of `nodes` nodes must have for the request (at least; unevenly spread tasks may need less somewhere)."""
    tasks = request.ntasks_per_node or math.ceil(request.ntasks / nodes) or 1
    gpus = request.gpus_per_node or math.ceil(request.gpus / nodes) or request.gpus_per_task * tasks or request.gpus_per_socket
    if request.ntasks_per_gpu and gpus and not request.ntasks and not request.ntasks_per_node:
        tasks = request.ntasks_per_gpu * gpus
    cpus = max(request.mincpus, tasks * request.cpus_per_task, gpus * request.cpus_per_gpu, 1)
    mem = request.mem_node or (request.mem_cpu or 0.0) * cpus or (request.mem_gpu or 0.0) * gpus
    return Need(cpus, mem, gpus, request.gpu_type, request.mem_node == 0.0, bool(request.exclusive) or request.mem_node == 0.0)


def in_partition(need: Need, request: Request, facts: Mapping[str, Any]) -> Need:
    """The need with what the site gives to jobs that don't ask (its defaults for memory and CPUs), as live.json tells it.

    Without any default for memory Slurm gives all of a node's where it counts memory at all.
    """
    if facts.get("idle_only"):
        need = need._replace(alone=True)
    if need.gpus and not request.cpus_per_gpu and request.cpus_per_task == 1:
        need = need._replace(cpus=max(need.cpus, need.gpus * int(facts.get("cpus_per_gpu", 0))))
    if "mem" not in facts or not all(asked is None for asked in (request.mem_node, request.mem_cpu, request.mem_gpu)):
        return need
    kind, mib = facts["mem"]
    if need.gpus and facts.get("mem_per_gpu"):
        kind, mib = "gpu", facts["mem_per_gpu"]
    count = {"cpu": need.cpus, "gpu": need.gpus, "node": 1}.get(kind, 0)
    return need._replace(mem=float(mib) * count, bare=not count)


def least_nodes(request: Request, largest_cpus: int, largest_gpus: int) -> int:
    """The fewest nodes that the job can end up on, from the user's count, or else from tasks and GPUs on the largest nodes."""
    if request.nodes_given:
        return request.nodes_min
    by_cpus = largest_cpus // max(1, request.cpus_per_task) if largest_cpus else request.ntasks
    tasks_per_node = request.ntasks_per_node or by_cpus
    by_tasks = math.ceil(request.ntasks / tasks_per_node) if request.ntasks and tasks_per_node else 1
    per_node = request.gpus_per_node or largest_gpus
    all_gpus = request.gpus or request.gpus_per_task * request.ntasks
    by_gpus = math.ceil(all_gpus / per_node) if all_gpus and per_node else 1
    return max(1, by_tasks, by_gpus)


def total_gpus(request: Request, nodes: int) -> int:
    """GPUs of the whole job on this many nodes."""
    return request.gpus or need_per_node(request, nodes).gpus * nodes


def can_hold(node: Node, need: Need) -> bool:
    """The node's own size is enough, whatever runs there now."""
    if need.gpu_type and need.gpu_type != node.gpu_type:
        return False
    return node.cpus >= need.cpus and node.mem >= need.mem and node.gpus >= need.gpus


def can_start(node: Node, need: Need) -> bool:
    """There is room right now."""
    if not node.open or not can_hold(node, need):
        return False
    if need.alone or need.whole:
        return node.idle
    if need.bare and node.mem_used:
        return False
    return (
        node.cpus - node.cpus_used >= need.cpus
        and node.mem - node.mem_used >= need.mem
        and node.gpus - node.gpus_used >= need.gpus
    )


def each(nodes: Sequence[Node], work: Callable[[Node], Any]) -> list[Any]:
    """What `work` gives for each node, worked out once for all that only differ by name."""
    kinds = {node.kind: node for node in nodes}
    if -1 in kinds:
        return [work(node) for node in nodes]
    known = {kind: work(node) for kind, node in kinds.items()}
    return [known[node.kind] for node in nodes]


def size(node: Node) -> tuple[Any, ...]:
    """What decides whether a node can hold a job."""
    return node.cpus, node.mem, node.gpus, node.gpu_type


def load(node: Node) -> tuple[Any, ...]:
    """What decides whether a node that takes jobs can start one now."""
    return *size(node), node.idle, node.cpus_used, node.mem_used, node.gpus_used


def reserved(reservations: Iterable[Reservation], now: float, minutes: float | None) -> frozenset[str]:
    """Nodes of reservations that a job started now could still meet; without a time limit: of all that are to come."""
    end = math.inf if minutes is None else now + minutes * 60.0
    return frozenset(name for r in reservations if r.start < end and r.end > now for name in r.nodes)


def by_constraint(nodes: Mapping[str, Node], constraint: str) -> list[str]:
    """Names of the nodes whose features satisfy the expression: names, `&`, `|` and parentheses.

    Raises RequestError for what chooses between sets of nodes or counts them (`[rack1|rack2]`, `gpu*4`).
    """
    if not constraint:
        return list(nodes)
    tokens = _tokens(constraint)
    cache: dict[tuple[str, ...], bool] = {}
    names = []
    for name, node in nodes.items():
        if node.features not in cache:
            cache[node.features] = _evaluate(tokens, frozenset(node.features))
        if cache[node.features]:
            names.append(name)
    return names


def _tokens(text: str) -> list[str]:
    if len(text) > MAX_CONSTRAINT:
        raise RequestError("the constraint is too long; such jobs are left alone")
    if any(c in text for c in "[]*{}@") or any(c.isspace() for c in text):
        raise RequestError("the constraint chooses between sets of nodes; such jobs are left alone")
    for sign in "&|()":
        text = text.replace(sign, f" {sign} ")
    tokens = text.replace(",", " & ").split()
    _evaluate(tokens, frozenset())
    return tokens


def _evaluate(tokens: list[str], features: frozenset[str]) -> bool:
    """Operands joined by one operator in each parenthesis; a mix without parentheses isn't guessed at.

    Open parentheses wait on a list, not in calls of calls: a user may write thousands of them.
    """
    outer: list[tuple[bool | None, str]] = []  # value and operator so far, of each parenthesis around
    value: bool | None = None
    operator = ""
    wants = True  # an operand, not an operator or an end
    for word in tokens:
        if word == "(" and wants:
            outer.append((value, operator))
            value, operator = None, ""
        elif word == ")" and outer and not wants:
            inner, (value, operator) = bool(value), outer.pop()
            value = _joined(value, operator, inner)
        elif word in ("&", "|") and not wants:
            if operator not in ("", word):
                raise RequestError("the constraint mixes & and | without parentheses; such jobs are left alone")
            operator, wants = word, True
        elif word not in ("&", "|", "(", ")") and wants:
            value, wants = _joined(value, operator, word in features), False
        else:
            raise RequestError("the constraint can't be read")
    if wants or outer:
        raise RequestError("the constraint can't be read")
    return bool(value)


def _joined(value: bool | None, operator: str, other: bool) -> bool:
    if value is None:
        return other
    return (value and other) if operator == "&" else (value or other)
