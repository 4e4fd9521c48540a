"""The database → `columns.History`, what the scorer reads. Straight from SQL into numpy: no Python object per row kept.

Everything is as it was known at `as_of`: what ended later still runs then, events that came later are not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_hook.common.config import Settings
from slurm_hook.common.errors import StoreError

from ..sources.events import Reasons
from . import columns as c
from . import culprits, failed_steps, settled
from .store import loaded_text

DAY = 86_400.0
TOGETHER_SECONDS = 60.0  # members of an array or het job that end within it are one failure
# A job "running" this much beyond its limit, or beyond what no job of Slurm's outlives (see `_OUTLIVED`), is a record that
# never got its end. Nobody knows when it ended or how: it says nothing, its hours don't count, and it fills its nodes no
# longer than it can have run.
_OVERDUE = 86_400.0
# One of its nodes went down, which ends each job there (those of --no-kill too rare to tell apart), or the same job came again.
_OUTLIVED = """
SELECT a.id, (SELECT min(e.start) FROM tasks t JOIN node_events e ON e.node_id = t.node_id WHERE t.attempt_id = a.id
    AND e.kind = 'down' AND e.source = 'slurmdbd' AND e.start > a.start),
  (SELECT min(b.submit) FROM attempts b WHERE b.cluster_id = a.cluster_id AND b.job_id = a.job_id AND b.submit > a.submit)
FROM attempts a WHERE a.cluster_id = ? AND a.is_open = 1 AND a.end IS NULL AND a.start IS NOT NULL
"""


def load_history(db: Any, cluster: str, as_of: float, window_days: float, settings: Settings, *, kept: bool = True) -> c.History:
    """The window (as_of − window_days, as_of] of one cluster. kept: blocks of columns that an earlier run left are read in
    place of their rows, which gives the same. Raises StoreError when the cluster isn't in the database."""
    db.execute("BEGIN")  # one state of the database, whatever a collector writes meanwhile
    try:
        return _load(db, window_of(db, cluster, as_of, window_days), cluster, settings, kept)
    finally:
        db.execute("COMMIT")


def window_of(db: Any, cluster: str, as_of: float, window_days: float) -> settled.Window:
    """The stretch that is read. Raises StoreError when the cluster isn't in the database."""
    row = db.execute("SELECT id FROM clusters WHERE name = ?", (cluster,)).fetchone()
    if row is None:
        known = ", ".join(r[0] for r in db.execute("SELECT name FROM clusters")) or "none"
        raise StoreError(f"cluster {cluster!r} has no history here (known: {known}); collect it first, or name another with -M")
    return settled.Window(row[0], as_of - window_days * DAY, as_of)


def _load(db: Any, window: settled.Window, cluster: str, settings: Settings, kept: bool) -> c.History:
    cluster_id, start, as_of = window
    nodes, node_at = _nodes(db, cluster_id, as_of)
    raw, task = settled.read(db, window, kept=kept)
    ids = raw["id"]
    latest = _latest_ends(db, raw, window)
    attempts = _as_attempts(db, raw, window, settings, np.isfinite(latest))
    attempt_at, node = task.pop("at"), node_at[task.pop("node")]
    ends = np.where(np.isnan(raw["end"]) | (raw["end"] > as_of), np.minimum(as_of, latest), raw["end"])
    begin, end = np.minimum(raw["start"], ends)[attempt_at], ends[attempt_at]
    specs = _Specs(db, cluster_id, node_at)
    demand, capacity = specs.demand(node, begin, task.pop("mem"), task.pop("gpus"), settings)
    events = _events(db, cluster_id, node_at, (start, as_of), Reasons(settings["events.reasons"]))
    where, was_lost, outcome = culprits.Where(node, attempt_at, end), culprits.lost(db, raw), attempts.outcome
    outcome[culprits.planned(outcome, was_lost, where, events)] = c.SILENT
    culprit = culprits.by_events(outcome, was_lost, where, events) | culprits.by_name(db, ids, outcome, where, nodes)
    culprit |= culprits.alone(outcome, was_lost, where)
    attempts = replace(attempts, lost=was_lost)
    correct = np.where(outcome == c.RIGHT, 1.0, np.where(outcome == c.WRONG, -1.0, np.nan))
    tasks = c.Tasks(node, attempt_at, begin, end, demand, capacity, correct[attempt_at], culprit)
    failed = failed_steps.find(db, window, ids, {name: i for i, name in enumerate(nodes.names)})
    tasks, attempts = failed_steps.split(tasks, attempts, ids, failed, events)
    return c.History(cluster, tasks, attempts, specs.onto(nodes), events, start, as_of, specs.notes)


