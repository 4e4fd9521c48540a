"""What the history has of an attempt that is told again stays, where the source that tells it now knows less or is older.

Dumps are read in any order and have any fields: a second look with fewer fields, or without steps, takes nothing away, and
what has ended doesn't run again because a dump of last week is read after this week's. Slurm gives each requeue another
submit time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..sources import records
from .store import Store, loaded_text

# field → what of an attempt is known by it alone
_TOLD_BY = {
    "JobID": ("label", "array_job", "array_task", "het_job", "het_offset"),
    "Eligible": ("eligible",), "Start": ("start",), "End": ("end",), "ElapsedRaw": ("elapsed",),
    "ExitCode": ("exit_code", "exit_signal"), "DerivedExitCode": ("derived_code", "derived_signal"),
    "AllocNodes": ("nnodes",), "AllocCPUS": ("cpus",), "AllocTRES": ("mem_mib", "gpus", "gpu_type"),
    "TimelimitRaw": ("limit_minutes",), "Partition": ("partition",), "Account": ("account",), "QOS": ("qos",),
    "User": ("user",), "FailedNode": ("failed_node",), "Restarts": ("restarts",), "JobName": ("name",),
}  # fmt: skip
_OF_THE_END = ("state", "cancelled_by", "exit_code", "exit_signal", "derived_code", "derived_signal", "end", "elapsed")
_ALLOCATED = ("start", "node_list", "nnodes", "cpus", "mem_mib", "gpus", "gpu_type")
_NAMES = records.Attempt._fields[3 : records.Attempt._fields.index("flags")]
_ELSEWHERE = {"user": "u.name", "name": "w.name", "state": "s.name"}
_SQL = (
    f"SELECT a.is_open, {', '.join(_ELSEWHERE.get(n, f'a.{n}') for n in _NAMES)} FROM attempts a"  # noqa: S608
    " JOIN works w ON w.id = a.work_id JOIN users u ON u.id = w.user_id JOIN states s ON s.id = a.state_id WHERE a.id = ?"
)
_NOTHING = (None, "", 0)


class Earlier:
    """What of attempts is kept while one source, which has no fields named in `lacking`, is written."""

    def __init__(self, store: Store, lacking: Sequence[str]) -> None:
        self._store = store
        self._lacking = [name for field in lacking for name in _TOLD_BY.get(field, ())]

    def kept(self, attempt: records.Attempt, number: int) -> tuple[records.Attempt, bool]:
        """The attempt with what only the history knows of it, which has it under this id; and whether it tells anything new."""
        ended, before = self._before(number)
        empty = [n for n in self._lacking if n == "label" or getattr(attempt, n) in _NOTHING]
        stays = {n: before[n] for n in empty if before[n] is not None}
        if "label" in stays and (before["label"].isdigit() or "[" in before["label"]):  # of tasks that waited: one of them now
            stays["label"] = attempt.label
        again = ended and attempt.is_open
        if again:
            stays |= {n: before[n] for n in _OF_THE_END} | {n: before[n] for n in _ALLOCATED if before[n] not in _NOTHING}
        whole = attempt._replace(**stays)
        same = all(getattr(whole, name) == value for name, value in before.items())
        return whole, not same or (attempt.nsteps > 0 and not again)

    def _before(self, number: int) -> tuple[bool, dict[str, Any]]:
        row = self._store.conn.execute(_SQL, (number,)).fetchone()
        values = [loaded_text(v) if isinstance(v, bytes) else v for v in row[1:]]
        return not row[0], dict(zip(_NAMES, values))
