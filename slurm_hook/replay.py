"""What was decided for a job, from its mark and the line in the log, and the same draw made again from the archived scores."""

from __future__ import annotations

import calendar
import json
import math
import os
import time

from . import drawing, hostlist, logfiles, mark, placement
from .errors import InputError, SnapshotError, WorkhorseError
from .light import TYPE_CHECKING
from .snapshot import scores_from_json

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .mark import Mark
    from .snapshot import Scores

LOG = "/var/log/workhorse/workhorse.log"
ARCHIVE = "snapshots"
LATEST = 40  # lines of one job that are told


def find_line(lines: Iterable[str], seed: int, snapshot: str) -> dict[str, Any] | None:
    """The fields of the decision with this seed and snapshot: the last such line of a log, whatever stands before its JSON."""
    found = None
    for line in lines:
        at = line.find('{"')
        if at < 0 or str(seed) not in line:
            continue
        try:
            fields = json.loads(line[at:])
        except ValueError:
            continue
        if isinstance(fields, dict) and fields.get("seed") == seed and fields.get("snapshot", "") == snapshot:
            found = fields
    return found


def words(found: Mark, folder: str, log: str) -> list[str]:
    """Lines on how the decision was made, with its draw made again; empty where the log isn't ours to read."""
    try:
        fields = find_line(logfiles.lines(log, made_at(found.snapshot)), found.seed, found.snapshot)
    except OSError:
        return []
    if fields is None:
        return [f"no line of this decision in {log}: rotated away, or written on another host"]
    by, rule = (str(fields.get(key, "?")) for key in ("by", "match"))
    lines = [f"decided by {WAYS.get(by, by)}; it is ours as {OURS.get(rule, rule)}; {fields.get('reason', '?')}"]
    if not fields.get("pool"):
        return lines
    if fields.get("method") == "attributed":
        lines.append(rank_words(float(fields.get("rank", 0.0))))
    try:
        pool, chances = redraw(fields, archived(folder, found.snapshot))
    except WorkhorseError as err:
        return [*lines, str(err)]
    same = "the same" if hostlist.fold(pool) == fields["pool"] else f"NOT the same as then: {fields['pool']}"
    lines.append(f"drawn again with seed {found.seed} from {len(chances)} candidates: {hostlist.fold(pool)} ({same})")
    best = sorted(chances, key=lambda name: -chances[name])[:4]
    return [*lines, "most likely were " + ", ".join(f"{name} {chances[name]:.3f}" for name in best)]


WAYS = {"wrapper": "the sbatch wrapper", "cli_filter": "the cli_filter plugin"}
OURS = {
    "directive": "it has a #WORKHORSE line", "mark": "`workhorse submit` marked it", "name": "its name fits [match] name",
    "min_nodes": "it takes [match] min_nodes or more", "min_gpus": "it takes [match] min_gpus or more",
    "comment_prefix": "its comment begins with [match] comment_prefix",
}  # fmt: skip


def rank_words(rank: float) -> str:
    """What a job's cost rank means for the nodes that it gets."""
    if rank <= 0:
        return "cost rank 0: a failure of it would cost no more than one of the site's typical job, so any node is good enough"
    return f"cost rank {rank:.2f} (0: any node is good enough, 1: the job that gets the best), by its nodes times its time limit"


DONE = {
    "steer": "confined it to {pool} for a pass, of {candidates} nodes that could have started it",
    "widen": "widened it again, as it had not started by then: {left}",
    "culprit": "left out {excludes}, among them what ended an earlier attempt",
    "refresh": "brought its excluded nodes up to date: {left}",
    "requeue": "requeued it under its number, as it died of its node: without {culprit}",
    "leave": "did not requeue it, though it died of its node: {reason}",
    "release": "took all our excludes off",
}


def made_at(snapshot: str) -> float:
    """When a snapshot was made (epoch s), as its id says: no line about it is older. Infinite where it doesn't say."""
    try:
        return float(calendar.timegm(time.strptime(snapshot[:16], "%Y%m%dT%H%M%SZ")))
    except ValueError:
        return math.inf


