"""Live state of the cluster: the only place where the submit path talks to Slurm.

The nodes as they are now are the single RPC of a steered submission (two where only scontrol can be asked); what doesn't
change by the minute comes from the published files. Asking sbatch is no RPC: it is ended when its options are printed.
"""

from __future__ import annotations

import fcntl
import posix as os
import select
import sys
import time

from ..common.errors import RefusedError, SlurmError
from ..common.record import TYPE_CHECKING, Record
from . import node_rpc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

MAX_OUTPUT = 64 * 1024 * 1024
PAGE = 4096
# a node in one of these can't start a job now; the first word of State, and flags behind `+`
_CAN_RUN = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_GONE = frozenset((
    "DOWN", "DRAIN", "DRAINING", "DRAINED", "FAIL", "FAILING", "INVAL", "INVALID_REG", "FUTURE", "UNKNOWN",
    "ERROR", "NOT_RESPONDING", "POWER_DRAIN",
))  # fmt: skip
_BUSY_FLAGS = frozenset((
    "PLANNED", "RESERVED", "MAINTENANCE", "MAINT", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_UP",
    "POWER_DOWN", "REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT", "COMPLETING", "BLOCKED",
))  # fmt: skip


class Node(Record):
    """One node as slurmctld sees it now: memory in MiB, flags beside the base state.

    kind: nodes of one answer that have it in common differ by name (and partitions) only; -1: not known.
    """

    name: str
    state: str
    flags: frozenset[str] = frozenset()
    cpus: int = 0
    cpus_used: int = 0
    mem: float = 0.0
    mem_used: float = 0.0
    gpus: int = 0
    gpus_used: int = 0
    gpu_type: str = ""
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    kind: int = -1

    @property
    def usable(self) -> bool:
        """Could run a job, now or when what runs there has ended."""
        return self.state in _CAN_RUN and not self.flags & _GONE

    @property
    def open(self) -> bool:
        """Takes new jobs right now."""
        return self.usable and self.state != "ALLOCATED" and not self.flags & _BUSY_FLAGS

    @property
    def idle(self) -> bool:
        """Nothing runs there."""
        return self.state == "IDLE"


def parse_nodes(text: str, partitions: Mapping[str, tuple[str, ...]] | None = None) -> dict[str, Node]:
    """Nodes of `scontrol -o show node` by name. Lines that aren't nodes are left out.

    partitions: of the nodes, for an answer that doesn't tell them.
    """
    nodes: dict[str, Node] = {}
    kinds: dict[tuple[str, ...], tuple[Any, ...]] = {}
    words: dict[str, tuple[str, ...]] = {}
    elsewhere = partitions or {}
    for line in text.split("\n"):
        if not line.startswith("NodeName="):
            continue
        name, facts = _cut(line)
        kind = kinds.get(facts)
        if kind is None:
            kind = kinds[facts] = (*_facts(facts), len(kinds))
        mine = elsewhere.get(name, ())
        if " Partitions=" in line:
            told = _field(line, " Partitions=")
            mine = words[told] if told in words else words.setdefault(told, _words(told))
        nodes[name] = tuple.__new__(Node, (name, *kind[:-1], mine, kind[-1]))  # one of thousands
    return nodes


# Where each stretch of a line begins and ends, in the order in which Slurm prints them (all versions). What is left out
# between them differs from node to node, as load and address do.
_STRETCHES = (
    (" CPUAlloc=", " CPULoad="), (" ActiveFeatures=", " NodeAddr="), (" RealMemory=", " FreeMem="),
    (" Boards=", " ThreadsPerCore="),
)  # fmt: skip


def _cut(line: str) -> tuple[str, tuple[str, ...]]:
    """The node's name, and the stretches of its line that say what it is."""
    find = line.find
    at = find(" ", 9)
    name, cut = line[9:at], []
    for first, behind in _STRETCHES:
        start = find(first, at)
        if start >= 0:
            at = find(behind, start)
            cut.append(line[start:at] if at >= 0 else line[start:])
    if not cut or " State=IDLE" not in cut[-1]:
        cut.append(" CfgTRES=" + _field(line, " CfgTRES=") + " AllocTRES=" + _field(line, " AllocTRES="))
    return name, tuple(cut)


