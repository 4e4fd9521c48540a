"""Who waits for nodes, by partition: others are confined to none of those while this one may get them. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left

from ..common import hostlist
from ..common.record import TYPE_CHECKING
from ..slurm import jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..published.snapshot import Reservation
    from ..slurm.cluster import Node
    from ..slurm.jobs import Job


class Room:
    """How many nodes of a partition can run a job, now or when others have ended.

    usable: these by partition, folded; where a partition isn't among them there is room for all.
    """

    def __init__(self, usable: Mapping[str, str], reservations: Sequence[Reservation] = (), now: float = 0.0) -> None:
        self.usable = {part: frozenset(hostlist.expand(folded)) if folded else frozenset() for part, folded in usable.items()}
        self.now = now
        self.ahead = sorted((r for r in reservations if r.end > now), key=lambda r: r.start)
        self.starts = [r.start for r in self.ahead]
        self.counts: dict[tuple[str, int], int] = {}

    def fits(self, job: Job, part: str) -> bool:
        """Enough of them, without those that are reserved before the job would end: Slurm gives it none of the free ones else,
        and will for as long as these are down or reserved."""
        if part not in self.usable:
            return True
        met = bisect_left(self.starts, math.inf if job.minutes is None else self.now + job.minutes * 60.0)
        if (part, met) not in self.counts:
            reserved = frozenset(name for r in self.ahead[:met] for name in r.nodes)
            self.counts[part, met] = len(self.usable[part] - reserved)
        return job.nodes <= self.counts[part, met]


def usable_in(nodes: Mapping[str, Node]) -> dict[str, str]:
    """Nodes of each partition that can run jobs, folded; "" where none can."""
    names: dict[str, list[str]] = {part: [] for node in nodes.values() for part in node.partitions}
    for node in nodes.values():
        for part in node.partitions if node.usable else ():
            names[part].append(node.name)
    return {part: hostlist.fold(there) for part, there in names.items()}


def heads(found: Iterable[Job], room: Room) -> dict[str, list[Job]]:
    """Jobs that wait for nodes, by partition; a job sent to several counts in each, one that names its nodes (`named`) in
    none."""
    queue: dict[str, list[Job]] = {}
    for job in found:
        if job.holds and not _names_all(job):
            for part in job.partition.split(","):
                if room.fits(job, part):
                    queue.setdefault(part, []).append(job)
    return queue


def queue_head(found: Iterable[Job], room: Room) -> dict[str, int]:
    """Highest priority of a job that waits for nodes, by partition: what live.json says."""
    return {part: max(job.priority for job in there) for part, there in heads(found, room).items()}


def _names_all(job: Job) -> bool:
    """Its user named as many nodes as it needs: Slurm keeps these alone for it, and the rest of the partition goes on."""
    return bool(job.req_nodes) and len(jobs.nodes_of(job.req_nodes)) >= job.nodes


def named(found: Iterable[Job], now: float) -> tuple[tuple[float, str], ...]:
    """The nodes that jobs wait for by name, as one pool: taken, as others' pools are."""
    names = {name for job in found if job.holds and _names_all(job) for name in jobs.nodes_of(job.req_nodes)}
    return ((now, hostlist.fold(names)),) if names else ()