def dispatched(job: int, folder: str, log: str, since: float = math.inf) -> list[str]:
    """What dispatch (or its guard) did to a waiting job, in the order of the log; empty where the log isn't ours to read.

    since: how old (epoch s) what logrotate made of the log may be; as it stands, today's file alone is read.
    """
    try:
        found = [line for line in logfiles.lines(log, since) if f'"job":{job},' in line or f'"job":{job}}}' in line]
    except OSError:
        return []
    return [text for line in found[-LATEST:] for text in _told(line, job, folder)]


def _told(line: str, job: int, folder: str) -> list[str]:
    at = line.find('{"')
    try:
        fields = json.loads(line[at:])
    except ValueError:
        return []
    if not isinstance(fields, dict) or fields.get("job") != job or fields.get("by") not in ("dispatch", "guard"):
        return []
    done = DONE.get(str(fields.get("why") or fields.get("action")))
    if done is None:
        return []
    excludes = str(fields.get("excludes", ""))
    names = {"left": f"{excludes} left out" if excludes else "nothing left out", "culprit": excludes or "a known culprit"}
    said = done.format(**{"pool": "?", "candidates": "?", "reason": "?", **fields, **names, "excludes": excludes or "nothing"})
    who = "the guard of a dispatcher that died" if fields["by"] == "guard" else "dispatch"
    return [f"{_when(line[:at])}{who} {said}", *_again(fields, folder)]


def _when(head: str) -> str:
    """The time that syslog wrote in front: ISO, or the traditional three words."""
    words = head.split()
    if not words:
        return ""
    return f"{words[0] if words[0][:1].isdigit() else ' '.join(words[:3])}: "


def _again(fields: dict[str, Any], folder: str) -> list[str]:
    """The same draw made again, for a pool that dispatch drew."""
    if not fields.get("pool") or "seed" not in fields:
        return []
    try:
        pool, _ = redraw(fields, archived(folder, str(fields.get("snapshot", ""))))
    except WorkhorseError as err:
        return [f"  {err}"]
    same = "the same" if hostlist.fold(pool) == fields["pool"] else "NOT the same"
    return [f"  drawn again with seed {fields['seed']}: {hostlist.fold(pool)} ({same})"]


def archived(folder: str, snapshot: str) -> Scores:
    """The scores that a decision rested on. Raises SnapshotError where they are gone, InputError for a hostile id."""
    if not snapshot or mark.clean_name(snapshot) != snapshot or snapshot.startswith("."):
        raise InputError(f"{snapshot[:40]!r} is no snapshot id")
    path = os.path.join(folder, ARCHIVE, f"{snapshot}.json")
    try:
        with open(path, encoding="utf-8") as file:
            return scores_from_json(json.load(file), path)
    except (OSError, ValueError) as err:
        raise SnapshotError(f"{path}: the scores of that decision can't be read ({err}); see [publish] keep_days") from err


def redraw(fields: dict[str, Any], scores: Scores) -> tuple[list[str], dict[str, float]]:
    """The pool drawn again, and each candidate's probability. Raises InputError for a line that holds too little."""
    free = {name: float(mib) for mib, folded in fields.get("free", {}).items() for name in hostlist.expand(str(folded))}
    if not free:
        raise InputError("the log line does not name the candidates (too many, or nothing was drawn)")
    names = sorted(free)
    capacity = [free[name] for name in names]
    capability = [scores.nodes[name].capability if name in scores.nodes else None for name in names]
    gamma, demand = float(scores.settings.get("steer.gamma", placement.GAMMA)), float(fields.get("demand", 0.0))
    rank = float(fields.get("rank", 0.0))
    chances, pull, cap = placement.chances(scores.method, demand, capacity, capability, rank=rank, gamma=gamma)
    leaves = [scores.nodes[name].switch if name in scores.nodes else "" for name in names]
    total = float(fields.get("total", 0.0))
    count, seed = int(fields.get("count", 0)), int(fields["seed"])
    drawn = drawing.pool(leaves, chances, pull, capacity, count=count, total=total, seed=seed, ratio_cap=cap)
    return sorted(names[i] for i in drawn), dict(zip(names, chances))
