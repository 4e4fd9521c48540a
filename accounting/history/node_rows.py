"""The inventory in the history: what each node had, from when on; what its tasks let infer where nothing else is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..sources.node_inventory import NodeSpec
from .store import Store, transaction

_SPEC_COLUMNS = ("memory_mib", "cpus", "gpus", "gpu_type", "gres", "features", "partitions", "switch")


def save(store: Store, specs: Iterable[NodeSpec], when: int, source: str) -> int:
    """Keep the specs: a node that changed gets a new row from `when` on, one that is gone is marked. Returns changes."""
    changes = 0
    with transaction(store.conn, store.path):
        if when:
            _take_back(store, when)
        current = _current(store)
        seen = []
        for spec in specs:
            node = store.node_id(spec.name)
            seen.append((when or None, node))  # that of a dump tells no time
            values = tuple(v if v != "" else None for v in spec[1:])
            if current.get(node, (None,))[0:] != (*values, source):
                changes += 1
                store.conn.execute(
                    f"INSERT OR REPLACE INTO node_specs (node_id, valid_from, {', '.join(_SPEC_COLUMNS)}, source)"  # noqa: S608
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (node, when, *values, source),
                )
        store.conn.executemany(
            "UPDATE nodes SET first_seen = coalesce(min(coalesce(first_seen, ?1), ?1), first_seen),"
            " last_seen = coalesce(max(coalesce(last_seen, ?1), ?1), last_seen), gone = NULL WHERE id = ?2",
            seen,
        )
        store.conn.execute(
            "UPDATE nodes SET gone = coalesce(gone, ?) WHERE cluster_id = ? AND id IN (SELECT node_id FROM node_specs"
            " WHERE source = ?) AND coalesce(last_seen, 0) < ?",
            (when, store.cluster_id, source, when),
        )
    return changes


def _take_back(store: Store, now: int) -> None:
    """Undo what a run told whose clock was ahead: else its specs would stay the latest, and no node would ever be gone."""
    mine = "id IN (SELECT id FROM nodes WHERE cluster_id = ?)"
    store.conn.execute(f"DELETE FROM node_specs WHERE valid_from > ? AND node_{mine}", (now, store.cluster_id))  # noqa: S608
    for column in ("last_seen", "gone"):
        sql = f"UPDATE nodes SET {column} = ?1 WHERE {column} > ?1 AND cluster_id = ?2"  # noqa: S608
        store.conn.execute(sql, (now, store.cluster_id))


def _current(store: Store) -> Mapping[int, tuple[Any, ...]]:
    """The latest spec of each node: id → values and source."""
    rows = store.conn.execute(
        f"SELECT p.node_id, {', '.join('p.' + c for c in _SPEC_COLUMNS)}, p.source, max(p.valid_from)"  # noqa: S608
        " FROM node_specs p JOIN nodes n ON n.id = p.node_id WHERE n.cluster_id = ? GROUP BY p.node_id",
        (store.cluster_id,),
    )
    return {row[0]: tuple(row[1:-1]) for row in rows}


def present(db: Any, cluster: str) -> list[NodeSpec]:
    """The latest spec of each node that is in the configuration now, by name."""
    rows = db.execute(
        f"SELECT n.name, {', '.join('p.' + c for c in _SPEC_COLUMNS)}, max(p.valid_from) FROM node_specs p"  # noqa: S608
        " JOIN nodes n ON n.id = p.node_id JOIN clusters k ON k.id = n.cluster_id"
        " WHERE k.name = ? AND n.gone IS NULL GROUP BY n.id ORDER BY n.name",
        (cluster,),
    )
    return [NodeSpec(*row[:-1]) for row in rows]


def infer(store: Store) -> int:
    """Specs for nodes without inventory: the most that ran on a node at once is the least it has. Returns changes."""
    sql = (
        "SELECT t.node_id, n.name, t.start, coalesce(t.end, t.start + 1), t.mem_mib, t.cpus, t.gpus, a.gpu_type"
        " FROM tasks t JOIN nodes n ON n.id = t.node_id JOIN attempts a ON a.id = t.attempt_id"
        " WHERE n.cluster_id = ? AND n.id NOT IN (SELECT node_id FROM node_specs WHERE source <> 'inferred')"
        " ORDER BY t.node_id, t.start"
    )
    specs: list[NodeSpec] = []
    for name, sizes, kind in _largest(store.conn.execute(sql, (store.cluster_id,))):
        mem, cpus, gpus = (int(s) if s else None for s in sizes)
        specs.append(NodeSpec(name, mem, cpus, gpus, kind))
    with transaction(store.conn, store.path):
        for spec in specs:
            store.conn.execute(
                "INSERT OR REPLACE INTO node_specs (node_id, valid_from, memory_mib, cpus, gpus, gpu_type, source)"
                " VALUES (?, ?, ?, ?, ?, ?, 'inferred')",
                (store.node_id(spec.name), 0, spec.memory_mib, spec.cpus, spec.gpus, spec.gpu_type),
            )
    return len(specs)


def _largest(rows: Iterable[tuple[Any, ...]]) -> Iterable[tuple[str, list[float], str | None]]:
    """Rows sorted by node and start → name, largest concurrent (memory, CPUs, GPUs), GPU type."""
    import heapq  # noqa: PLC0415

    node, name, kind = None, "", None
    running: list[tuple[int, float, float, float]] = []
    now, most = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for number, its_name, start, end, *amounts, gpu_type in rows:
        if number != node:
            if node is not None:
                yield name, most, kind
            node, name, kind = number, its_name, None
            running, now, most = [], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        while running and running[0][0] <= start:
            ended = heapq.heappop(running)
            now = [x - y for x, y in zip(now, ended[1:])]
        used = [a or 0.0 for a in amounts]
        heapq.heappush(running, (end, *used))
        now = [x + y for x, y in zip(now, used)]
        most = [max(x, y) for x, y in zip(most, now)]
        kind = gpu_type or kind
    if node is not None:
        yield name, most, kind
