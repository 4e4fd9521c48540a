"""Live state of the cluster: the only place where the submit path talks to Slurm.

One `scontrol -o show node` is the single RPC of a steered submission; what doesn't change by the minute comes from the
published files. Asking sbatch is no RPC: it is ended when its options are printed.
"""

from __future__ import annotations

import os
import select
import time

from .errors import RequestError, SlurmError
from .light import TYPE_CHECKING, Record
from .request import complete_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

MAX_OUTPUT = 64 * 1024 * 1024
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
    """One node as slurmctld sees it now: memory in MiB, flags beside the base state."""

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


def parse_nodes(text: str) -> dict[str, Node]:
    """Nodes of `scontrol -o show node` by name. Lines that aren't nodes are left out."""
    nodes = {}
    known: dict[str, Any] = {}
    for line in text.split("\n"):
        if line.startswith("NodeName="):
            node = _parse_node(line, known)
            nodes[node.name] = node
    return nodes


def _parse_node(line: str, known: dict[str, Any]) -> Node:
    """One node; `known` keeps what the texts of a field mean, as most nodes of a cluster are alike."""
    base, flags = _once(known, _field(line, " State="), _state)
    gpus, gpu_type = _once(known, _field(line, " Gres="), _gpus)
    busy = base != "IDLE"
    return Node(
        line[9 : line.find(" ", 9)], base, flags, _whole(_field(line, " CPUEfctv=") or _field(line, " CPUTot=")),
        _whole(_field(line, " CPUAlloc=")) if busy else 0,
        float(_whole(_field(line, " RealMemory=")) - _whole(_field(line, " MemSpecLimit="))),
        float(_whole(_field(line, " AllocMem="))) if busy else 0.0,
        gpus, _tres_gpus(_field(line, " AllocTRES=")) if busy else 0, gpu_type,
        _once(known, _field(line, " ActiveFeatures="), _words), _once(known, _field(line, " Partitions="), _words),
    )  # fmt: skip


def _once(known: dict[str, Any], text: str, meaning: Callable[[str], Any]) -> Any:
    key = meaning.__name__ + text
    if key not in known:
        known[key] = meaning(text)
    return known[key]


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


def start_nodes(scontrol: str) -> Started:
    """Begin to ask slurmctld for all nodes; `nodes_of` waits for them. Raises SlurmError."""
    return _start((scontrol, "-o", "show", "node"), from_stderr=False)


def nodes_of(started: Started, deadline: float) -> dict[str, Node]:
    """All nodes now. `deadline` by time.monotonic(). Raises SlurmError when slurmctld doesn't answer in time."""
    nodes = parse_nodes(_finish(started, deadline, lambda _: False))
    if not nodes:
        raise SlurmError("scontrol show node gave no nodes")
    return nodes


def start_sbatch(sbatch: str, argv: Sequence[str], stdin: int | None = None) -> Started:
    """Begin to ask sbatch for its options; `options_of` reads them and ends it. Raises SlurmError."""
    return _start((sbatch, "-v", "--test-only", *argv), from_stderr=True, stdin=stdin)


def options_of(started: Started, blocks: int, deadline: float) -> str:
    """sbatch's print-out of its options; sbatch is ended when as many blocks as expected are complete.

    Raises RequestError when sbatch ended before (its own message is for the real submission to show).
    """
    text = _finish(started, deadline, lambda out: complete_blocks(out) >= blocks)
    if complete_blocks(text) < blocks:
        raise RequestError("sbatch printed fewer option blocks than expected")
    return text


def end(started: Started) -> None:
    """End a command whose output isn't wanted any more; does nothing where it has ended."""
    if started.over:
        return
    started.over = True
    os.close(started.fd)
    os.kill(started.pid, 9)
    os.waitpid(started.pid, 0)


def _start(command: Sequence[str], *, from_stderr: bool, stdin: int | None = None) -> Started:
    """posix_spawn: `subprocess` costs 10 ms of import."""
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    actions = [
        (os.POSIX_SPAWN_DUP2, null if stdin is None else stdin, 0),
        (os.POSIX_SPAWN_DUP2, null if from_stderr else write_end, 1),
        (os.POSIX_SPAWN_DUP2, write_end if from_stderr else null, 2),
    ]
    try:
        pid = os.posix_spawnp(command[0], list(command), _environment(), file_actions=actions)
    except OSError as err:
        os.close(read_end)
        raise SlurmError(f"{command[0]} can't be started ({err.strerror})") from err
    finally:
        os.close(write_end)
        os.close(null)
    return Started(pid, read_end)


def _finish(started: Started, deadline: float, done: Callable[[str], bool]) -> str:
    """Output until the command ends or `done` says enough; then it is killed."""
    try:
        return _read(started.fd, deadline, done)
    finally:
        end(started)


def _environment() -> Mapping[bytes, bytes]:
    return os.environb


def _read(fd: int, deadline: float, done: Callable[[str], bool]) -> str:
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
        if done(b"".join(parts).decode("utf-8", "surrogateescape")):
            break
    return b"".join(parts).decode("utf-8", "surrogateescape")
