"""Jobs as slurmctld knows them now: one `squeue` call, read so that no job name or comment can pass for another row.

Names and comments are free text with any byte in them, `|`, line breaks and Slurm's own words included. So every call
makes up its own separators, which nobody can have put into a name before, and free text comes last.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice

from ..common import hostlist
from ..common.errors import HostlistError, SlurmError
from ..common.record import Record
from ..published import mark
from . import commands, pending_reasons

# held, or not yet to be scheduled: not a stage that waits for nodes
NOT_ELIGIBLE = frozenset({
    "Dependency", "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin", "BeginTime", "BadConstraints",
    "JobHoldMaxRequeue", "LaunchFailedRequeuedHeld", "SpecialExit", "JobArrayTaskLimit", "Cleaning",
})  # fmt: skip
_WHOLE = re.compile(r"\d+")
PAST_FIELDS = 8
MAX_LISTED = 20_000  # names in one list of a job, repeated ones included: more than there are nodes anywhere
NAMED = 1000  # ids on one squeue's command line; above, it prints all that wait
_ASKED = re.compile(r"(?:^|\s)(?:--depe[a-z]*(?:=|\s+)|-d\s*)[\"']?(\S+)")  # --dependency and its abbreviations
MAX_LINKS = 1000  # dependencies looked at of one job: the list may be 128 KiB long
_DEPENDENCY = re.compile(r"(after[a-z]*):(\d+)(?:_(\d+|\*))?(?:\+\d+)?(?:\((\w+)\))?")


_marked = lru_cache(maxsize=16384)(mark.parse)  # a pass looks at each job several times


class Details(Record):
    """What only the second form of squeue prints. eligible: epoch seconds, 0 not yet; restarts: times it was requeued;
    nodes_max: 0 not given; cpus, mem (MiB), gpus: of the whole job; gpu_type: "" any; switches: most leaf switches, 0 not
    given; odd, inner: as of a `Request`."""

    eligible: float = 0.0
    restarts: int = 0
    nodes_max: int = 0
    cpus: int = 0
    mem: float = 0.0
    gpus: int = 0
    gpu_type: str = ""
    switches: int = 0
    odd: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()


class Job(Record):
    """A job, an array's waiting rest, or a het component. Times are epoch seconds (0 unknown), minutes None: no limit.

    label: the id as users write it (`12_[3-9]`, `12+1`); excludes, req_nodes: expanded; node_list: folded, where it runs
    or ran; dependency: what it still waits for, as Slurm prints it.
    """

    id: int
    label: str
    state: str
    user: str
    partition: str
    qos: str
    account: str
    priority: int
    nice: int
    submit: float
    start: float
    end: float
    minutes: float | None
    nodes: int
    req_nodes: str
    excludes: str
    node_list: str
    dependency: str
    reason: str
    reservation: str
    features: str
    sharing: str
    comment: str
    name: str
    details: Details | None = None

    @property
    def array(self) -> bool:
        """An array's waiting rest or one of its tasks."""
        return "_" in self.label

    @property
    def het(self) -> bool:
        """A component of a heterogeneous job."""
        return "+" in self.label

    @property
    def pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def held(self) -> bool:
        """Held by its user or an admin, or set to priority 0 by Slurm itself."""
        return self.pending and self.priority == 0

    @property
    def eligible(self) -> bool:
        """Waits for nodes: pending, not held, its dependencies met, its begin time reached.

        Slurm forgets the reason when a job is updated, so the dependencies themselves count too; a begin time then shows
        only in the details.
        """
        return self.pending and self.priority > 0 and not self.dependency and self.reason not in NOT_ELIGIBLE

    @property
    def holds(self) -> bool:
        """Waits for nodes that become free, so that others don't get them; in a reservation it has its own."""
        return self.eligible and not self.reservation and pending_reasons.holds_nodes(self.reason)

    @property
    def readable(self) -> bool:
        """Its excludes can be told: what we can't read we neither keep nor change."""
        return read_nodes(self.excludes) is not None

    @property
    def mark(self) -> mark.Mark | None:
        return _marked(self.comment)


