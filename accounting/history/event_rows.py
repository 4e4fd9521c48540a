"""Node events into the history: Slurm's, imported ones and marks, each once."""

from __future__ import annotations

from collections.abc import Iterable

from ..sources.events import Event
from .store import Store, stored_text, transaction

# of an event told again the reason of now counts; of several reports of one second ("xid 79", "xid 63") each is kept
_REASON = (
    "CASE WHEN excluded.kind <> 'report' THEN excluded.reason WHEN instr(node_events.reason, excluded.reason)"
    " THEN node_events.reason ELSE node_events.reason || '; ' || excluded.reason END"
)
_CLASS = (
    "CASE WHEN excluded.kind = 'report' AND node_events.reason_class = 'hardware' THEN 'hardware' ELSE excluded.reason_class END"
)


def save(store: Store, events: Iterable[Event]) -> int:
    """Keep events, each once; what changed of a known one (its end, its reason) is brought up to date. Returns their number."""
    with transaction(store.conn, store.path):
        rows = [
            (store.node_id(e.node), e.kind, e.start, e.end, e.state, stored_text(e.reason), e.reason_class,
             stored_text(e.who), stored_text(e.source))
            for e in events
        ]  # fmt: skip
        store.conn.executemany(
            "INSERT INTO node_events (node_id, kind, start, end, state, reason, reason_class, who, source)"  # noqa: S608
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (node_id, start, kind, source) DO UPDATE SET"
            f" end = excluded.end, state = excluded.state, reason = {_REASON}, reason_class = {_CLASS}, who = excluded.who",
            rows,
        )
    return len(rows)
