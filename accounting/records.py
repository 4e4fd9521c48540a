"""What is taken from accounting: the field table, and a job's rows → one attempt with its steps and tasks.

Every source (sacct, a dump, JSON, pyslurm) is brought to rows of text under sacct's field names, so that there is one
way from a row to a record. Only the fields named here are ever asked for or kept: command lines, environments, scripts,
working directories and comments stay in Slurm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from . import convert


class Field(NamedTuple):
    """A sacct field that is kept. `free`: users write it, so it may hold anything."""

    name: str
    help: str
    free: bool = False
    instead: tuple[str, ...] = ()  # fields that say the same where this one is missing


FIELDS: tuple[Field, ...] = (
    Field("JobIDRaw", "number of the job; with .step for steps", instead=("JobID",)),
    Field("JobID", "the job as people see it: array_task, het+offset"),
    Field("Cluster", "name of the cluster"),
    Field("Submit", "submit time: new for each requeue"),
    Field("Eligible", "when its dependencies were met"),
    Field("Start", "start of the attempt or step"),
    Field("End", "end of the attempt or step"),
    Field("ElapsedRaw", "run time without suspensions", instead=("Elapsed",)),
    Field("State", "state, first word; the uid of CANCELLED by UID apart"),
    Field("ExitCode", "exit code and signal"),
    Field("DerivedExitCode", "highest exit code of the steps"),
    Field("AllocNodes", "nodes allocated", instead=("NNodes",)),
    Field("AllocCPUS", "CPUs allocated", instead=("NCPUS",)),
    Field("AllocTRES", "memory, GPUs allocated"),
    Field("ReqMem", "memory asked for: used where AllocTRES has none"),
    Field("TimelimitRaw", "time limit in minutes", instead=("Timelimit",)),
    Field("Partition", "partition"),
    Field("Account", "account"),
    Field("QOS", "quality of service"),
    Field("User", "user"),
    Field("NodeList", "nodes, folded"),
    Field("NTasks", "tasks of a step"),
    Field("MaxRSS", "largest resident memory of a task of a step"),
    Field("MaxRSSNode", "node of that task"),
    Field("FailedNode", "node that failed under the job (23.02 and later)"),
    Field("Restarts", "how often the job was requeued (24.05 and later)"),
    Field("JobName", "name of the job or step", free=True),
)
FIELD_NAMES = tuple(f.name for f in FIELDS)

# states in which an attempt can still change; any other word ends it
OPEN_STATES = frozenset(
    ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "STOPPED",
     "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
)  # fmt: skip

# bits of attempts.flags
CLAMPED, END_FROM_ELAPSED, NO_RAW_ID, BAD_NODE_LIST, DST_RESOLVED = 1, 2, 4, 8, 16


class Step(NamedTuple):
    """One step of an attempt. Memory MiB, times epoch seconds."""

    step: str
    name: str
    state: str
    exit_code: int | None
    exit_signal: int | None
    start: int | None
    end: int | None
    ntasks: int | None
    cpus: int | None
    mem_mib: float | None
    gpus: int | None
    max_rss_mib: float | None
    max_rss_node: str | None
    node_list: str


class Attempt(NamedTuple):
    """One attempt of one job: key (cluster, job_id, submit). Memory MiB (whole job), times epoch seconds."""

    cluster: str
    job_id: int
    submit: int
    label: str
    array_job: int | None
    array_task: int | None
    het_job: int | None
    het_offset: int | None
    user: str
    name: str
    account: str
    partition: str
    qos: str
    state: str
    cancelled_by: int | None
    exit_code: int | None
    exit_signal: int | None
    derived_code: int | None
    derived_signal: int | None
    eligible: int | None
    start: int | None
    end: int | None
    elapsed: int | None
    limit_minutes: int | None
    nnodes: int
    cpus: int | None
    mem_mib: float | None
    gpus: int | None
    gpu_type: str | None
    node_list: str
    failed_node: str | None
    restarts: int | None
    flags: int
    steps: tuple[Step, ...] = ()

    @property
    def is_open(self) -> bool:
        """True while the attempt can still change: it is read again until it ends."""
        return self.state in OPEN_STATES or (self.start is not None and self.end is None)


class Task(NamedTuple):
    """What one node gave to one attempt. `exact`: told by a step, not divided evenly."""

    node: str
    cpus: float | None
    mem_mib: float | None
    gpus: float | None
    max_rss_mib: float | None
    exact: bool


class Group(NamedTuple):
    """A job's row and its steps' rows, not yet converted: key, digest of the text, rows."""

    job_id: int
    submit: int
    digest: bytes
    job: Sequence[str]
    steps: Sequence[Sequence[str]]


class Reject(NamedTuple):
    """Something that can't be understood, with the reason. `text` holds kept fields only."""

    reason: str
    text: str