# squeue's letter, field, converter; comment and name are free text and last
_FIELDS = (
    ("A", "id"), ("i", "label"), ("T", "state"), ("u", "user"), ("P", "partition"), ("q", "qos"), ("a", "account"),
    ("Q", "priority"), ("y", "nice"), ("V", "submit"), ("S", "start"), ("e", "end"), ("l", "minutes"), ("D", "nodes"),
    ("n", "req_nodes"), ("x", "excludes"), ("N", "node_list"), ("E", "dependency"), ("r", "reason"),
    ("v", "reservation"), ("f", "features"), ("h", "sharing"), ("k", "comment"), ("j", "name"),
)  # fmt: skip
_TRES_PER = ("tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task")
# what the submission's options have become; where squeue tells a number above 0, or a word, it was asked for
_ODD = (("Contiguous", "contiguous"), ("MinTmpDisk", "tmp"), ("Sockets", "sockets-per-node"), ("Cores", "cores-per-socket"))
_INNER = (
    ("Threads", "threads-per-core"), ("NTPerCore", "ntasks-per-core"), ("NTPerSocket", "ntasks-per-socket"),
    ("Licenses", "licenses"), ("tres-per-socket", "gpus-per-socket"),
)  # fmt: skip
_DETAIL_FIELDS = (
    "JobID", "EligibleTime", "RestartCnt", "MaxNodes", "ReqSwitch", *_TRES_PER, *(name for name, _ in _ODD),
    *(name for name, _ in _INNER if name not in _TRES_PER), "tres",
)  # fmt: skip
_UNASKED = frozenset({"", "0", "*", "N/A", "(null)", "65534", "4294967294"})
_EMPTY = frozenset({"", "(null)", "N/A", "None", "n/a"})


def load(user: str | None = None) -> list[Job]:
    """All jobs that slurmctld still knows, finished ones of the last minutes too. Two RPCs (jobs, and squeue's partitions).

    Raises SlurmError. What Slurm hides from the caller (PrivateData) is missing.
    """
    separator, end = _separators()
    form = separator.join(f"%{letter}" for letter, _ in _FIELDS) + end
    argv = ["squeue", "--local", "--all", "--noheader", "--noconvert", "--states=all", f"--format={form}"]
    return parse(commands.run(argv + ([f"--user={user}"] if user else [])), separator, end)


def details(ids: Iterable[int]) -> dict[int, Details]:
    """Details of the waiting jobs named, those that slurmctld no longer knows left out. One RPC, however many they are."""
    wanted = frozenset(ids)
    if not wanted:
        return {}
    separator, end = _separators()
    form = ",".join(f"{field}:{separator}" for field in _DETAIL_FIELDS[:-1]) + f",{_DETAIL_FIELDS[-1]}:{end}"
    which = f"--jobs={','.join(map(str, sorted(wanted)))}" if len(wanted) <= NAMED else "--states=PENDING"
    argv = ["squeue", "--local", "--all", "--noheader", "--noconvert", f"--Format={form}", which]
    code, out, err = commands.attempt([*argv, *(["--states=all"] if len(wanted) <= NAMED else [])])
    if code != 0 and "Invalid job id" not in err:
        raise SlurmError(f"squeue failed (exit code {code}): {err.strip()[:400]}")
    return {job: found for job, found in parse_details(out, separator, end).items() if job in wanted}


def _separators() -> tuple[str, str]:
    """A field and a row separator that no job can hold: made up for this call. Nothing that squeue's formats read."""
    nonce = secrets.token_hex(8)
    return f"\x1f{nonce}\x1f", f"\x1e{nonce}\x1e"


def parse(text: str, separator: str, end: str) -> list[Job]:
    """Jobs from squeue's output. Raises SlurmError for a row that doesn't have all fields."""
    found = []
    for row in text.split(end)[:-1]:
        values = row.lstrip("\n").split(separator)
        if len(values) != len(_FIELDS):
            raise SlurmError(
                f"squeue printed {len(values)} fields where {len(_FIELDS)} were asked; is it squeue of Slurm itself?"
            )
        found.append(_job({name: value for (_, name), value in zip(_FIELDS, values)}))
    return found


