"""What one nightly run leaves to the next: the heavy threshold, found anew every 30 days, and sums of settled stretches.

A threshold that moves a little each night would let a node's groups change because of other nodes' tasks.
"""

from __future__ import annotations

from typing import Any

from slurm_hook.common.config import Settings

from ..history.store import transaction
from . import score
from .published_method import Options
from .stretches import Stretches, none, pack, unpack

KEEP = 30 * 86400.0


def threshold(db: Any, cluster: str, method: str, as_of: float) -> float | None:
    """The heavy threshold that a run in the 30 days before `as_of` found for this method and resource, if any."""
    row = db.execute(
        "SELECT v.value FROM carried v JOIN clusters k ON k.id = v.cluster_id"
        " WHERE k.name = ? AND v.name = ? AND v.made <= ? AND v.made > ?",
        (cluster, f"heavy_threshold/{method}", as_of, as_of - KEEP),
    ).fetchone()
    return None if row is None else float(row[0])


def options(db: Any, cluster: str, settings: Settings, as_of: float) -> Options:
    """The scoring settings for whoever tells of the attributed scores of a moment: with the threshold that they have."""
    return score.options(settings, threshold(db, cluster, kind(settings, "attributed"), as_of))


def kind(settings: Settings, method: str = "") -> str:
    """Which threshold: of a method (the chosen one), and of what utilization is measured in."""
    return f"{method or settings.scoring.method}/{settings.scoring.capacity_resource}"


def keep_threshold(db: Any, cluster: str, method: str, as_of: float, value: float) -> None:
    """Remember a threshold just found, in a transaction of its own."""
    with transaction(db.conn):
        db.execute(
            "INSERT OR REPLACE INTO carried SELECT id, ?, ?, ? FROM clusters WHERE name = ?",
            (f"heavy_threshold/{method}", value, int(as_of), cluster),
        )


def past(db: Any, cluster: str) -> Stretches:
    """The settled stretches that the last run left, perhaps none."""
    row = db.execute(
        "SELECT s.data FROM stretches s JOIN clusters k ON k.id = s.cluster_id WHERE k.name = ?", (cluster,)
    ).fetchone()
    return none([]) if row is None else unpack(row[0])


def keep_past(db: Any, cluster: str, rows: Stretches) -> None:
    """Leave these to the next run, in a transaction of its own."""
    data = pack(rows)
    with transaction(db.conn):
        db.execute("INSERT OR REPLACE INTO stretches SELECT id, ? FROM clusters WHERE name = ?", (data, cluster))