def _as_attempts(
    db: Any, raw: Mapping[str, Any], window: tuple[int, float, float], settings: Settings, endless: c.BoolArray
) -> c.Attempts:
    outcome = _outcomes(db, raw, window, settings)
    outcome[endless] = c.SILENT
    users, user_at = _numbered(raw["user"])
    works, work_at = _numbered(raw["work"])
    return c.Attempts(
        job=raw["job_id"],
        user=user_at,
        work=work_at,
        group=_groups(raw, outcome),
        outcome=outcome,
        users=_names(db, "SELECT id, name FROM users", users),
        works=_names(db, "SELECT w.id, u.name, w.name FROM works w JOIN users u ON u.id = w.user_id", works),
    )


def _numbered(ids: c.FloatArray) -> tuple[NDArray[np.int64], c.IntArray]:
    """The database ids there are, ascending, and of each element its position among them. The ids are small: no sorting."""
    there = np.bincount(ids.astype(np.int64)) > 0
    return np.flatnonzero(there), (np.cumsum(there, dtype=np.int32) - 1)[ids.astype(np.int64)]


def _names(db: Any, sql: str, ids: NDArray[np.int64]) -> list[str]:
    """Names by id; of several parts put together here, as SQLite makes text that can't be read of bytes that are not UTF-8."""
    wanted = {number: parts for number, *parts in db.execute(sql)}
    return ["/".join(map(loaded_text, wanted[i])) for i in ids.tolist()]


def outcome_of(state: str, code: float, signal: float, settings: Settings) -> int:
    """Outcome of one state and exit code by [outcomes]: `exit_codes` ("code" or "code:signal") before `states`.

    Where a node was lost Slurm sets the code (1 from 24.11 on, 0 before): it tells nothing of the job.
    """
    names = {"right": c.RIGHT, "wrong": c.WRONG, "silent": c.SILENT, "survived": c.SURVIVED}
    by_code = settings["outcomes.exit_codes"]
    if by_code and not np.isnan(code):
        number, killed = int(code), 0 if np.isnan(signal) else int(signal)
        for key in (f"{number}:{killed}", str(number) if not killed else ""):
            if key in by_code and state not in ("COMPLETED", *culprits.LOST):
                return names[by_code[key]]
    return names[settings["outcomes.states"].get(state, settings["outcomes.other"])]


def _outcomes(db: Any, raw: Mapping[str, Any], window: tuple[int, float, float], settings: Settings) -> c.ByteArray:
    cluster_id, _, as_of = window
    words = dict(db.execute("SELECT id, name FROM states").fetchall())
    state, code, signal = (np.nan_to_num(raw[name], nan=-1.0) for name in ("state", "code", "signal"))
    # one number for the three; exit codes from 2^20 on, which no process has, are one kind
    keys = (state * 2.0**20 + np.clip(code, -1, 2**20 - 2) + 1) * 256.0 + np.clip(signal, -1, 254) + 1
    _, first, kind_at = np.unique(keys, return_index=True, return_inverse=True)
    kinds = np.stack([state[first], code[first], signal[first]], axis=1)
    table = [outcome_of(words[int(s)], np.nan if k < 0 else k, np.nan if g < 0 else g, settings) for s, k, g in kinds.tolist()]
    outcome = np.array(table, dtype=np.int8)[kind_at.ravel()] if table else np.zeros(0, np.int8)
    running = np.isnan(raw["end"]) | (raw["end"] > as_of)
    outcome[running] = c.SURVIVED
    outcome[_marked(db, raw, cluster_id) & ~running] = c.WRONG
    return outcome


def _latest_ends(db: Any, raw: Mapping[str, Any], window: tuple[int, float, float]) -> c.FloatArray:
    """When attempts whose record never got its end ran at the latest (epoch s); infinite for all others."""
    cluster_id, _, as_of = window
    latest = np.where(np.isnan(raw["end"]) & np.isfinite(raw["limit"]), raw["start"] + raw["limit"] * 60, np.inf)
    for number, *ends in db.execute(_OUTLIVED, (cluster_id,)):
        at = int(np.searchsorted(raw["id"], number))  # attempts come by id
        if any(ends) and at < len(latest) and raw["id"][at] == number:
            latest[at] = min(latest[at], *[end for end in ends if end is not None])
    return np.where(latest + _OVERDUE < as_of, latest, np.inf)


