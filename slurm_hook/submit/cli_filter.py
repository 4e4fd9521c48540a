"""What workhorse_cli_filter.lua asks in a child process: the wrapper's decision for options that Slurm has parsed itself.

The request comes as hexadecimal digits of Slurm's own JSON of the options, so that no user data ever meets a shell. The
answer is `+key=value` lines and `#notes` for a terminal between a first and an end line, or `pass` and the end line;
without the end line something of ours is broken: Lua sets nothing, and counts it.
"""

from __future__ import annotations

import posix as os
import sys
import time
from _stat import S_ISREG

from ..common.errors import RequestError, SlurmError, SnapshotError, WorkhorseError
from ..common.record import TYPE_CHECKING, json_loads

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..decision.decide import Case, Decision
    from ..decision.directives import Directives
    from ..slurm.request import Request


def main(words: Sequence[str]) -> None:
    """Entry: published folder, the service user's uid, seconds that Lua waits, the client (`sbatch` or another) and
    its process, and the request in hex."""
    from ..published import decision_log  # noqa: PLC0415
    from . import wrapper  # noqa: PLC0415

    started = time.monotonic()
    publish, service_uid, wait, client, pid, request = words
    limit = float(wait) - 0.1
    wrapper.alarm(limit)
    added: Sequence[str] = ()
    try:
        made = _consider(_asked(request, client, int(pid)), int(pid), publish, service_uid, started + limit)
        if made is not None and made[0].settings["steer.mode"] != "observe":
            added = wrapper.arguments(made[0], made[1])
    except (SnapshotError, SlurmError) as err:
        _tell(())
        decision_log.send(wrapper.failure_line(err, by="cli_filter"))
        return
    except (WorkhorseError, ValueError):  # what the user asks for can't be understood
        made = None
    if made is None:
        _tell(())
        return
    case, decision, why = made
    notes = wrapper.notes(case, decision) if _on_terminal(int(pid)) else []
    _tell([*(f"+{word[2:]}" for word in added), *(f"#{wrapper.printable(note)}" for note in notes)])
    ms = (time.monotonic() - started) * 1000
    decision_log.send(wrapper.log_line(case, decision, why, by="cli_filter", applied=bool(added), ms=ms))


def _on_terminal(pid: int) -> bool:
    """Whether a person sees what the client writes to stderr; tools read it."""
    try:
        return os.readlink(f"/proc/{pid}/fd/2").startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
    except OSError:
        return False


def _tell(lines: Sequence[str]) -> None:
    """The answer; Lua goes on when it has it."""
    sys.stdout.write("\n".join(["workhorse 1" if lines else "pass", *lines, "end", ""]))
    sys.stdout.flush()
    os.close(1)


def _asked(digits: str, client: str, pid: int) -> tuple[Request, Directives]:
    """The request and what its script says. Raises RequestError, also for one that may have several components."""
    from ..decision import directives  # noqa: PLC0415
    from ..slurm.request import request_from  # noqa: PLC0415
    from . import batch_script  # noqa: PLC0415

    options = _options(digits)
    argv = options.pop("argv", [])
    words = [word for word in argv if isinstance(word, str)] if isinstance(argv, list) else []
    script = b""
    if client != "sbatch":
        script = _command(words)
    elif "wrap" not in options:
        script = _script(words[0] if words else f"/proc/{pid}/fd/0")
    if batch_script.components(script) > 1:
        raise RequestError("heterogeneous")
    return request_from({key: str(value) for key, value in options.items()}), directives.parse(script)


def _consider(
    asked: tuple[Request, Directives], pid: int, publish: str, service_uid: str, deadline: float
) -> tuple[Case, Decision, str] | None:
    from ..published import snapshot  # noqa: PLC0415
    from ..slurm import cluster, node_rpc  # noqa: PLC0415
    from . import wrapper  # noqa: PLC0415

    request, told = asked
    uids = wrapper.uids_of(service_uid)
    query = cluster.NodeQuery("scontrol", deadline - time.monotonic())
    query.load(node_rpc.library_of(pid))
    try:
        scores, nodes = snapshot.read_scores_later(publish, trusted_uids=uids)
        # the form "nodelist" is for the wrapper only: here a node count can't be pinned with it
        scores = scores._replace(settings={**scores.settings, "steer.form": "exclude"})
        return wrapper.judge((request,), told, scores, nodes, query=query, publish=publish, uids=uids, deadline=deadline)
    finally:
        query.end()


def _options(digits: str) -> dict[str, Any]:
    found = json_loads(bytes.fromhex(digits).decode())
    if not isinstance(found, dict):
        raise RequestError("the options are no JSON object")
    return found


def _script(path: str) -> bytes:
    """The head of the batch script, from its file or from sbatch's stdin where that is one.

    Raises RequestError where it can't be read again, as from a pipe: it may hold `#SBATCH hetjob`, and nodes excluded for
    the first component are excluded for those after it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as err:
        raise RequestError(f"the script can't be read ({err.strerror})") from err
    try:
        head = os.pread(fd, 65536, 0) if S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError as err:
        raise RequestError(f"the script can't be read ({err.strerror})") from err
    finally:
        os.close(fd)
    if not head.startswith(b"#!"):
        raise RequestError("the script can't be read a second time")
    return head


def _command(argv: Sequence[str]) -> bytes:
    """The head of the script that salloc or srun runs; empty where it is none that could be read."""
    try:
        return _script(argv[0]) if argv else b""
    except RequestError:
        return b""