def _job(raw: dict[str, str]) -> Job:
    text = {key: "" if value in _EMPTY and key not in ("name", "comment") else value for key, value in raw.items()}
    if text["comment"] == "(null)":
        text["comment"] = ""
    return Job(
        id=int(text["id"]), label=text["label"], state=text["state"].split()[0] if text["state"] else "", user=text["user"],
        partition=text["partition"], qos=text["qos"], account=text["account"], priority=_number(text["priority"]),
        nice=_signed(text["nice"]), submit=float(_number(text["submit"])), start=float(_number(text["start"])),
        end=float(_number(text["end"])), minutes=parse_limit(text["minutes"]), nodes=_number(text["nodes"]),
        req_nodes=text["req_nodes"], excludes=text["excludes"], node_list=text["node_list"], dependency=text["dependency"],
        reason=text["reason"], reservation=text["reservation"], features=text["features"], sharing=text["sharing"],
        comment=text["comment"], name=text["name"],
    )  # fmt: skip


def parse_details(text: str, separator: str, end: str) -> dict[int, Details]:
    """Details by raw job id from squeue's output."""
    found = {}
    for row in text.split(end)[:-1]:
        values = [value.strip() for value in row.strip("\n").split(separator)]
        if len(values) == len(_DETAIL_FIELDS) and values[0].isdigit():
            found[int(values[0])] = _details(dict(zip(_DETAIL_FIELDS, values)))
    return found


def _details(told: Mapping[str, str]) -> Details:
    def asked(table: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        return tuple(option for name, option in table if told[name] not in _UNASKED)

    kinds, others = gres_kinds(",".join(told[name] for name in _TRES_PER))
    return Details(
        float(_number(told["EligibleTime"])), _number(told["RestartCnt"]), _number(told["MaxNodes"]), *parse_tres(told["tres"]),
        gpu_type=next(iter(kinds)) if len(kinds) == 1 else "", switches=_number(told["ReqSwitch"]), inner=asked(_INNER),
        odd=(*asked(_ODD), *others, *(("several GPU types",) if len(kinds) > 1 else ())),
    )  # fmt: skip


def gres_kinds(text: str) -> tuple[set[str], tuple[str, ...]]:
    """GPU types, and GRES other than GPUs, of `gres:gpu:a100:4` (22.05) or `cpu:2,gres/gpu:a100:4,gres/lustre:1`."""
    kinds, others = set(), []
    for item in text.split(","):
        words = item.replace("gres/", "gres:", 1).replace("=", ":").split(":")
        if words[0] == "gres" and words[1:2] != ["gpu"]:
            others.append(":".join(words[:2]))
        elif words[0] == "gres" and len(words) > 2 and not words[2].isdigit():
            kinds.add(words[2])
    return kinds, tuple(others)


def parse_tres(text: str) -> tuple[int, float, int]:
    """CPUs, memory (MiB) and GPUs of `cpu=2,mem=200G,node=2,gres/gpu=8`; typed GPUs count only where no total stands."""
    cpus, mem, gpus, typed = 0, 0.0, 0, 0
    for item in text.split(","):
        key, _, value = item.partition("=")
        if key == "cpu":
            cpus = _number(value)
        elif key == "mem":
            mem = parse_mib(value)
        elif key == "gres/gpu":
            gpus = _number(value)
        elif key.startswith("gres/gpu:"):
            typed += _number(value)
    return cpus, mem, gpus or typed


def parse_mib(text: str) -> float:
    """MiB of `200G`, `1.50T` or `2000M`; 0 for what isn't a size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)", text)
    if not match:
        return 0.0
    return float(match[1]) * {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}[match[2]]


def parse_limit(text: str) -> float | None:
    """Minutes of a time limit such as `1-02:03:04` or `5:00`; None where there is none."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60


def _number(text: str) -> int:
    match = _WHOLE.match(text)
    return int(match[0]) if match else 0


def _signed(text: str) -> int:
    return -_number(text[1:]) if text.startswith("-") else _number(text)


class Link(Record):
    """One dependency: kind (`afterok`), the raw id it names, and its state as Slurm prints it (`unfulfilled`, `failed`)."""

    kind: str
    job: int
    state: str = ""


def links(dependency: str) -> list[Link]:
    """Dependencies of squeue's `afterok:12(unfulfilled),afterany:13_4(failed)?…`; `singleton` names no job."""
    return [Link(m[1], int(m[2]), m[4] or "") for m in islice(_DEPENDENCY.finditer(dependency), MAX_LINKS)]


class _Remembered:
    """Lists that were expanded before: a pass meets each several times, and most of them again in the next."""

    MAX_NAMES = 400_000  # kept in all, some 30 MB: then all are forgotten

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, ...] | None] = {}
        self.names = 0

    def get(self, folded: str) -> tuple[str, ...] | None:
        if folded not in self.known:
            try:
                found: tuple[str, ...] | None = tuple(hostlist.expand(folded, MAX_LISTED))
            except HostlistError:
                found = None
            if self.names > self.MAX_NAMES:
                self.known, self.names = {}, 0
            self.known[folded] = found
            self.names += len(found or ()) + 1
        return self.known[folded]