def _marked(db: Any, raw: Mapping[str, Any], cluster_id: int) -> c.BoolArray:
    sql = "SELECT job_id, submit FROM job_marks WHERE mark = 'wrong' AND cluster_id = ?"
    marks = set(db.execute(sql, (cluster_id,)).fetchall())
    if not marks:
        return np.zeros(len(raw["id"]), dtype=bool)
    return np.array([(int(j), int(s)) in marks for j, s in zip(raw["job_id"], raw["submit"])], dtype=bool)


def _groups(raw: Mapping[str, Any], outcome: c.ByteArray) -> c.IntArray:
    """One number for failures of members of one array or het job that end together; every other attempt its own."""
    end, parent = raw["end"], raw["parent"]
    members = np.flatnonzero((outcome == c.WRONG) & (parent >= 0) & np.isfinite(end))
    group = np.arange(len(outcome), dtype=np.int32)
    number = c.together(parent[members], end[members], TOGETHER_SECONDS)
    first = members[np.unique(number, return_index=True)[1]]  # named after its first member
    group[members] = first[number]
    return group


def _nodes(db: Any, cluster_id: int, as_of: float) -> tuple[c.Nodes, c.IntArray]:
    """The nodes of the cluster by name, and database id → position (−1: not of this cluster)."""
    rows = db.execute(
        "SELECT id, name, first_seen, last_seen, gone FROM nodes WHERE cluster_id = ? ORDER BY name", (cluster_id,)
    ).fetchall()
    position = np.full(max((r[0] for r in rows), default=0) + 1, -1, dtype=np.int32)
    for i, row in enumerate(rows):
        position[row[0]] = i
    first = np.array([np.nan if r[2] is None else r[2] for r in rows], dtype=np.float64)
    last = np.array([np.nan if r[3] is None else r[3] for r in rows], dtype=np.float64)
    none = np.full(len(rows), -1, dtype=np.int32)
    left = np.array([r[4] is not None and r[4] <= as_of for r in rows], dtype=bool)
    return c.Nodes([r[1] for r in rows], none, none.copy(), first, np.minimum(last, as_of), left=left), position


class _Specs:
    """What the nodes had at a time. One sorted key (node, valid_from) makes the look-up one binary search."""

    def __init__(self, db: Any, cluster_id: int, node_at: c.IntArray) -> None:
        rows = db.execute(
            "SELECT p.node_id, p.valid_from, p.memory_mib, p.gpus, p.gpu_type, p.switch, p.source FROM node_specs p"
            " JOIN nodes n ON n.id = p.node_id WHERE n.cluster_id = ?",
            (cluster_id,),
        ).fetchall()
        rows.sort(key=lambda r: (node_at[r[0]], r[1]))
        self.rows = rows
        self.node = np.array([node_at[r[0]] for r in rows], dtype=np.int64)
        self.since = np.array([r[1] for r in rows], dtype=np.float64)
        self.memory = np.array([np.nan if r[2] is None else r[2] for r in rows], dtype=np.float64)
        self.gpus = np.array([r[3] or 0 for r in rows], dtype=np.float64)
        guessed = sum(kind == "inferred" for kind in {r[0]: r[6] for r in rows}.values())  # by the latest of each
        self.notes = [f"{guessed} nodes have no inventory: their size is the most that ran on them at once"] if guessed else []

    def at(self, node: c.IntArray, when: c.FloatArray) -> NDArray[np.int64]:
        """Row of the spec valid at a time (the first one before its time too); −1 without any."""
        if not self.rows:
            return np.full(len(node), -1, dtype=np.int64)
        firsts = np.searchsorted(self.node, np.arange(-1, max(node.max(initial=0), self.node[-1]) + 2))  # of node −1, 0, …
        low, size = firsts[node + 1], np.diff(firsts)[node + 1]
        at = np.where(size > 0, low, -1)
        many = np.flatnonzero(size > 1)  # nodes that changed: few
        scale = 1e11  # above any epoch second; node · scale stays exact below 2^53
        keys = self.node * scale + self.since
        found = np.searchsorted(keys, node[many] * scale + when[many], side="right") - 1
        at[many] = np.clip(found, low[many], low[many] + size[many] - 1)
        return at

    def demand(
        self, node: c.IntArray, when: c.FloatArray, mem: c.FloatArray, gpus: c.FloatArray, settings: Settings
    ) -> tuple[c.FloatArray, c.FloatArray]:
        """Demand and capacity of tasks in MiB of the capacity resource (mem, gpu_mem, or auto: by the node)."""
        at = self.at(node, when)
        there = at >= 0
        pick = np.where(there, at, 0)
        resource = settings["scoring.capacity_resource"]
        sizes = settings["scoring.gpu_mem"]
        if not self.rows:
            return mem.copy(), np.full(len(node), np.nan)
        per_gpu = np.array([gpu_size(r[4], sizes) for r in self.rows], dtype=np.float64)
        use_gpu = (self.gpus[pick] > 0) & there if resource == "auto" else np.full(len(node), resource == "gpu_mem")
        demand = np.where(use_gpu, np.nan_to_num(gpus) * per_gpu[pick], mem)
        capacity = np.where(use_gpu, self.gpus[pick] * per_gpu[pick], self.memory[pick])
        return demand, np.where(there & (capacity > 0), capacity, np.nan)

    def onto(self, nodes: c.Nodes) -> c.Nodes:
        """Nodes with GPU type and switch of their latest spec."""
        latest = {int(n): r for n, r in zip(self.node, self.rows)}
        types = sorted({r[4] for r in latest.values() if r[4]})
        switches = sorted({r[5] for r in latest.values() if r[5]})
        gpu_type, switch = nodes.gpu_type.copy(), nodes.switch.copy()
        for n, r in latest.items():
            gpu_type[n] = types.index(r[4]) if r[4] else -1
            switch[n] = switches.index(r[5]) if r[5] else -1
        return replace(nodes, gpu_type=gpu_type, switch=switch, gpu_types=types, switches=switches)


