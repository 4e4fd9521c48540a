"""What was decided for a job, from its mark and the line in the log, and the same draw made again from the archived scores."""

from __future__ import annotations

import calendar
import json
import math
import os
import time
from collections import deque

from ..common import hostlist
from ..common.errors import HostlistError, InputError, SnapshotError, WorkhorseError
from ..common.record import TYPE_CHECKING, Record
from ..decision import drawing, placement
from ..published import log_reader, mark
from ..published.snapshot import scores_from_json

if TYPE_CHECKING:
    from typing import Any

    from ..published.log_reader import Entry
    from ..published.mark import Mark
    from ..published.snapshot import Scores

LOG = "/var/log/workhorse/workhorse.log"
ARCHIVE = "snapshots"
LATEST = 40  # lines of one job that are told
MOST = 2000  # lines that are looked at: of those that name it, the last
MAX_CAPACITY = 1e15  # MiB
NEWER = 1000  # nodes that came after the scores were made


class Witness(Record):
    """Where the log is read, and whose lines count. log: syslog's file; folder: of the published files; owner: uid of the job's
    user; service: uids of root and of who dispatches; journal: it is asked before the file."""

    log: str
    folder: str
    owner: int | None = None
    service: tuple[int, ...] = (0,)
    journal: bool = False

    def entries(self, since: float, needle: str) -> list[Entry]:
        """Believed lines that hold `needle`, of what the journal has, else of the file; the last LATEST. Raises OSError."""
        found = []
        if self.journal and math.isfinite(since):
            journal = log_reader.journal(since, time.time() + 60, MOST)
            found = [entry for entry in journal if needle in json.dumps(entry.fields, separators=(",", ":"))]
        if not found:
            some = deque((line for line in log_reader.lines(self.log, since) if needle in line), maxlen=MOST)
            found = [entry for entry in (log_reader.of_file(line, time.time()) for line in some) if entry is not None]
        return [entry for entry in found if log_reader.believed(entry, self.owner, self.service)]


def words(found: Mark, witness: Witness) -> list[str]:
    """Lines on how the decision was made, with its draw made again; empty where the log isn't ours to read."""
    try:
        entries = witness.entries(made_at(found.snapshot), f'"seed":{found.seed}')
    except OSError:
        return []
    said = [e for e in entries if e.fields.get("seed") == found.seed and e.fields.get("snapshot", "") == found.snapshot]
    if not said:
        return [f"no line of this decision in {witness.log}: rotated away, or written on another host"]
    fields = said[-1].fields
    by, rule = fields.get("by", "?"), fields.get("match", "?")
    lines = [f"decided by {WAYS.get(by, by)}; it is ours as {OURS.get(rule, rule)}; {fields.get('reason', '?')}"]
    return [*lines, *_pool_words(fields, witness.folder), *([UNVERIFIED] if said[-1].uid is None else [])]


def _pool_words(fields: dict[str, Any], folder: str) -> list[str]:
    if not fields.get("pool"):
        return []
    lines = [rank_words(float(fields.get("rank", 0.0)))] if fields.get("method") == "attributed" else []
    try:
        pool, chances = redraw(fields, archived(folder, fields.get("snapshot", "")))
    except WorkhorseError as err:
        return [*lines, str(err)]
    same = "the same" if hostlist.fold(pool) == fields["pool"] else f"NOT the same as then: {fields['pool']}"
    best = sorted(chances, key=lambda name: -chances[name])[:4]
    return [
        *lines, f"drawn again with seed {fields['seed']} from {len(chances)} candidates: {hostlist.fold(pool)} ({same})",
        "most likely were " + ", ".join(f"{name} {chances[name]:.3f}" for name in best),
    ]  # fmt: skip


UNVERIFIED = "(unverified: this is syslog's word, and anybody on the host can write there; the journal would know who did)"
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


def dispatched(job: int, witness: Witness, since: float = math.inf) -> list[str]:
    """What dispatch (or its guard) did to a waiting job, in the order of the log; empty where the log isn't ours to read.

    since: how old (epoch s) what logrotate made of the log may be; as it stands, today's file alone is read.
    """
    try:
        entries = [entry for entry in witness.entries(since, f'"job":{job}') if entry.fields.get("job") == job]
    except OSError:
        return []
    told = [(entry, _told(entry, witness.folder)) for entry in entries]
    told = [(entry, lines) for entry, lines in told if lines][-LATEST:]
    unverified = [UNVERIFIED] if any(entry.uid is None for entry, _ in told) else []
    return [*(line for _, lines in told for line in lines), *unverified]


def _told(entry: Entry, folder: str) -> list[str]:
    fields = entry.fields
    done = DONE.get(fields.get("why") or fields.get("action", "")) if fields.get("by") in ("dispatch", "guard") else None
    if done is None:
        return []
    excludes = fields.get("excludes", "")
    names = {"left": f"{excludes} left out" if excludes else "nothing left out", "culprit": excludes or "a known culprit"}
    said = done.format(**{"pool": "?", "candidates": "?", "reason": "?", **fields, **names, "excludes": excludes or "nothing"})
    who = "the guard of a dispatcher that died" if fields["by"] == "guard" else "dispatch"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
    return [f"{when}: {who} {said}", *_again(fields, folder)]


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
    """The pool drawn again, and each candidate's probability. Raises InputError for a line that holds too little, or what
    can't be of a decision by these scores."""
    free = _free(fields.get("free", {}), scores)
    names = sorted(free)
    count, total = int(fields.get("count", 0)), float(fields.get("total", 0.0))
    demand, rank = float(fields.get("demand", 0.0)), float(fields.get("rank", 0.0))
    if not (0 <= count <= len(names) and total >= 0 and demand >= 0 and -1 <= rank <= 1):
        raise InputError("the log line holds numbers that no decision has")
    capacity = [free[name] for name in names]
    capability = [scores.nodes[name].capability if name in scores.nodes else None for name in names]
    gamma = float(scores.settings.get("steer.gamma", placement.GAMMA))
    chances, pull, cap = placement.chances(scores.method, demand, capacity, capability, rank=rank, gamma=gamma)
    leaves = [scores.nodes[name].switch if name in scores.nodes else "" for name in names]
    drawn = drawing.pool(
        leaves, chances, pull, capacity, count=count, total=total, seed=int(fields["seed"]), ratio_cap=cap
    )  # fmt: skip
    return sorted(names[i] for i in drawn), dict(zip(names, chances))


def _free(told: dict[str, str], scores: Scores) -> dict[str, float]:
    """Capacity of each candidate (MiB). Anybody may have written the line: hardly more names are made than the scores have
    (nodes may be new since)."""
    free: dict[str, float] = {}
    most = len(scores.nodes) + NEWER
    for mib, folded in told.items():
        try:
            names = hostlist.expand(folded, most - len(free))
            amount = float(mib)
        except (HostlistError, ValueError) as err:
            raise InputError(f"the log line names no candidates that can be read ({err})") from None
        if not 0 <= amount < MAX_CAPACITY:
            raise InputError(f"the log line tells of nodes of {mib[:20]} MiB")
        free.update(dict.fromkeys(names, amount))
    if not free:
        raise InputError("the log line does not name the candidates (too many, or nothing was drawn)")
    return free
