"""What is taken from accounting: the field table, and a job's rows → one attempt with its steps and tasks.

Every source (sacct, a dump, JSON, pyslurm) is brought to rows of text under sacct's field names, so that there is one
way from a row to a record. Only the fields named here are ever asked for or kept: command lines, environments, scripts,
working directories and comments stay in Slurm.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Optional

from . import converters


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
STEP_FIELDS = (
    "JobIDRaw",
    "State",
    "ExitCode",
    "Start",
    "End",
    "AllocTRES",
    "NTasks",
    "MaxRSS",
    "MaxRSSNode",
    "NodeList",
    "JobName",
)
_RAW, _LABEL, _SUBMIT, _CLUSTER, _STATE = (FIELD_NAMES.index(n) for n in ("JobIDRaw", "JobID", "Submit", "Cluster", "State"))

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


class Share(NamedTuple):
    """What the batch step holds: all that the job has on its node."""

    node: str
    cpus: int | None
    mem_mib: float | None
    gpus: int | None


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
    nsteps: int = 0
    steps: Sequence[Step] = ()  # those that did not complete
    batch: Share | None = None
    rss: Mapping[str, float] = {}  # node → largest resident memory seen there, MiB

    @property
    def is_open(self) -> bool:
        """True while the attempt can still change: it is read again until it ends."""
        return self.state in OPEN_STATES or (self.start is not None and self.end is None)


# What one node gave to one attempt: CPUs, memory MiB, GPUs, largest resident memory MiB, and 1 where a step told it (0: it is
# divided evenly). A plain tuple: there are millions.
TaskRow = tuple[Optional[float], Optional[float], Optional[float], Optional[float], int]


class Group(NamedTuple):
    """A job's row and its steps' rows, not yet converted: key, digest of the text, kept fields in the table's order."""

    job_id: int
    submit: int
    digest: bytes
    job: tuple[str, ...]
    steps: list[tuple[str, ...]]

    @property
    def cluster(self) -> str:
        """As the row names it; empty where it doesn't."""
        return self.job[_CLUSTER]

    @property
    def waits_or_runs(self) -> bool:
        """As its state tells."""
        return self.job[_STATE].strip().rstrip("+").upper() in OPEN_STATES

    @property
    def label(self) -> str:
        """The job as people see it."""
        return self.job[_LABEL] or self.job[_RAW]


class Reject(NamedTuple):
    """Something that can't be understood, with the reason. `text` holds kept fields only."""

    reason: str
    text: str


_made = tuple.__new__  # a record of all its values in a tuple: naming or ordering them costs as much again

_NUMBER = re.compile(r"JobID(?:Raw)?=[\d_+]+")


def withheld(aside: Reject) -> Reject:
    """The same without what it shows of the row: pieces of free text that may not be kept could stand in any field."""
    number = _NUMBER.match(aside.text)
    reason = "can't be understood; not shown, as the source has fields that may not be kept"
    return Reject(reason, number[0] if number else "")


