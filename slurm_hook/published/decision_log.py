"""One JSON line to syslog per decision: what was decided and all that is needed to replay it.

The fields are a closed list: never arguments, environment, wrapped text or comments, which carry secrets. Everything is
ASCII after JSON's escapes, so no control character reaches a log or a terminal.
"""

from __future__ import annotations

import posix as os

from ..common import hostlist
from ..common.record import TYPE_CHECKING, json_dumps

if TYPE_CHECKING:
    from typing import Any

    from ..decision.decide import Decision

IDENT = "workhorse"
MAX_LINE = 7000  # what rsyslog and journald take without cutting
FIELDS = frozenset((
    "by", "uid", "action", "applied", "reason", "match", "snapshot", "seed", "nodes", "count", "pool", "excludes",
    "user_excludes", "candidates", "free", "demand", "total", "rank", "method", "partition", "pipeline", "stage", "ms",
    "job", "why", "fallback",
))  # fmt: skip


def line(decision: Decision, **more: Any) -> str:
    """The line of a decision; `more` adds fields of the list. Lists of nodes are folded; empty fields are left out.

    `free` names the capacity of the candidates where it isn't all the same, so that the draw can be replayed.
    """
    drawn = [c for c in decision.candidates if c.probability > 0]
    sizes: dict[float, list[str]] = {}
    for candidate in drawn:
        sizes.setdefault(candidate.capacity, []).append(candidate.name)
    free: dict[str, list[str]] = {}
    for mib, names in sizes.items():  # few, so that few numbers are written out
        free.setdefault(f"{mib:.15g}", []).extend(names)
    fields: dict[str, Any] = {
        "uid": os.getuid(), "action": decision.action, "reason": decision.reason, "snapshot": decision.snapshot,
        "seed": decision.seed, "nodes": decision.nodes, "count": len(decision.pool), "pool": hostlist.fold(decision.pool),
        "excludes": "" if decision.pool else hostlist.fold(decision.excludes), "demand": decision.demand,
        "total": decision.total, "rank": decision.rank, "fallback": decision.fallback,
        "candidates": len(decision.candidates), "free": {mib: hostlist.fold(names) for mib, names in free.items()},
    }  # fmt: skip
    fields.update((key, value) for key, value in more.items() if key in FIELDS)
    kept = {key: value for key, value in fields.items() if value not in ("", 0, None, {}, [], 0.0)}
    text = json_dumps(kept)
    if len(text) > MAX_LINE:
        kept.pop("free", None)
        text = json_dumps(kept)
    return text if len(text) <= MAX_LINE else json_dumps({k: v for k, v in kept.items() if k not in ("pool", "excludes")})


def event(by: str, action: str, job: int, **more: Any) -> str:
    """The line of what was done to a waiting job without a decision of its own; the fields are of the same list."""
    fields = {"by": by, "uid": os.getuid(), "action": action, "job": job, "applied": True}
    fields.update((key, value) for key, value in more.items() if key in FIELDS and value)
    text = json_dumps(fields)
    return text if len(text) <= MAX_LINE else json_dumps({k: v for k, v in fields.items() if k != "excludes"})


# why mode steer acts as avoid: dispatch isn't heard of; a job waits for nodes of the partition; too few nodes are free;
# the partition or topology, what the job asks for, or its comment leave no pool
FALLBACKS = ("dispatch", "waiting", "nodes", "partition", "job", "comment")
# why submissions pass because something of ours is broken: published files, slurmctld, the decision itself
FAILURES = ("snapshot", "slurm", "no answer")


def failure(by: str, reason: str, why: str) -> str:
    """The line of a submission that passes because something of ours failed; reason: one of FAILURES, why: in words."""
    return json_dumps({"by": by, "uid": os.getuid(), "action": "fail_open", "reason": reason, "why": why[:400]})


def send(text: str) -> None:
    """To syslog; without one nothing happens."""
    import syslog  # noqa: PLC0415 - only where something is logged

    syslog.openlog(IDENT, syslog.LOG_PID | syslog.LOG_NDELAY, syslog.LOG_USER)
    syslog.syslog(syslog.LOG_INFO, text)
