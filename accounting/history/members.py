"""Members of arrays and het jobs are there once, whether or not a source tells Slurm's own number of them.

A dump without JobIDRaw has only their JobID (123_4, 123+1): such a member is stored under a number below 0 that is made of
it, a stand-in for Slurm's own. As soon as any source tells both, the attempt takes Slurm's number; a dump without it that is
read later finds the attempt by its JobID.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Optional

from ..sources import records
from .store import Store, transaction

Key = tuple[int, int]  # job id, submit
Old = tuple[int, bytes, Optional[int]]  # of an attempt that is there: id, digest, and id of the stand-in that it replaces

_NUMBERED = "job_id > 0 AND (array_task IS NOT NULL OR het_offset IS NOT NULL)"
# made only where such a dump is read: ordinary collects look for numbers
_INDEX = f"CREATE INDEX IF NOT EXISTS attempts_members ON attempts (cluster_id, label, submit) WHERE {_NUMBERED}"
_BY_LABEL = (  # by name: the planner would rather go through all numbers above 0
    "SELECT job_id, id, digest, is_open FROM attempts INDEXED BY attempts_members"  # noqa: S608
    f" WHERE cluster_id = ? AND label = ? AND submit = ? AND {_NUMBERED}"
)
_STAND_IN = "SELECT id FROM attempts WHERE cluster_id = ? AND job_id = ? AND submit = ?"


class _Numbered(NamedTuple):
    """An attempt that has Slurm's own number."""

    job_id: int
    id: int
    digest: bytes
    is_open: int


class Members:
    """Those of one cluster, while one source is written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # whether any has a stand-in: without, nobody need be looked for
        self.some = bool(store.value_of("SELECT EXISTS (SELECT 1 FROM attempts WHERE cluster_id = ? AND job_id < 0)"))
        self._indexed = False
        self._told: dict[Key | tuple[str, int], Key] = {}  # JobID and submit → key, of what isn't written yet

    @property
    def remembered(self) -> int:
        """How many are remembered because they may not be written yet."""
        return len(self._told)

    def written(self) -> None:
        """All that was told so far is in the database."""
        self._told.clear()

    def once(self, unique: Mapping[Key, records.Group]) -> bool:
        """False where a member of these was told under another number by these or by what isn't written yet."""
        told = self._told
        return all([told.setdefault((group.label, group.submit), key) == key for key, group in unique.items()])

    def found(
        self, unique: Mapping[Key, records.Group], known: Mapping[Key, tuple[int, bytes, None]]
    ) -> tuple[dict[Key, records.Group], dict[Key, Old]]:
        """Groups and what is known of them, under Slurm's own numbers as far as these are known here.

        Left out are groups without a number of attempts that ended: whoever told the number told more than they do.
        """
        groups: dict[Key, records.Group] = {}
        olds: dict[Key, Old] = {**known}
        for told, group in unique.items():
            own = self._numbered(group) if group.job_id < 0 else None
            if own is None:
                groups[told] = group
            elif own.is_open:
                key = own.job_id, group.submit
                groups[key], olds[key] = group._replace(job_id=own.job_id), (own.id, own.digest, None)
        for key, group in groups.items():
            row = self._stand_in(group)
            if row is not None:
                old, digest, _ = olds.get(key, (row, b"", None))
                olds[key] = old, digest, row
        return groups, olds

    def replace(self, row: int, old: int, attempt: records.Attempt) -> None:
        """The stand-in with this id becomes the attempt, or goes where the attempt is there too. In the caller's transaction."""
        conn, cluster = self._store.conn, self._store.cluster_id
        if row == old:
            conn.execute("UPDATE attempts SET job_id = ? WHERE id = ?", (attempt.job_id, row))
        else:
            for table, column in (("tasks", "attempt_id"), ("steps", "attempt_id"), ("attempts", "id")):
                conn.execute(f"DELETE FROM {table} WHERE {column} = ?", (row,))  # noqa: S608
        conn.execute(
            "UPDATE OR REPLACE job_marks SET job_id = ? WHERE cluster_id = ? AND job_id = ? AND submit = ?",
            (attempt.job_id, cluster, records.stand_in(attempt.label), attempt.submit),
        )

    def _stand_in(self, group: records.Group) -> int | None:
        """Id of the attempt that stands for this one, which has Slurm's number."""
        number = records.stand_in(group.label) if group.job_id > 0 else None
        if number is None:
            return None
        found = self._store.conn.execute(_STAND_IN, (self._store.cluster_id, number, group.submit)).fetchone()
        return found[0] if found else None

    def _numbered(self, group: records.Group) -> _Numbered | None:
        conn = self._store.conn
        if not self._indexed:
            with transaction(conn, self._store.path):
                conn.execute(_INDEX)
            self._indexed = True
        found = conn.execute(_BY_LABEL, (self._store.cluster_id, group.label, group.submit)).fetchone()
        return _Numbered(*found) if found else None