class Reader:
    """Rows under one header → groups → attempts.

    header: field names in any order and case, more than needed is fine. Raises ValueError when a field without which
    nothing can be said is missing (JobIDRaw or JobID, Submit, State).
    """

    def __init__(self, header: Sequence[str], *, times: convert.Times | None = None, cluster: str = "") -> None:
        self._at = column_positions(header)
        self._times = times or convert.Times()
        self._tres = convert.TresParser()
        self._cluster = cluster
        self._width = len(header)
        missing = [n for n in ("JobIDRaw", "Submit", "State") if self._at[n] < 0]
        if missing:
            raise ValueError(f"no field {', '.join(missing).replace('JobIDRaw', 'JobIDRaw or JobID')}")

    def groups(self, rows: Iterable[Sequence[str]], reject: Callable[[Reject], None]) -> Iterator[Group]:
        """Join each job's row with the steps that follow it. A step without its job is rejected."""
        at = self._at["JobIDRaw"]
        job: Sequence[str] | None = None
        job_text = ""
        steps: list[Sequence[str]] = []
        for row in rows:
            raw = row[at]
            if "." in raw:
                if job is not None and raw.startswith(job_text) and raw[len(job_text)] == ".":
                    steps.append(row)
                else:
                    reject(Reject("step without its job's row before it", self.kept_text(row)))
                continue
            if job is not None:
                yield from self._group(job, steps, reject)
            job, job_text, steps = row, raw, []
        if job is not None:
            yield from self._group(job, steps, reject)

    def _group(self, job: Sequence[str], steps: list[Sequence[str]], reject: Callable[[Reject], None]) -> Iterator[Group]:
        try:
            submit = self._times(job[self._at["Submit"]])
            number = raw_id(job[self._at["JobIDRaw"]])
            if submit is None:
                raise ValueError("no submit time")
        except ValueError as err:
            reject(Reject(str(err), self.kept_text(job)))
            return
        text = "\x1e".join(["\x1f".join(row) for row in (job, *steps)])
        yield Group(number, submit, digest(text), job, steps)

    def kept_text(self, row: Sequence[str]) -> str:
        """The kept fields of a row as name=value, for the rejects table."""
        return " ".join(f"{name}={row[i]}" for name, i in self._at.items() if 0 <= i < len(row) and row[i])

    def attempt(self, group: Group) -> Attempt:
        """Convert a group. Raises ValueError naming the field's text that can't be understood."""
        at, row = self._at, [*group.job, ""]
        shown = convert.job_id(row[at["JobID"]] or row[at["JobIDRaw"]])
        state, cancelled_by = convert.state(row[at["State"]])
        start, end, elapsed, flags = self._span(row, state)
        tres = self._tres(row[at["AllocTRES"]])
        nodes = clean_node_list(row[at["NodeList"]])
        nnodes = convert.integer(row[at["AllocNodes"]]) or 0
        cpus = convert.integer(row[at["AllocCPUS"]])
        code, signal = convert.exit_code(row[at["ExitCode"]])
        derived, derived_signal = convert.exit_code(row[at["DerivedExitCode"]])
        if group.job_id < 0:
            flags |= NO_RAW_ID
        return Attempt(
            row[at["Cluster"]] or self._cluster, group.job_id, group.submit, row[at["JobID"]] or row[at["JobIDRaw"]],
            shown.job if shown.is_array else None, shown.task,
            shown.job if shown.het_offset is not None else None, shown.het_offset,
            row[at["User"]], row[at["JobName"]], row[at["Account"]], row[at["Partition"]], row[at["QOS"]],
            state, cancelled_by, code, signal, derived, derived_signal,
            self._times(row[at["Eligible"]]), start, end, elapsed, convert.limit_minutes(row[at["TimelimitRaw"]]),
            nnodes, cpus, _memory(tres, row[at["ReqMem"]], tres.nodes or nnodes, cpus), tres.gpus, tres.gpu_type, nodes,
            _word(row[at["FailedNode"]]), convert.integer(row[at["Restarts"]]), flags,
            tuple([self._step(step) for step in group.steps]),
        )  # fmt: skip

    def _span(self, row: Sequence[str], state: str) -> tuple[int | None, int | None, int | None, int]:
        at, flags = self._at, 0
        start, end = self._times(row[at["Start"]]), self._times(row[at["End"]])
        lasted = convert.elapsed(row[at["ElapsedRaw"]])
        if start is None:
            return None, end, None, 0
        if end is None and lasted is not None and state not in OPEN_STATES:
            end, flags = start + int(lasted), END_FROM_ELAPSED
        if end is not None and lasted is not None and end - start - lasted in (3600, -3600):
            start, end, flags = self._dst(row, start, end, int(lasted), flags)
        if end is not None and end < start:
            end, flags = start, flags | CLAMPED
        return start, end, None if lasted is None else int(lasted), flags

    def _dst(self, row: Sequence[str], start: int, end: int, lasted: int, flags: int) -> tuple[int, int, int]:
        """In the hour that DST repeats a stamp has two readings: take those that agree with the run time."""
        starts = (start, self._times.later_reading(row[self._at["Start"]]))
        ends = (end, self._times.later_reading(row[self._at["End"]]))
        for first in starts:
            for last in ends:
                if first is not None and last is not None and last - first == lasted:
                    return first, last, flags | DST_RESOLVED
        return start, end, flags

    def _step(self, row: Sequence[str]) -> Step:
        at, row = self._at, [*row, ""]
        start, end = self._times(row[at["Start"]]), self._times(row[at["End"]])
        if start is not None and end is not None and end < start:
            end = start
        tres = self._tres(row[at["AllocTRES"]])
        code, signal = convert.exit_code(row[at["ExitCode"]])
        rss = convert.memory(row[at["MaxRSS"]])
        return Step(
            row[at["JobIDRaw"]].partition(".")[2], row[at["JobName"]], convert.state(row[at["State"]])[0], code, signal,
            start, end, convert.integer(row[at["NTasks"]]), tres.cpus, tres.mem_mib, tres.gpus,
            rss.mib if rss else None, _word(row[at["MaxRSSNode"]]), clean_node_list(row[at["NodeList"]]),
        )  # fmt: skip


