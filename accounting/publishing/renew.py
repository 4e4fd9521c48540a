"""Suspects and changed settings into the published scores at each collect: the last hours alone, no scoring."""

from __future__ import annotations

import json
import time
from typing import Any

from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SnapshotError
from slurm_hook.common.installed import trusted_uids
from slurm_hook.published.snapshot import WHILE_MARKED, read_scores

from ..history.columns_reader import load_history
from ..scoring.suspects import LASTS, WITHIN, of_history
from . import publish


def renew(db: Any, cluster: str, settings: Settings, now: float | None = None) -> tuple[str, ...]:
    """Bring suspects and settings of the published scores up to date; returns the names of suspects that nobody has
    marked `bad` (marked ones are left out as well). Writes only where something changed: the submit path knows the
    settings from there alone, so a new mode must not wait for the night.

    Raises SnapshotError when there are scores that can't be read or written. Without any, or of another cluster: nothing.
    """
    moment = time.time() if now is None else now
    history = load_history(db, cluster, moment, (WITHIN + LASTS) / 86400.0, settings)
    ends = dict(zip(history.nodes.names, of_history(history).tolist()))
    names = tuple(name for name, end in ends.items() if 0 < end < WHILE_MARKED)
    try:
        scores = read_scores(settings.publish.path, trusted_uids=trusted_uids())
    except SnapshotError as err:
        if isinstance(err.__cause__, FileNotFoundError):
            return names  # not scored yet
        raise
    if scores.cluster != cluster:
        return names
    nodes = {name: node._replace(suspect_until=ends.get(name, 0.0)) for name, node in scores.nodes.items()}
    expired = [n for n, node in scores.nodes.items() if node.suspect_until and node.suspect_until <= moment]
    changed = any(nodes[n] != node for n, node in scores.nodes.items() if n not in expired)
    hook = json.loads(json.dumps(settings.hook_mapping()))  # as it reads when it was written
    if changed or hook != scores.settings:
        publish.publish(publish.identified(scores._replace(nodes=nodes, settings=hook)), settings)
    return names