class Reader:
    """Rows under one header → groups → attempts.

    header: field names in any order and case, more than needed is fine. Raises ValueError when a field without which
    nothing can be said is missing (JobIDRaw or JobID, Submit, State).
    """

    def __init__(self, header: Sequence[str], *, times: converters.Times | None = None, cluster: str = "") -> None:
        at = column_positions(header)
        missing = [n for n in ("JobIDRaw", "Submit", "State") if at[n] < 0]
        if missing:
            raise ValueError(f"no field {', '.join(missing).replace('JobIDRaw', 'JobIDRaw or JobID')}")
        self._raw_at = at["JobIDRaw"]
        self.lacking = [name for name, position in at.items() if position < 0]
        self._kept, self._kept_of_step = _getter(at, FIELD_NAMES), _getter(at, STEP_FIELDS)
        self._cluster = cluster
        times = converters.Times() if times is None else times
        self._later = times.later_reading
        # a cluster's rows repeat the same few texts: each is converted once
        self._time, self._tres = times, Memo(converters.parse_tres)
        self._number, self._state = Memo(converters.integer), Memo(converters.state)
        self._code, self._word, self._limit = Memo(converters.exit_code), Memo(host_text), Memo(converters.limit_minutes)
        self._memory = Memo(converters.memory)

    def groups(self, rows: Iterable[list[str]], reject: Callable[[Reject], None]) -> Iterator[Group]:
        """Join each job's row with the steps that follow it. A step without its job is rejected."""
        at, kept, kept_of_step = self._raw_at, self._kept, self._kept_of_step
        job: tuple[str, ...] = ()
        prefix = "?"
        steps: list[tuple[str, ...]] = []
        for row in rows:
            raw = row[at]
            if "." not in raw:
                if job and (group := self._group(job, steps, reject)):
                    yield group
                job, prefix, steps = kept(row), raw + ".", []
            elif raw.startswith(prefix):
                steps.append(kept_of_step(row))
            else:
                reject(Reject("step without its job's row before it", kept_text(kept(row))))
        if job and (group := self._group(job, steps, reject)):
            yield group

    def _group(self, job: tuple[str, ...], steps: list[tuple[str, ...]], reject: Callable[[Reject], None]) -> Group | None:
        try:
            submit = self._time[job[_SUBMIT]]
            number = raw_id(job[_RAW])
            if submit is None:
                raise ValueError("no submit time")
            if not job[_CLUSTER].isprintable():
                raise ValueError(f"{job[_CLUSTER]!r} is not the name of a cluster")
        except ValueError as err:
            reject(Reject(str(err), kept_text(job)))
            return None
        flat = [*job]
        for step in steps:
            flat += step
        return _made(Group, (number, submit, digest("\x1f".join(flat)), job, steps))

    def attempt(self, group: Group) -> Attempt:
        """Convert a group. Raises ValueError naming the field's text that can't be understood."""
        (
            raw, label, cluster, _, eligible, begin, finish, lasted, state_text, exit_text, derived_text, allocated, cpu_text,
            tres_text, asked, limit, partition, account, qos, user, node_list, _, _, _, failed_node, restarts, name,
        ) = group.job  # fmt: skip
        label = label or raw
        parents = _NO_PARENTS if label.isdigit() else _parents(label)
        state, cancelled_by = self._state[state_text]
        start, end, elapsed, flags = self._times(begin, finish, lasted, state)
        tres: converters.Tres = self._tres[tres_text]
        cpus, nnodes = self._number[cpu_text], self._number[allocated] or tres.nodes or 0
        if cpus is None:  # a dump without AllocCPUS
            cpus = tres.cpus
        code, signal = self._code[exit_text]
        derived, derived_signal = self._code[derived_text]
        mem = tres.mem_mib
        if mem is None and asked:
            mem = asked_memory(self._memory[asked], tres.nodes or nnodes, cpus)
        return _made(Attempt, (
            cluster or self._cluster, group.job_id, group.submit, label, *parents, user, name, account, partition, qos,
            state, cancelled_by, code, signal, derived, derived_signal, self._time[eligible], start, end,
            elapsed, self._limit[limit], nnodes, cpus, mem, tres.gpus, tres.gpu_type, self._word[node_list] or "",
            self._word[failed_node], self._number[restarts], flags | (NO_RAW_ID if group.job_id < 0 else 0),
            len(group.steps), *self._steps(group.steps),
        ))  # fmt: skip

    def _times(self, begin: str, finish: str, lasted_text: str, state: str) -> tuple[int | None, int | None, int | None, int]:
        """Start, end, run time and flags: ends before the start are clamped, the hour that DST repeats is resolved."""
        start, end, flags = self._time[begin], self._time[finish], 0
        lasted = converters.elapsed(lasted_text)
        if start is None:
            return None, end, None, 0
        if end is None and lasted is not None and state not in OPEN_STATES:
            end, flags = start + int(lasted), END_FROM_ELAPSED
        if end is not None and lasted is not None and end - start - lasted in (3600, -3600):
            for first in (start, self._later(begin)):
                for last in (end, self._later(finish)):
                    if first is not None and last is not None and last - first == lasted:
                        start, end, flags = first, last, flags | DST_RESOLVED
        if end is not None and end < start:
            end, flags = start, flags | CLAMPED
        return start, end, None if lasted is None else int(lasted), flags

    def _steps(self, rows: Sequence[Sequence[str]]) -> tuple[list[Step], Share | None, dict[str, float]]:
        """Steps that did not complete, the batch step's share, and the largest resident memory seen on each node.

        sacct names the node of the largest; without that it is the step's only node.
        """
        failed, batch, rss = [], None, dict[str, float]()
        for row in rows:
            raw, state, _, _, _, tres_text, _, rss_text, rss_node, node_list, _ = row
            if state != "COMPLETED":
                failed.append(self._step(row))
            if tres_text and raw.endswith(".batch"):
                share = self._tres[tres_text]
                batch = Share(node_list, share.cpus, share.mem_mib, share.gpus)
            if rss_text and (largest := mib(rss_text)) is not None:
                node = rss_node or node_list
                if node not in rss or largest > rss[node]:
                    rss[node] = largest
        return failed, batch, rss

    def _step(self, row: Sequence[str]) -> Step:
        raw, state, exit_text, begin, finish, tres_text, ntasks, rss, rss_node, node_list, name = row
        start, end = self._time[begin], self._time[finish]
        if start is not None and end is not None and end < start:
            end = start
        tres: converters.Tres = self._tres[tres_text]
        code, signal = self._code[exit_text]
        return Step(
            raw.partition(".")[2], name, self._state[state][0], code, signal, start, end, self._number[ntasks], tres.cpus,
            tres.mem_mib, tres.gpus, mib(rss) if rss else None, self._word[rss_node], self._word[node_list] or "",
        )  # fmt: skip