_remembered = _Remembered()


def read_nodes(folded: str) -> tuple[str, ...] | None:
    """Names of a node list of Slurm's; None for one that can't be read, or names more than any cluster has."""
    return () if folded in _EMPTY else _remembered.get(folded)


def nodes_of(folded: str) -> tuple[str, ...]:
    """Names of a node list of Slurm's; () for none, and for a list that can't be read."""
    return read_nodes(folded) or ()


def run_seconds(job: Job, now: float) -> float:
    """How long the job's present attempt ran; 0 for one that waits."""
    if job.pending or job.start <= 0:
        return 0.0
    return max(0.0, (min(job.end, now) if job.end > 0 else now) - job.start)


class PastJob(Record):
    """A job as accounting has it: enough to show a pipeline's finished stages. after: ids that its submission named."""

    id: int
    state: str
    elapsed: float
    node_list: str
    end: float
    comment: str
    name: str
    after: tuple[int, ...] = ()


def history(user: str, days: float, now: float | None = None) -> list[PastJob]:
    """One user's jobs of the last days from accounting, all attempts. Raises SlurmError."""
    since = int((now if now is not None else time.time()) - days * 86400)
    separator = f"\x1f{secrets.token_hex(8)}\x1f"
    fields = "JobIDRaw,State,ElapsedRaw,NodeList,End,Comment,JobName,SubmitLine"
    argv = ["sacct", "-X", "-D", "-n", "-P", f"--user={user}", "-S", f"uts{since}", "-o", fields, f"--delimiter={separator}"]
    return parse_history(commands.run(argv, timeout=120.0), separator)


def parse_history(text: str, separator: str) -> list[PastJob]:
    """Rows of sacct; names with line breaks are joined again, since a row begins with an id and the separator."""
    rows: list[list[str]] = []
    for line in text.split("\n"):
        values = line.split(separator)
        if len(values) >= 2 and values[0].isdigit() and (not rows or len(rows[-1]) >= PAST_FIELDS):
            rows.append(values)
        elif rows:
            rows[-1][-1] += "\n" + values[0]
            rows[-1].extend(values[1:])
    return [_past(row) for row in rows if len(row) == PAST_FIELDS]


def _past(row: Sequence[str]) -> PastJob:
    job, state, elapsed, nodes, end, comment, name, line = row
    word = state.split()[0] if state.split() else ""
    listed = "" if nodes in _EMPTY or nodes == "None assigned" else nodes
    return PastJob(int(job), word, float(_number(elapsed)), listed, float(_number(end)), comment, name, submitted_after(line))


def submitted_after(line: str) -> tuple[int, ...]:
    """Jobs that a submission made itself depend on: what stays known once Slurm has forgotten that they ended."""
    asked = [part for match in _ASKED.finditer(line) for part in re.split(r"[,?]", match[1]) if part.startswith("after")]
    return tuple(int(job) for part in asked for job in re.findall(r":(\d{1,10})", part))


def per_node(job: Job) -> Details:
    """CPUs, memory and GPUs of one node of the job, rounded up; the job's details must be known."""
    found, nodes = job.details or Details(), max(1, job.nodes)
    return found._replace(cpus=math.ceil(found.cpus / nodes), mem=found.mem / nodes, gpus=math.ceil(found.gpus / nodes))
