"""`workhorse nodes --long`: why a node has its score, in words with numbers.

What is published is for everybody. What the history adds (failures with their jobs, heavy groups, events) shows only
where the history may be read, which is the service user and root; everybody else sees their own jobs on the node through
sacct, and of others only the count of tasks. Standard library until the history is opened.
"""

from __future__ import annotations

import bisect
import os
import pwd
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SlurmError
from slurm_hook.common.terminal import count
from slurm_hook.published.snapshot import WHILE_MARKED, NodeScore, Scores

if TYPE_CHECKING:
    from .story import Failure, Story

SHOWN, FEW_SHOWN = 8, 3
LONGEST_NAME = 60  # characters of a job's user and name
ALIKE = 0.05  # scores that differ by less tell no nodes apart
OWN_DAYS = 30
TIMEOUT = 20.0


def score_words(node: NodeScore, scores: Scores, now: float) -> list[str]:
    """The published score in sentences. Needs nothing but the snapshot."""
    return [_standing(node, scores), *_reasons(node, scores), _state(node, now), _facts(node), _source(node, scores, now)]


def _standing(node: NodeScore, scores: Scores) -> str:
    rated = sorted(n.capability for n in scores.nodes.values() if n.capability is not None)
    if node.capability is None:
        return f"No capability of its own: it takes the median of the {len(rated)} nodes that have one."
    margin = ALIKE * abs(node.capability)  # the published method's capability is below 0 where failures prevail
    below = bisect.bisect_left(rated, node.capability - margin)
    above = len(rated) - bisect.bisect_right(rated, node.capability + margin)
    times = f"{node.relative:.3g} times the median" if node.relative is not None else f"{node.capability:.3g}"
    interval = f" (90 %: {_short(node.low)} to {_short(node.high)})" if node.low is not None and node.high is not None else ""
    are = "is" if below == 1 else "are"
    return (
        f"Capability {times}{interval}: of {len(rated)} scored nodes {below} {are} worse and {above} better by over {ALIKE:.0%}."
    )


def _short(number: float) -> str:
    return "over 99" if number >= 100 else f"{number:.2g}"  # nothing was ever seen to fail


def _reasons(node: NodeScore, scores: Scores) -> list[str]:
    lines = []
    if scores.method == "attributed" and node.reliability is not None:
        others = sorted(n.reliability for n in scores.nodes.values() if n.reliability is not None)
        lines.append(
            f"Reliability: about {node.reliability:,.0f} h of heavy work per failure of its own making (its record, drawn towards"
            f" the cluster's mean while it is short); the median node has {others[len(others) // 2]:,.0f} h."
        )
    elif node.reliability is not None:
        lines.append(f"Reliability {node.reliability:.3g}: mean contribution of its heavy groups, failures counted against it.")
    if node.breakdown:
        unit = "of its time" if scores.method == "attributed" else "h"
        amount = f"{node.breakdown:.1%}" if scores.method == "attributed" else f"{node.breakdown:.1f}"
        lines.append(f"Wear: {amount} {unit} in overload, weighted by the fall of its efficiency; this divides the reliability.")
    return lines


def _state(node: NodeScore, now: float) -> str:
    if node.suspect_until >= WHILE_MARKED:
        return "Marked bad by hand: it is left out for all jobs until it is marked repaired."
    if node.lemon:
        often = "almost surely it fails over three times as often as the median node"
        return f"Lemon: {often}. Mode avoid leaves it out first, and so does mode steer for costly jobs."
    if node.suspect_until > now:
        return (
            f"Suspect until {_when(node.suspect_until)}: several users' jobs died there within minutes. It is left out till then."
        )
    return "Neither lemon nor suspect."


def _facts(node: NodeScore) -> str:
    gpus = f"{node.gpus} × {node.gpu_type or 'GPU'}, " if node.gpus else ""
    where = f", switch {node.switch}" if node.switch else ""
    return f"Hardware: {gpus}{node.cpus} CPUs, {node.mem:,} MiB; partitions {', '.join(node.partitions) or 'none'}{where}."


def _source(node: NodeScore, scores: Scores, now: float) -> str:
    hours = scores.age(now) / 3600
    return f"From {count(node.tasks, 'task')}, method {scores.method}, snapshot {scores.id}, {hours:.1f} h old."


def _when(moment: float) -> str:
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M %z")


def history_readable(settings: Settings) -> bool:
    """May we read the history, and are the scorer's packages here?"""
    import importlib.util  # noqa: PLC0415

    return os.access(settings.history.path, os.R_OK) and importlib.util.find_spec("numpy") is not None