def _getter(at: Mapping[str, int], names: Sequence[str]) -> Callable[[list[str]], tuple[str, ...]]:
    """Row → its fields of these names; what the header lacks (−1) is empty (the row may get an empty field more)."""
    get: Callable[[list[str]], tuple[str, ...]] = itemgetter(*[at[name] for name in names])
    if min(at[name] for name in names) >= 0:
        return get

    def lacking(row: list[str]) -> tuple[str, ...]:
        row.append("")
        return get(row)

    return lacking


class Memo(dict[str, Any]):
    """Text → converted value, each text converted once; a look-up costs what a dict's does. Forgets all when full."""

    def __init__(self, converter: Callable[[str], Any], size: int = 20_000) -> None:
        super().__init__()
        self._converter, self._size = converter, size

    def __missing__(self, text: str) -> Any:
        if len(self) >= self._size:
            self.clear()
        value = self[text] = self._converter(text)
        return value


_SIMPLE = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}


def mib(text: str) -> float | None:
    """Memory text in MiB, whatever it is per. Raises ValueError."""
    factor = _SIMPLE.get(text[-1:])
    if factor and text[:-1].isdecimal() and len(text) < converters.MAX_DIGITS:
        return int(text[:-1]) * factor
    found = converters.memory(text)
    return found.mib if found else None


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
        return converters.whole(text)
    shown = converters.job_id(text)
    if shown.task is not None:
        return -((shown.job << 23) + shown.task + 1)
    if shown.het_offset is not None:
        return -((shown.job << 23) + (1 << 22) + shown.het_offset)
    return shown.job


def stand_in(label: str) -> int | None:
    """The number that a member of an array or het job has where Slurm's own isn't known. None for any other job."""
    if label.isdigit():
        return None
    try:
        number = raw_id(label)
    except ValueError:
        return None
    return number if number < 0 else None


def digest(text: str) -> bytes:
    """8 bytes that tell whether a row changed."""
    return hashlib.blake2b(raw_bytes(text), digest_size=8).digest()


def raw_bytes(text: str) -> bytes:
    """The bytes that a text was read from; halves of surrogate pairs, which no bytes of UTF-8 give, as they stand."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


_NO_PARENTS = (None, None, None, None)


def _parents(label: str) -> tuple[int | None, int | None, int | None, int | None]:
    """Array and task, het job and offset of a JobID as people see it. Raises ValueError."""
    shown = converters.job_id(label)
    het = shown.het_offset is not None
    return shown.job if shown.is_array else None, shown.task, shown.job if het else None, shown.het_offset


def host_text(text: str) -> str | None:
    """A host name or node list. None for the words that mean "never got nodes" (they would expand to hosts of that name).

    Slurm allows ASCII only, so anything else is not one: ValueError.
    """
    if converters.is_no_value(text):
        return None
    if not text.isascii():
        raise ValueError(f"{text[:80]!r} is not a node name")
    return text


def kept_text(row: Sequence[str]) -> str:
    """The kept fields of a row as name=value, for the rejects table."""
    return " ".join(f"{name}={text}" for name, text in zip(FIELD_NAMES, row) if text)


def asked_memory(found: converters.Memory | None, nnodes: int, cpus: int | None) -> float | None:
    """Memory of the whole job in MiB from ReqMem, per CPU, per node or in all; 0 means all of a node: unknown."""
    if found is None or found.mib <= 0:
        return None
    return found.mib * {"c": cpus or 1, "n": nnodes or 1}.get(found.per, 1)


def tasks(attempt: Attempt, names: Sequence[str]) -> list[TaskRow]:
    """One task per node (names: the attempt's node list, expanded, in its order) of an attempt that ran, as `TaskRow`s.

    The batch step holds everything the job has on its node, so it tells that node's share; the rest is divided evenly
    (exact where one node is left).
    """
    if not names or attempt.start is None:
        return []
    cpus: float | None = attempt.cpus
    gpus: float | None = attempt.gpus
    mem, rest, rss = attempt.mem_mib, len(names), attempt.rss.get
    if rest == 1:
        return [(cpus, mem, gpus, rss(names[0]), 1)]
    batch = attempt.batch
    if batch is not None and batch.node in names:
        rest -= 1
        cpus, mem, gpus = _minus(cpus, batch.cpus), _minus(mem, batch.mem_mib), _minus(gpus, batch.gpus)
    else:
        batch = None
    if rest > 1:
        cpus, mem, gpus = _part(cpus, rest), _part(mem, rest), _part(gpus, rest)
    exact = int(rest == 1)
    found: list[TaskRow] = [(cpus, mem, gpus, rss(name), exact) for name in names]
    if batch is not None:
        found[names.index(batch.node)] = (batch.cpus, batch.mem_mib, batch.gpus, rss(batch.node), 1)
    return found


def _minus(total: float | None, part: float | None) -> float | None:
    return None if total is None else max(0, total - (part or 0))


def _part(total: float | None, count: int) -> float | None:
    return None if total is None else total / count