def gpu_size(kind: str | None, sizes: Mapping[str, float]) -> float:
    """MiB of one GPU by [scoring.gpu_mem]: the type's, of a key that is part of its name, else `default`."""
    if kind:
        if kind in sizes:
            return float(sizes[kind])
        inside = [k for k in sizes if k != "default" and k.lower() in kind.lower()]
        if inside:
            return float(sizes[max(inside, key=len)])
    return float(sizes.get("default", np.nan))


_KINDS = {"down": c.DOWN, "drain": c.DRAIN, "repaired": c.REPAIRED, "bad": c.MARKED_BAD, "ignore": c.MARKED_IGNORE}
_CLASSES = {"hardware": c.REASON_HARDWARE, "user": c.REASON_USER, "planned": c.REASON_PLANNED, "repaired": c.REASON_REPAIRED}


def _events(db: Any, cluster_id: int, node_at: c.IntArray, window: tuple[float, float], classify: Reasons) -> c.Events:
    """Events up to as_of: those of the window, and whatever came after a mark `bad`, as a repair ends that. Slurm's reasons
    are sorted by the settings of now, whatever they were when collected."""
    start, as_of = window
    rows = db.execute(
        "SELECT e.node_id, e.kind, e.reason_class, e.start, e.end, e.source, e.reason FROM node_events e"
        " JOIN nodes n ON n.id = e.node_id WHERE n.cluster_id = ? AND e.start <= ? AND (e.end IS NULL OR e.end >= ?"
        " OR e.start >= (SELECT min(b.start) FROM node_events b WHERE b.node_id = e.node_id AND b.kind = 'bad'))"
        " ORDER BY e.start, e.id",
        (cluster_id, as_of, start - culprits.MATCH_SECONDS),
    ).fetchall()
    if not rows:
        return c.empty_events()
    text = tuple(loaded_text(r[6]) for r in rows)
    kept = [classify(words) if r[5] == "slurmdbd" else r[2] for r, words in zip(rows, text)]
    kind = np.array([_KINDS.get(r[1], c.REPORTED) for r in rows], dtype=np.int8)
    end = np.array([np.nan if r[4] is None else r[4] for r in rows], dtype=np.float64)
    return c.Events(
        node=node_at[np.array([r[0] for r in rows], dtype=np.int64)],
        kind=kind,
        reason=np.array([_CLASSES.get(name, c.REASON_UNKNOWN) for name in kept], dtype=np.int8),
        start=np.array([r[3] for r in rows], dtype=np.float64),
        end=c.known_ends(kind, end, as_of),
        text=text,
    )