def told_by_history(settings: Settings, cluster: str, names: Sequence[str]) -> dict[str, Story]:
    """Stories of nodes by name. Raises StoreError."""
    from slurm_hook.common import progress  # noqa: PLC0415 - numpy

    from ..history.columns_reader import load_history  # noqa: PLC0415
    from ..history.store import connect_to_read  # noqa: PLC0415
    from ..scoring import carried, published_method, score  # noqa: PLC0415 - numpy
    from ..scoring.attributed_method import attribute  # noqa: PLC0415
    from .story import stories  # noqa: PLC0415

    db = connect_to_read(settings.history.path)
    with progress.steps("nodes", 2) as step:
        step("reading the history")
        history = load_history(db, cluster, time.time(), settings.scoring.window_days, settings)
        step("scoring")
        options = carried.options(db, cluster, settings, history.as_of)
        scored = attribute(history, options, score.model(settings))
        table = published_method.score_history(history, options)
        position = {name: at for at, name in enumerate(history.nodes.names)}
        known = [name for name in names if name in position]
        return {story.node: story for story in stories(db, history, scored, table, [position[name] for name in known])}


def story_words(story: Story) -> list[str]:
    """A node's history in lines."""
    lines = [f"Worked {story.busy_hours:,.0f} h, {story.heavy_hours:,.0f} h of it heavy."]
    from .story import CHARGED  # noqa: PLC0415 - numpy

    charged = [failure for failure in story.failures if failure.blame >= CHARGED]
    rest = [failure for failure in story.failures if failure.blame < CHARGED]
    lines += [_failure_words(failure) for failure in reversed(charged[-SHOWN:])]
    if len(charged) > SHOWN:
        lines.append(f"… and {len(charged) - SHOWN} earlier ones that it is charged with.")
    others = max(story.failures_in_all, len(story.failures)) - len(charged)
    if others:
        it = "it" if charged else "this node"
        lines.append(f"{others} failures touched it of which {it} bears less than {CHARGED:.0%} each; the last ones:")
        lines += [_failure_words(failure) for failure in reversed(rest[-FEW_SHOWN:])]
    for group in reversed(story.groups[-3:]):
        lines.append(
            f"Heavy group {_when(group.start)} to {_when(group.end)}: {count(group.tasks, 'task')},"
            f" {group.overload_hours:.1f} h overload, efficiency {group.change:+.0%}."
        )
    for event in reversed(story.events[-SHOWN:]):
        until = f"to {_when(event.end)}" if event.end else "and still"
        what = event.kind if event.kind == event.reason_class else f"{event.kind} ({event.reason_class})"
        lines.append(f"Event {_when(event.start)} {until}: {what} {event.reason}".rstrip())
    return lines


def _failure_words(failure: Failure) -> str:
    where = f"on {failure.nodes} nodes" if failure.nodes > 1 else "on this node alone"
    share = "known to be this node's doing" if failure.known and failure.blame > 0.5 else f"{failure.blame:.0%} this node"
    own = "" if failure.known else f", {failure.own:.0%} the job itself"
    work = failure.work if len(failure.work) <= LONGEST_NAME else f"{failure.work[: LONGEST_NAME - 1]}…"
    return f"Failure {_when(failure.time)}: job {failure.job} of {work} {where}: {share}{own}."


def own_jobs(node: str, now: float) -> list[str]:
    """What became of one's own jobs on a node, told by sacct. Nothing where Slurm doesn't answer: it is an extra."""
    from ..sources import sacct  # noqa: PLC0415

    user = pwd.getpwuid(os.geteuid()).pw_name
    since = f"uts{now - OWN_DAYS * 86400:.0f}"
    argv = ["sacct", "-n", "-P", "-X", "-u", user, "-N", node, "-S", since, "-E", "now", "-o", "JobID,State"]
    try:
        rows = [line.split("|") for line in sacct.run(argv, TIMEOUT).splitlines()]
    except SlurmError:
        return []
    states: dict[str, list[str]] = {}
    for row in rows:
        if len(row) == 2 and row[1]:
            states.setdefault(row[1].split()[0], []).append(row[0])
    told = "; ".join(f"{len(jobs)} {state} ({', '.join(jobs[-3:])})" for state, jobs in sorted(states.items()))
    return [f"Your own jobs here in {OWN_DAYS} days: {told or 'none'}."]


def lines_for(nodes: Sequence[NodeScore], scores: Scores, settings: Settings, now: float) -> dict[str, list[str]]:
    """Everything that may be told of these nodes to whoever asks, by node."""
    told = told_by_history(settings, scores.cluster, [n.name for n in nodes]) if history_readable(settings) else None
    found = {}
    for node in nodes:
        more = own_jobs(node.name, now) if told is None else story_words(told[node.name]) if node.name in told else []
        found[node.name] = score_words(node, scores, now) + more
    return found


def as_json(nodes: Sequence[NodeScore], words: dict[str, list[str]]) -> list[dict[str, Any]]:
    """For --json: the published numbers and the words."""
    return [{**node._asdict(), "words": words[node.name]} for node in nodes]