def column_positions(header: Sequence[str]) -> dict[str, int]:
    """Field name → position in the header, −1 where it has neither the field nor one that says the same."""
    found = {name.strip().lower(): i for i, name in reversed(list(enumerate(header)))}
    positions = {}
    for field in FIELDS:
        names = (field.name, *field.instead)
        positions[field.name] = next((found[n.lower()] for n in names if n.lower() in found), -1)
    return positions


def raw_id(text: str) -> int:
    """Job number of JobIDRaw. A dump may have JobID only: array tasks and het components then get a negative number
    that no other of them has, as Slurm's own number isn't known. Raises ValueError."""
    if text.isdigit():
        return convert.whole(text)
    shown = convert.job_id(text)
    if shown.task is not None:
        return -((shown.job << 23) + shown.task + 1)
    if shown.het_offset is not None:
        return -((shown.job << 23) + (1 << 22) + shown.het_offset)
    return shown.job


def digest(text: str) -> bytes:
    """8 bytes that tell whether a row changed."""
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()


def clean_node_list(text: str) -> str:
    """A node list, or "" for the words that mean "never got nodes" (they would expand to hosts of that name)."""
    return _word(text) or ""


def _word(text: str) -> str | None:
    """A host name or list; Slurm allows ASCII only, and anything else would not fit a text column."""
    if convert.is_no_value(text):
        return None
    if not text.isascii():
        raise ValueError(f"{text[:80]!r} is not a node name")
    return text


def _memory(tres: convert.Tres, asked: str, nnodes: int, cpus: int | None) -> float | None:
    """Memory of the whole job, MiB: what was allocated, else what was asked for (0 there means all of a node)."""
    if tres.mem_mib is not None:
        return tres.mem_mib
    found = convert.memory(asked)
    if found is None or found.mib <= 0:
        return None
    return found.mib * {"c": cpus or 1, "n": nnodes or 1}.get(found.per, 1)


def tasks(attempt: Attempt, names: Sequence[str]) -> list[Task]:
    """One task per node (names: the attempt's node list, expanded) of an attempt that ran.

    The batch step holds everything the job has on its node, so it tells that node's share; the rest is divided evenly
    (exact where one node is left).
    """
    count = len(names)
    if not count or attempt.start is None:
        return []
    amounts: tuple[float | None, ...] = (attempt.cpus, attempt.mem_mib, attempt.gpus)
    if count == 1 and not attempt.steps:
        return [_task(names[0], amounts, None, True)]
    rss = _rss_by_node(attempt.steps)
    batch = next((s for s in attempt.steps if s.step == "batch" and s.cpus is not None), None)
    known = batch.node_list if batch and count > 1 and batch.node_list in names else None
    shares: dict[str, tuple[float | None, ...]] = {}
    if batch and known:
        shares[known] = (batch.cpus, batch.mem_mib, batch.gpus)
        amounts = tuple([_minus(total, part) for total, part in zip(amounts, shares[known])])
    rest = count - len(shares)
    even = amounts if rest == 1 else tuple([None if total is None else total / rest for total in amounts])
    return [_task(n, shares.get(n, even), rss.get(n), rest == 1 or n in shares) for n in names]


def _task(node: str, amounts: Sequence[float | None], rss: float | None, exact: bool) -> Task:
    cpus, mem, gpus = amounts
    return Task(node, cpus, mem, gpus, rss, exact)


def _minus(total: float | None, part: float | None) -> float | None:
    return None if total is None else max(0, total - (part or 0))


def _rss_by_node(steps: Sequence[Step]) -> dict[str, float]:
    """Largest resident memory seen on a node, MiB: by the node sacct names, or the step's only node."""
    rss: dict[str, float] = {}
    for step in steps:
        node = step.max_rss_node or step.node_list
        if step.max_rss_mib is None or not node or "[" in node or "," in node:
            continue
        if step.max_rss_mib > rss.get(node, -1.0):
            rss[node] = step.max_rss_mib
    return rss
