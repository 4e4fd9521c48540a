"""What workhorse_cli_filter.lua asks in a child process: the wrapper's decision for options that Slurm has parsed itself.

The request comes as hexadecimal digits of Slurm's own JSON of the options, so that no user data ever meets a shell. The
answer is `key=value` lines between a first and an end line; without the end line Lua sets nothing.
"""

from __future__ import annotations

import os
import sys
import time

from .errors import RequestError, SlurmError, SnapshotError, WorkhorseError
from .light import TYPE_CHECKING, json_loads

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .decide import Case, Decision


def main(words: Sequence[str]) -> None:
    """Entry: published folder, the service user's uid, seconds that Lua waits, and the request in hex."""
    from . import log, wrapper  # noqa: PLC0415

    started = time.monotonic()
    publish, service_uid, wait, request = words
    limit = float(wait) - 0.1
    wrapper.alarm(limit)
    try:
        made = _consider(publish, service_uid, request, started + limit)
    except (SnapshotError, SlurmError) as err:
        os.close(1)
        log.send(wrapper.failure_line(err, by="cli_filter"))
        return
    except (WorkhorseError, ValueError):
        return
    if made is None:
        return
    case, decision, why = made
    added = () if case.settings["steer.mode"] == "observe" else wrapper.arguments(case, decision)
    lines = ["workhorse 1", *(f"+{word[2:]}" for word in added if not word.startswith("--nodelist=")), "end", ""]
    if added:
        sys.stdout.write("\n".join(lines))
        sys.stdout.flush()
    ms = (time.monotonic() - started) * 1000
    os.close(1)
    log.send(wrapper.log_line(case, decision, why, by="cli_filter", applied=bool(added), ms=ms))


def _consider(publish: str, service_uid: str, digits: str, deadline: float) -> tuple[Case, Decision, str] | None:
    from . import cluster, directives, nodeinfo, snapshot, wrapper  # noqa: PLC0415
    from .request import request_from  # noqa: PLC0415

    options = _options(digits)
    script = _script(options.pop("argv", []), options)
    if wrapper.components(script) > 1:
        raise RequestError("heterogeneous")
    uids = wrapper.uids_of(service_uid)
    query = cluster.NodeQuery("scontrol", deadline - time.monotonic())
    query.load(nodeinfo.library_of(_grandparent()))
    try:
        scores, nodes = snapshot.read_scores_later(publish, trusted_uids=uids)
        # the form "nodelist" is for the wrapper only: here a node count can't be pinned with it
        request = request_from({key: str(value) for key, value in options.items()})
        told = directives.parse(script)
        return wrapper.judge((request,), told, scores, nodes, query=query, publish=publish, uids=uids, deadline=deadline)
    finally:
        query.end()


def _grandparent() -> int:
    """The program of Slurm that Lua runs in; our parent is `timeout`."""
    try:
        with open(f"/proc/{os.getppid()}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _options(digits: str) -> dict[str, Any]:
    found = json_loads(bytes.fromhex(digits).decode())
    if not isinstance(found, dict):
        raise RequestError("the options are no JSON object")
    return found


def _script(argv: object, options: dict[str, Any]) -> bytes:
    """The head of the batch script, where the call names one; salloc and srun name commands, which have no directives."""
    if "wrap" in options or not isinstance(argv, list) or not argv or not isinstance(argv[0], str):
        return b""
    try:
        fd = os.open(argv[0], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        head = os.read(fd, 65536)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return head if head.startswith(b"#!") else b""