def _facts(stretches: tuple[str, ...]) -> tuple[Any, ...]:
    """The fields of a Node between its name and its partitions."""
    text = "".join(stretches)
    base, flags = _state(_field(text, " State="))
    gpus, gpu_type = _gpus(_field(text, " Gres="))
    busy = base != "IDLE"
    return (
        base, flags, _whole(_field(text, " CPUEfctv=") or _field(text, " CPUTot=")),
        _whole(_field(text, " CPUAlloc=")) if busy else 0,
        float(_whole(_field(text, " RealMemory=")) - _whole(_field(text, " MemSpecLimit="))),
        float(_whole(_field(text, " AllocMem="))) if busy else 0.0,
        gpus, _gpus_used(text, gpus) if busy else 0, gpu_type, _words(_field(text, " ActiveFeatures=")),
    )  # fmt: skip


def _state(text: str) -> tuple[str, frozenset[str]]:
    base, _, flags = text.replace("*", "+NOT_RESPONDING").partition("+")
    return base, frozenset(flags.split("+")) - {""}


def _field(line: str, key: str) -> str:
    start = line.find(key)
    if start < 0:
        return ""
    start += len(key)
    end = line.find(" ", start)
    return line[start:] if end < 0 else line[start:end]


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _words(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(text.split(","))


def _gpus(gres: str) -> tuple[int, str]:
    """Count and type of `gpu:a100:4(S:0-1),lustre:1`; the type of the most common kind."""
    total, best, kind = 0, 0, ""
    for item in gres.split(","):
        words = item.split("(", 1)[0].split(":")
        if words[0] != "gpu":
            continue
        count = _whole(words[-1]) if len(words) > 1 else 1
        total += count
        if count > best:
            best, kind = count, words[1] if len(words) > 2 else ""
    return total, kind


def _gpus_used(text: str, gpus: int) -> int:
    """All of them, where the site doesn't count GPUs (AccountingStorageTRES)."""
    counted = "gres/gpu=" in _field(text, " CfgTRES=")
    return _tres_gpus(_field(text, " AllocTRES=")) if counted else gpus


def _tres_gpus(tres: str) -> int:
    for item in tres.split(","):
        if item.startswith("gres/gpu="):
            return _whole(item[9:])
    return 0


class Started:
    """A command that runs while we do something else: its process and where its output is read."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid, self.fd = pid, fd
        self.over = False  # a number is not used again once its process is gone: another may have it then


class NodeQuery:
    """The question for all nodes, made ready before it is known whether it is asked: see `nodeinfo`.

    Where Slurm's library can't be had, scontrol is asked. program: of Slurm, just started, which shows where that library is.
    """

    def __init__(self, scontrol: str, limit: float, program: int = 0) -> None:
        self.scontrol = scontrol
        self.started: Started | None = None
        self.helper: node_rpc.Helper | None
        self.ready = False
        try:
            self.helper = node_rpc.Helper(limit, program)
        except OSError:  # no memory for another process: scontrol will tell
            self.helper = None

    def load(self, library: str) -> None:
        """Slurm's library is this one ("": none was found)."""
        if self.helper is not None and library and not self.ready:
            self.helper.load(library)
            self.ready = True

    def ask(self) -> None:
        """Ask slurmctld; `nodes` waits for the answer. Raises SlurmError."""
        if self.helper is not None and self.ready:
            self.helper.ask()
        else:
            self.started = _start((self.scontrol, "-o", "show", "node"), from_stderr=False)

    def nodes(self, deadline: float, partitions: Mapping[str, tuple[str, ...]] | None = None) -> dict[str, Node]:
        """All nodes now; partitions: where the answer doesn't tell them. `deadline` by time.monotonic().

        Raises SlurmError when slurmctld doesn't answer in time.
        """
        text = ""
        if self.started is None and self.helper is not None:
            text = self.helper.output(deadline - time.monotonic())
        if not text:
            self.started = self.started or _start((self.scontrol, "-o", "show", "node"), from_stderr=False)
            text = _finish(self.started, deadline, None)
        nodes = parse_nodes(text, partitions)
        if not nodes:
            raise SlurmError("slurmctld told of no nodes")
        return nodes

    def end(self) -> None:
        """End what still runs."""
        if self.helper is not None:
            self.helper.end()
        if self.started is not None:
            end(self.started)


def start_sbatch(sbatch: str, argv: Sequence[str], stdin: int | None = None) -> Started:
    """Begin to ask sbatch for its options; `options_of` reads them and ends it. Raises SlurmError."""
    return _start((sbatch, "-v", "--test-only", *argv), from_stderr=True, stdin=stdin)


def options_of(started: Started, blocks: int, deadline: float, found: Callable[[str], None] | None = None) -> str:
    """sbatch's print-out of its options; sbatch is ended when as many blocks as expected are complete.

    found: is told Slurm's library as soon as sbatch has it. Raises RefusedError when sbatch ended before: its own
    message is for the real submission to show.
    """

    from .request import complete_blocks  # noqa: PLC0415 - sbatch is at work by now

    def enough(text: bytes) -> bool:
        nonlocal found
        if found is not None and text.strip():
            found(node_rpc.library_of(started.pid))
            found = None
        return complete_blocks(text.decode("utf-8", "surrogateescape")) >= blocks

    text = _finish(started, deadline, enough)
    if complete_blocks(text) < blocks:
        raise RefusedError("sbatch printed fewer option blocks than expected", text)
    return text


def end(started: Started) -> None:
    """End a command whose output isn't wanted any more; does nothing where it has ended.

    Not waited for, as that takes a millisecond: who asks ends soon itself.
    """
    if started.over:
        return
    started.over = True
    os.close(started.fd)
    os.kill(started.pid, 9)


def _start(command: Sequence[str], *, from_stderr: bool, stdin: int | None = None) -> Started:
    """posix_spawn: `subprocess` costs 10 ms of import."""
    read_end, write_end = _full_pipe() if from_stderr else os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    actions = [
        (os.POSIX_SPAWN_DUP2, null if stdin is None else stdin, 0),
        (os.POSIX_SPAWN_DUP2, null if from_stderr else write_end, 1),
        (os.POSIX_SPAWN_DUP2, write_end if from_stderr else null, 2),
    ]
    try:
        pid = os.posix_spawnp(command[0], list(command), environment(), file_actions=actions)
    except OSError as err:
        os.close(read_end)
        raise SlurmError(f"{command[0]} can't be started ({err.strerror})") from err
    finally:
        os.close(write_end)
        os.close(null)
    return Started(pid, read_end)


def _full_pipe() -> tuple[int, int]:
    """A pipe that holds no word more until it is read from: sbatch waits with its options there, while we are busy, and is
    ended before it gets to slurmctld."""
    read_end, write_end = os.pipe()
    try:
        fcntl.fcntl(write_end, 1031, PAGE)  # F_SETPIPE_SZ, which Python knows from 3.10 on
        os.set_blocking(write_end, False)
        os.write(write_end, b"\n" * PAGE)
    except OSError:
        pass  # one that isn't full will do: sbatch may then meet slurmctld before it is ended
    os.set_blocking(write_end, True)
    return read_end, write_end


def _finish(started: Started, deadline: float, done: Callable[[bytes], bool] | None) -> str:
    """Output until the command ends or `done` says enough; then it is killed."""
    try:
        return _read(started.fd, deadline, done)
    finally:
        end(started)


def environment() -> Mapping[bytes, bytes]:
    """This process's variables."""
    loaded = sys.modules.get("os")  # who has it may have changed it
    return os.environ if loaded is None else loaded.environb


def _read(fd: int, deadline: float, done: Callable[[bytes], bool] | None) -> str:
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    parts: list[bytes] = []
    size = 0
    while size <= MAX_OUTPUT:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise SlurmError("Slurm did not answer in time")
        part = os.read(fd, 1 << 20)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if done is not None and done(b"".join(parts)):
            break
    return b"".join(parts).decode("utf-8", "surrogateescape")
