"""Why a job got its nodes, and what is published of them: in sentences, from the job's mark and the snapshots. Pure."""

from __future__ import annotations

from ..common import hostlist
from ..common.record import TYPE_CHECKING, Record
from ..published import mark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..published.snapshot import NodeScore, Scores

SHOWN = 12
# what users write stands last, so that nothing in it can pass for another field
SQUEUE, SACCT = "%i|%A|%u|%T|%N|%x|%n|%k", "JobID,JobIDRaw,User,State,NodeList,Comment"
MODES = {
    "avoid": "the worst nodes of its partition were left out (mode avoid)",
    "steer": "the nodes that it may use were drawn by probability (mode steer)",
    "control": "left untouched on purpose, to compare others with ([steer] control_share)",
    "": "it asked for a decision and none has been made yet",
}
# where nothing of ours stands among its excludes, or does no more
NOTHING = {
    "avoid": "Nothing is left out for it: it can't do without one of them, or it was let go of later.",
    "steer": "Nothing is left out for it now: dispatch has widened it, or its pool holds all nodes that it could use.",
}


class JobFacts(Record):
    """What Slurm says of a job: node lists expanded; excludes: None where Slurm no longer tells them.

    job: as people see it, such as 123, 123_4 or 123+1; raw: Slurm's own number of it; named: the nodes that its user asks
    for.
    """

    job: str
    user: str
    state: str
    nodes: tuple[str, ...] = ()
    comment: str = ""
    excludes: tuple[str, ...] | None = None
    raw: int = 0
    named: tuple[str, ...] = ()


def from_squeue(text: str) -> JobFacts | None:
    """The first row of `squeue -h -t all -j ID -o SQUEUE`; None where there is none."""
    row = text.split("\n", 1)[0].split("|", 7)
    if len(row) < 8 or not row[1].isdigit():
        return None
    comment = row[7].removeprefix("(null)")
    return JobFacts(row[0], row[2], row[3], _names(row[4]), comment, _names(row[5]), int(row[1]), _names(row[6]))


def from_sacct(text: str) -> JobFacts | None:
    """The first row of `sacct -X -n -P -o SACCT`."""
    row = text.split("\n", 1)[0].split("|", 5)
    if len(row) < 6 or not row[1].isdigit():
        return None
    return JobFacts(row[0], row[2], (row[3].split() or [""])[0], _names(row[4]), row[5], raw=int(row[1]))


def _names(text: str) -> tuple[str, ...]:
    if text in ("", "(null)", "None assigned", "None"):
        return ()
    return tuple(hostlist.expand(text))


def decision_words(job: JobFacts, scores: Scores | None, mode: str = "") -> list[str]:
    """What was decided and why. scores: the snapshot of the decision, None where it isn't kept; mode: the site's now."""
    found = mark.parse(job.comment)
    if found is None:
        return [f"Job {job.job} {_unmarked(job, mode)}"]
    when = f", by snapshot {found.snapshot}" if found.snapshot else ""
    lines = [f"Job {job.job}: {MODES[found.mode]}{when}."]
    own = set(hostlist.expand(found.excludes)) if found.excludes else set()
    if found.mode == "steer" and job.named:  # a job whose user names nodes is never steered
        lines.append(f"Its node list is ours: {hostlist.fold(list(job.named))} ([steer] form = nodelist).")
    elif job.excludes is not None and found.mode in NOTHING:
        lines += _excluded([name for name in job.excludes if name not in own], scores, NOTHING[found.mode])
    if own:
        lines.append(f"Left out by its user: {hostlist.fold(sorted(own))}.")
    return lines


def _unmarked(job: JobFacts, mode: str) -> str:
    """Why a job bears no mark, as far as it shows."""
    if job.named:
        return f"was not touched: its user named the nodes ({hostlist.fold(list(job.named))})."
    if mode in ("off", "observe"):
        return f"was not touched: [steer] mode is {mode} here."
    if job.comment:
        left_out = f" Left out by its user or by us: {hostlist.fold(list(job.excludes))}." if job.excludes else ""
        return f"has a Comment of its own, so it bears no mark of what was decided, and is left alone while it waits.{left_out}"
    return (
        "was not touched: it doesn't match [match], asked to be left alone (#WORKHORSE steer=off, WORKHORSE_MODE=off), or came "
        "while workhorse was off or only observing. `workhorse plan` with its sbatch arguments tells."
    )


def _excluded(names: Sequence[str], scores: Scores | None, nothing: str) -> list[str]:
    if not names:
        return [nothing]
    lines = [f"Left out by us: {hostlist.fold(list(names))} ({_count(len(names), 'node')})."]
    known = [scores.nodes[name] for name in names if scores is not None and name in scores.nodes]
    known.sort(key=lambda node: node.relative if node.relative is not None else 1e300)
    more = [f"  … and {len(known) - SHOWN} more, none of them known to be worse"] if len(known) > SHOWN else []
    return [*lines, *(f"  {node_words(node)}" for node in known[:SHOWN]), *more]


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def node_words(node: NodeScore) -> str:
    """A published score in one line."""
    text = "no capability of its own" if node.relative is None else f"capability {node.relative:.2g} times the median"
    more = [word for word, holds in (("lemon", node.lemon), ("suspect", node.suspect_until > 0)) if holds]
    return f"{node.name}: {', '.join([text, *more])}, {_count(node.tasks, 'task')}"


def nodes_words(job: JobFacts, scores: Scores | None) -> list[str]:
    """Where it ran, and what is published of these nodes, worst first."""
    if not job.nodes:
        return [f"It is {job.state or 'unknown'} and has no nodes yet."]
    lines = [f"It is {job.state} on {hostlist.fold(list(job.nodes))}."]
    known = [scores.nodes[name] for name in job.nodes if scores is not None and name in scores.nodes]
    known.sort(key=lambda node: node.relative if node.relative is not None else 1.0)
    return lines + [f"  {node_words(node)}" for node in known[:SHOWN]]
