"""The batch script of a call, read before sbatch does: from a file, or from stdin so that all of it is still there afterwards.

And what of a call must not be asked about: sbatch would read for our question what can be read only once.
"""

from __future__ import annotations

import posix as os
from _stat import S_ISDIR, S_ISFIFO, S_ISREG

from ..common.errors import RequestError
from ..common.record import TYPE_CHECKING
from ..slurm import cluster, sbatch_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..slurm.sbatch_options import CommandLine

MAX_STDIN = 8 * 1024 * 1024
PATIENCE = 200  # milliseconds that a pipe may take to fill: where its writer takes longer the call passes
SEEK_SET, SEEK_CUR = 0, 1
_ANSWER = "\nsbatch: "  # how a line of its answer begins: a job's name that holds one could end the answer early
FIONREAD, SPLICE_F_NONBLOCK = 0x541B, 2


def read(argv: Sequence[str], command: CommandLine) -> bytes:
    """The script's text; empty for --wrap, and where there is none. Raises RequestError for what can be read only once."""
    if command.wrapped:
        return b""
    if command.script >= len(argv):
        return _stdin()
    path = _found(argv[command.script])
    if not _mode(path):
        return b""  # sbatch will say that there is no such file
    if not S_ISREG(_mode(path)):  # opening a pipe would already take its writer away from sbatch
        raise RequestError("the script is no file")
    fd = _opened(path)
    try:
        return os.read(fd, sbatch_options.MAX_SCRIPT)
    finally:
        os.close(fd)


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as err:
        raise RequestError(f"the script can't be read ({err.strerror})") from err


def _found(script: str) -> str:
    """The script's path: without a slash it may be anywhere in PATH, for sbatch, too."""
    if "/" in script:
        return script
    path = cluster.environment().get(b"PATH", b"").decode("utf-8", "surrogateescape")
    places = [script, *(f"{folder}/{script}" for folder in path.split(":"))]
    return next((place for place in places if _mode(place) and not S_ISDIR(_mode(place))), script)


def _mode(path: str) -> int:
    """Of what is there; 0 where nothing is."""
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return 0


def _stdin() -> bytes:
    """What waits on stdin, which is the shim's own: neither taken out of a pipe nor moved in a file."""
    try:
        mode = os.fstat(0).st_mode
        if S_ISFIFO(mode):
            return _in_pipe(0)
        text = os.pread(0, MAX_STDIN + 1, 0) if S_ISREG(mode) and not os.lseek(0, 0, SEEK_CUR) else b""
    except OSError as err:
        raise RequestError(f"the script on stdin can't be read ({err.strerror})") from err
    finally:
        os.dup2(_opened("/dev/null"), 0)  # who writes to a pipe is to notice when sbatch ends
    if not text or len(text) > MAX_STDIN:
        raise RequestError("the script on stdin is too large, partly read, or none")
    return text


def _in_pipe(fd: int) -> bytes:
    """All that a pipe holds, once its writers are gone, by tee(2), which leaves it there. Raises RequestError."""
    import fcntl  # noqa: PLC0415
    import select  # noqa: PLC0415

    from ..slurm import node_rpc  # noqa: PLC0415

    poll = select.poll()
    poll.register(fd, 0)
    if not poll.poll(PATIENCE):
        raise RequestError("the script on stdin isn't whole yet")
    size = int.from_bytes(fcntl.ioctl(fd, FIONREAD, b"\0\0\0\0"), "little")
    read_end, write_end = os.pipe()
    try:
        c = node_rpc.Library("libc.so.6")
        copied = c.call("tee", c.int(fd), c.int(write_end), c.long(size), c.int(SPLICE_F_NONBLOCK)) if size else 0
        text = os.read(read_end, size) if copied == size > 0 else b""
    finally:
        os.close(read_end)
        os.close(write_end)
    if not text or len(text) != size:
        raise RequestError("the script on stdin is empty, or too large for a pipe")
    return text


def memory_file(content: bytes) -> int:
    """A descriptor from which sbatch can read this."""
    fd = os.memfd_create("script")
    os.write(fd, content)
    os.lseek(fd, 0, SEEK_SET)
    return fd


def components(script: bytes) -> int:
    """Components that a script's `#SBATCH hetjob` lines make; sbatch takes `#SLURM` for the same word."""
    count = 1
    for line in sbatch_options.head(script):
        for word in sbatch_options.STARTS:
            count += line.startswith(word) and line[len(word) :].split()[:1] in ([b"hetjob"], [b"packjob"])
    return count


def check(argv: Sequence[str], command: CommandLine, script: bytes) -> None:
    """Raises RequestError where the call submits nothing, where sbatch's answer to our question could not be told from what the
    call brings, or where sbatch reads a list of nodes, say, from a pipe: the real call would find it empty."""
    if len(script) >= sbatch_options.MAX_SCRIPT and len(sbatch_options.head(script)) == script.count(b"\n") + 1:
        raise RequestError("the script's head is too long to be looked through")
    words = argv[: command.script] if command.known else argv
    if any(_ANSWER in word for word in words) or any(_ANSWER.encode() in value for value in cluster.environment().values()):
        raise RequestError("a value holds a line as sbatch prints them")
    inside = sbatch_options.directives(script)
    if (command.sets | sbatch_options.read(inside).sets) & sbatch_options.NO_JOB:
        raise RequestError("it submits nothing")
    for name in sbatch_options.files([*words]) + sbatch_options.files(inside):
        mode = _mode(name)  # nodes are named in most cases, so that nothing is there
        if name.startswith(("/dev/", "/proc/")) or (mode and not S_ISREG(mode) and not S_ISDIR(mode)):
            raise RequestError(f"{name[:60]!a} can be read only once")
