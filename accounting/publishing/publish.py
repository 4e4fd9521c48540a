"""Scores → the published files: scores.json for the submit path, a Lua table for job_submit, metrics for node_exporter.

Each file is written whole or not at all (temporary file, fsync, rename). Node data and the hook's settings only: no user
name, job name or path ever gets here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterable
from contextlib import suppress

from slurm_hook.common import installed
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SnapshotError
from slurm_hook.published import lua_table
from slurm_hook.published.snapshot import SCORES_NAME, NodeScore, Scores, read_scores, scores_to_json, write_json, write_text

from ..history.columns_reader import gpu_size
from ..scoring.score import NodeRow, ScoreTable
from ..sources.node_inventory import NodeSpec

ARCHIVE = "snapshots"
STATE = os.path.dirname(Settings().history.path)  # on the controller


def capacity_of(spec: NodeSpec, settings: Settings) -> float:
    """Capacity b of the method in MiB: memory, GPU memory, or by `auto` GPU memory where the node has GPUs. 0: unknown."""
    resource = settings.scoring.capacity_resource
    if resource == "mem" or (resource == "auto" and not spec.gpus):
        return float(spec.memory_mib or 0)
    size = (spec.gpus or 0) * gpu_size(spec.gpu_type, settings.scoring.gpu_mem)
    return size if size > 0 else 0.0


def build(
    table: ScoreTable, specs: Iterable[NodeSpec], settings: Settings, *, cluster: str, created: float,
    cost_quantiles: tuple[float, ...] = (),
) -> Scores:  # fmt: skip
    """The snapshot of one scoring run. Nodes are those that exist now (`specs`): one that left is not published.

    The id names moment and content, so that two runs over the same history can be told apart and compared.
    """
    rows = {row.name: row for row in table.rows}
    nodes = {spec.name: _node(spec, rows.get(spec.name, NodeRow(spec.name)), settings) for spec in specs}
    scores = Scores("", cluster, created, table.as_of, table.method, settings.hook_mapping(), nodes, cost_quantiles)
    return identified(scores)


def identified(scores: Scores) -> Scores:
    """The snapshot with the id that its moment and content give it."""
    data = scores_to_json(scores)
    content = json.dumps([data["nodes"], data["settings"]], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return scores._replace(id=time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime(scores.created)) + digest)


def _node(spec: NodeSpec, row: NodeRow, settings: Settings) -> NodeScore:
    return NodeScore(
        name=spec.name, capability=row.capability, relative=row.relative, low=row.low, high=row.high,
        reliability=row.reliability, breakdown=row.breakdown, hazard=row.hazard, tasks=row.tasks, lemon=row.lemon,
        suspect_until=row.suspect_until, capacity=capacity_of(spec, settings), mem=int(spec.memory_mib or 0),
        cpus=int(spec.cpus or 0), gpus=int(spec.gpus or 0), gpu_type=spec.gpu_type or "", features=_words(spec.features),
        partitions=_words(spec.partitions), switch=spec.switch or "",
    )  # fmt: skip


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word for word in (text or "").split(",") if word)


def publish(scores: Scores, settings: Settings) -> str:
    """Write scores.json and its copy in the archive; drop archived ones older than `[publish] keep_days`.

    Returns the path of scores.json. Raises SnapshotError when the folder can't be written; what was there stays.
    """
    folder = settings.publish.path
    _refuse_none(folder)
    _keep_better(scores, folder)
    data = scores_to_json(scores)
    archive = os.path.join(folder, ARCHIVE)
    try:
        os.makedirs(archive, mode=0o755, exist_ok=True)
    except OSError as err:
        raise SnapshotError(f"{archive}: can't be made ({err.strerror}); let the service user write in {folder}") from err
    # the archive first: whatever a decision names by its id can be looked up later
    write_json(archive, f"{scores.id}.json", data)
    _drop_old(archive, scores.created - settings.publish.keep_days * 86400)
    for place in _table_folders(folder):
        write_text(place, lua_table.NAME, lua_table.text(scores))
    return write_json(folder, SCORES_NAME, data)


def _refuse_none(folder: str) -> None:
    """A mistyped path must not become a folder: nobody would read what is published there. Raises SnapshotError."""
    if os.path.isdir(folder):
        return
    owner = f"install -d -o {installed.service_user()} -m 0755" if installed.note() else "mkdir"
    raise SnapshotError(f"{folder}: there is no such folder; mend [publish] path, or make it: `{owner} {shlex.quote(folder)}`")


def _table_folders(folder: str) -> list[str]:
    """Where the table for job_submit goes. slurmctld reads it under its locks, so a controller has it on its own disk,
    wherever the published folder lies: a shared file system that hangs must not stop Slurm."""
    own = installed.note().get("role") == "controller" and os.path.isdir(STATE)
    return [folder, STATE] if own else [folder]


def _keep_better(scores: Scores, folder: str) -> None:
    """A table without a single score never takes the place of one that has some: it is a mistake in settings or collecting.

    Raises SnapshotError. After `max_age_hours` submissions pass the old one by, as they would the new one.
    """
    if any(node.capability is not None for node in scores.nodes.values()):
        return
    try:
        before = read_scores(folder, trusted_uids=[os.geteuid()])
    except SnapshotError:
        return  # nothing that could be lost
    scored = sum(node.capability is not None for node in before.nodes.values())
    if scored:
        raise SnapshotError(
            f"{folder}: not published: none of {len(scores.nodes)} nodes has a score, while {scored} of the published ones have;"
            f" see [scoring] window_days and whether collect still reads jobs, or remove {SCORES_NAME} if that is right"
        )


def _drop_old(archive: str, before: float) -> None:
    for entry in os.scandir(archive):
        with suppress(FileNotFoundError):  # collect and refresh publish, each by itself: the other was quicker
            if entry.name.endswith(".json") and entry.stat(follow_symlinks=False).st_mtime < before:
                os.unlink(entry.path)
