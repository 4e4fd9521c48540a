"""What a decision rests on, and what it is: the records that `decide` takes and gives."""

from __future__ import annotations

from ..common.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from ..common.config import Settings
    from ..published.snapshot import Live, Scores
    from ..slurm.cluster import Node
    from ..slurm.request import Request
    from .directives import Directives


class Candidate(Record):
    """A node that could hold the job: free capacity (MiB), fit, capability (None: takes the median), probability of the
    draw (0 where it isn't drawn from), startable now, and what speaks against it."""

    name: str
    capacity: float
    fit: float = 0.0
    capability: float | None = None
    probability: float = 0.0
    startable: bool = False
    against: str = ""


class Listing:
    """The candidates, each made when they are looked at: a submission only counts them before it goes on."""

    def __init__(self, count: int, rows: Callable[[], Iterable[tuple[Any, ...]]]) -> None:
        """rows: the fields of each candidate."""
        self._count, self._rows = count, rows

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Candidate]:
        return iter([tuple.__new__(Candidate, row) for row in self._rows()])  # thousands of them

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Listing, tuple)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Decision(Record):
    """action: pass, avoid, steer or control (left untouched on purpose); excludes: ours, without the user's; pool: drawn
    nodes (steer); nodes: node count to set where only a total demand was given, 0 for none; reason: why this and not
    more; demand: what the draw went by; total: the whole job's, where only that was given (MiB); seed, snapshot: replay the
    draw; ours: to be marked though there is nothing to do yet; fallback: why mode steer acts as avoid, one of
    `log.FALLBACKS`."""

    action: str
    reason: str
    excludes: tuple[str, ...] = ()
    pool: tuple[str, ...] = ()
    nodes: int = 0
    candidates: Listing | tuple[Candidate, ...] = ()
    demand: float = 0.0
    total: float = 0.0
    rank: float = 0.0
    seed: int = 0
    snapshot: str = ""
    ours: bool = False
    fallback: str = ""


class Case(Record):
    """Everything that a decision rests on; `decide` adds nothing of its own.

    requests: one per het component; nodes: live, by name; live: None where dispatch isn't heard of; seed: of the draw;
    memo: shared by cases that have scores, settings, nodes, live's partitions and `now` in common (a pass of dispatch),
    so that what depends on these alone is worked out once; candidates of mode avoid aren't listed then.
    """

    requests: tuple[Request, ...]
    directives: Directives
    scores: Scores
    settings: Settings
    nodes: Mapping[str, Node]
    live: Live | None
    now: float
    seed: int
    mode: str = ""
    memo: dict[Any, Any] | None = None
