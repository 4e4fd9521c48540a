"""Metrics for node_exporter's textfile collector: node scores, counts, time stamps, decisions of the last day.

Names follow Prometheus' conventions: base units (seconds, bytes, ratio) as suffix, time stamps instead of ages (an age is
`time() - …_timestamp_seconds`, so it also grows when nothing writes the file any more). Node data only, no user data.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from slurm_hook import __version__
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SnapshotError, WorkhorseError
from slurm_hook.common.installed import disabled
from slurm_hook.published import decision_log
from slurm_hook.published.snapshot import Live, Scores, read_live, read_scores

from ..evaluation import decisions
from ..history.sqlite_words import look_at

FILE_NAME = "workhorse.prom"
DAY = 86400
ACTIONS = ("pass", "observe", "avoid", "steer", "fail_open")


class Metrics:
    """The registry with all metrics; `fill_*` sets what is known."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        g = self._gauge
        self.build = g("build_info", "Version that wrote this file", "version")
        self.mode = g("mode_info", "Mode that submissions act in; off while it is disabled on this host", "mode")
        self.relative = g("node_capability_ratio", "Capability over the cluster's median; 1 is typical", "cluster", "node")
        self.mtbf = g("node_mtbf_seconds", "Heavy work per node-caused failure", "cluster", "node")
        self.hazard = g("node_hazard_per_second", "Node-caused failures per second of heavy work", "cluster", "node")
        self.tasks = g("node_tasks", "Tasks of the scored stretch of history", "cluster", "node")
        self.lemon = g("node_lemon", "1 where the node is almost surely far worse than the others", "cluster", "node")
        self.suspect = g("node_suspect", "1 while the node is excluded for a series of early failures", "cluster", "node")
        self.nodes = g("nodes", "Nodes by what is known of them", "cluster", "state")
        self.scores_at = g("scores_timestamp_seconds", "When the published scores were made", "cluster")
        self.live_at = g("live_timestamp_seconds", "When dispatch last made a pass", "cluster")
        self.collect_at = g("collect_timestamp_seconds", "Accounting is read up to here", "cluster")
        self.attempts = g("history_attempts", "Job attempts in the history", "cluster")
        self.rejects = g("history_rejects", "Rows of accounting that could not be understood", "cluster")
        self.size = g("history_size_bytes", "Size of the history on disk")
        self.decisions = g("decisions_last_day", "Decisions logged in the last 24 hours", "route", "action")
        self.fail_opens = g("fail_opens_last_day", "Submissions of the last 24 hours that our part failed and let pass", "reason")
        self.fallbacks = g("steer_fallbacks_last_day", "Decisions of the last 24 hours where mode steer acts as avoid", "reason")
        self.written_at = g("metrics_timestamp_seconds", "When this file was written")

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"workhorse_{name}", text, labels, registry=self.registry)

    def text(self) -> str:
        """The exposition format."""
        return generate_latest(self.registry).decode()

    def values(self) -> list[dict[str, Any]]:
        """The same as objects of name, labels and value; null for a value that is no finite number."""
        samples = (sample for metric in self.registry.collect() for sample in metric.samples)
        return [{"name": s.name, "labels": s.labels, "value": s.value if math.isfinite(s.value) else None} for s in samples]

    def fill_scores(self, scores: Scores, now: float) -> None:
        """What is known of the nodes. The published method's reliability is no time."""
        states: Counter[str] = Counter({"scored": 0, "unscored": 0, "lemon": 0, "suspect": 0})
        mtbf = _seconds if scores.method == "attributed" else lambda hours: None
        for name, node in scores.nodes.items():
            labels = (scores.cluster, name)
            states["scored" if node.capability is not None else "unscored"] += 1
            for gauge, value in ((self.relative, node.relative), (self.mtbf, mtbf(node.reliability)),
                                 (self.hazard, node.hazard and node.hazard / 3600), (self.tasks, node.tasks)):  # fmt: skip
                if value is not None:
                    gauge.labels(*labels).set(value)
            suspect = node.suspect_until > now
            for gauge, state, holds in ((self.lemon, "lemon", node.lemon), (self.suspect, "suspect", suspect)):
                gauge.labels(*labels).set(holds)
                states[state] += holds
        for state, count in states.items():
            self.nodes.labels(scores.cluster, state).set(count)
        self.scores_at.labels(scores.cluster).set(scores.created)

    def fill_live(self, live: Live) -> None:
        """When dispatch was last alive."""
        self.live_at.labels(live.cluster).set(live.created)

    def fill_history(self, db: sqlite3.Connection, path: str) -> None:
        """How far and how much is collected."""
        sql = (
            "SELECT c.name, c.high_water, (SELECT count(*) FROM attempts WHERE cluster_id = c.id),"
            " (SELECT count(*) FROM rejects WHERE cluster_id = c.id) FROM clusters c"
        )
        for cluster, mark, attempts, rejects in db.execute(sql):
            if mark is not None:
                self.collect_at.labels(cluster).set(mark)
            self.attempts.labels(cluster).set(attempts)
            self.rejects.labels(cluster).set(rejects)
        self.size.set(sum(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end)))

    def fill_decisions(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Decisions by route and action. Whatever else a line says becomes `other`: anyone can write to syslog."""
        found: Counter[tuple[str, str]] = Counter()
        failed: Counter[str] = Counter(dict.fromkeys(decision_log.FAILURES, 0))
        fell_back: Counter[str] = Counter(dict.fromkeys(decision_log.FALLBACKS, 0))
        for line in lines:
            key = decision_key(line)
            found[key] += 1
            if key[1] == "fail_open":
                reason = line.get("reason")
                failed[reason if reason in decision_log.FAILURES else "other"] += 1
            elif decisions.fallback(line):
                fell_back[decisions.fallback(line)] += 1
        for (route, action), count in found.items():
            self.decisions.labels(route, action).set(count)
        for reason, count in failed.items():
            self.fail_opens.labels(reason).set(count)
        for reason, count in fell_back.items():
            self.fallbacks.labels(reason).set(count)


def decision_key(line: Mapping[str, Any]) -> tuple[str, str]:
    """Route and action of a logged decision, each one of a closed list."""
    action = line.get("action", "pass")
    return decisions.route(line), action if action in ACTIONS else "other"


def _seconds(hours: float | None) -> float | None:
    return None if hours is None else hours * 3600


def gather(settings: Settings, *, uids: Iterable[int], now: float | None = None) -> Metrics:
    """Metrics of everything that is there. What isn't (no scores yet, no history on a login node) is simply missing:
    the alert rules tell of it."""
    now = time.time() if now is None else now
    metrics = Metrics()
    metrics.build.labels(__version__).set(1)
    metrics.mode.labels("off" if disabled(settings) else settings.steer.mode).set(1)
    metrics.written_at.set(now)
    with suppress(SnapshotError):  # told by the missing time stamp
        metrics.fill_scores(read_scores(settings.publish.path, trusted_uids=uids), now)
    with suppress(SnapshotError):  # likewise
        metrics.fill_live(read_live(settings.publish.path, trusted_uids=uids))
    path = settings.history.path
    if os.access(path, os.R_OK):
        with suppress(sqlite3.DatabaseError), closing(look_at(path)) as db:  # told by the missing time stamp, and by doctor
            metrics.fill_history(db, path)
    metrics.fill_decisions(decisions.read(decisions.source(), now - DAY, now))
    return metrics


def write(metrics: Metrics, folder: str) -> str:
    """Write the file whole or not at all into the collector's folder (0644). Returns its path; raises WorkhorseError."""
    path = os.path.join(folder, FILE_NAME)
    temporary = f"{path}.{os.getpid()}"  # node_exporter reads *.prom only
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(metrics.text())
        os.replace(temporary, path)
    except OSError as err:
        with suppress(OSError):
            os.unlink(temporary)
        raise WorkhorseError(
            f"{path}: can't be written ({err.strerror}); let the service user write there, see [publish] metrics"
        ) from err
    return path
