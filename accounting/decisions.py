"""Reading back the decisions that the hook logged: one JSON line each, from the log files of our own or the journal.

Standard library only. Lines of users' making (anyone can write to syslog) are data to count, never to act on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from slurm_hook import bounded, log, logfiles
from slurm_hook.errors import InputError

LOG_FILE = "/var/log/workhorse/workhorse.log"
JOURNAL = "the journal"
HOW_TO_KEEP = f"let rsyslog write them to {LOG_FILE} (etc/rsyslog/workhorse.conf), or run as a member of systemd-journal"
MAX_LINES = 200_000
ROUTES = ("wrapper", "cli_filter", "job_submit", "dispatch")
_LINE = re.compile(r"^(?P<when>\S+(?: +\d+ [\d:]+)?) .*?\bworkhorse(?:\[\d+\])?: (?P<json>\{.*\})\s*$")


def source(path: str = LOG_FILE) -> str | None:
    """Where decisions can be read from here: the log file, the journal, or nowhere."""
    if os.access(path, os.R_OK):
        return path
    if shutil.which("journalctl") and os.path.isdir("/run/systemd/system"):
        return JOURNAL
    return None


def read(where: str | None, since: float, until: float) -> Iterator[dict[str, Any]]:
    """Decisions of a stretch of time (epoch seconds), oldest first; each with its time as `time`. Raises InputError."""
    if where is None:
        return
    lines = _journal(since, until) if where == JOURNAL else _file(where, since, until)
    for line in lines:
        if since <= line["time"] <= until:
            yield line


def route(line: Mapping[str, Any]) -> str:
    """By which of ROUTES a decision came, or "other": anyone can write to syslog."""
    by = line.get("by", "wrapper")
    return by if by in ROUTES else "other"


def fallback(line: Mapping[str, Any]) -> str:
    """Why mode steer acted as avoid, one of log.FALLBACKS or "other"; "" where it didn't."""
    told = line.get("fallback", "")
    return told if told == "" or told in log.FALLBACKS else "other"


def _file(path: str, since: float, now: float) -> Iterator[dict[str, Any]]:
    """Of a log and of what logrotate made of it, at most the last MAX_LINES: the newest are what is asked for."""
    try:
        for line in logfiles.last_lines(path, MAX_LINES, since):
            parsed = parse_line(line, now)
            if parsed:
                yield parsed
    except OSError as err:
        raise InputError(f"{path}: can't be read ({err.strerror}); name the log of decisions with --log") from err


def parse_line(line: str, now: float) -> dict[str, Any] | None:
    """One line of a syslog file: ISO or traditional time, host, ident, JSON. None for anything else."""
    match = _LINE.match(line)
    if not match:
        return None
    when = _time(match["when"], now)
    return None if when is None else _decision(match["json"], when)


def _decision(text: str, when: float) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return {**data, "time": when} if isinstance(data, dict) else None


def _time(text: str, now: float) -> float | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        pass
    try:  # the traditional form has no year: the latest that isn't in the future
        year = datetime.fromtimestamp(now).year
        when = datetime.strptime(f"{year} {text}", "%Y %b %d %H:%M:%S").timestamp()
        return when if when <= now + 86400 else datetime.strptime(f"{year - 1} {text}", "%Y %b %d %H:%M:%S").timestamp()
    except ValueError:
        return None


def _journal(since: float, until: float) -> Iterable[dict[str, Any]]:
    span = [f"--since=@{since:.0f}", f"--until=@{until:.0f}", f"--lines={MAX_LINES}"]
    argv = ["journalctl", "-t", "workhorse", "-o", "json", "--output-fields=MESSAGE", "--no-pager", *span]
    try:
        _, out, _ = bounded.run(argv, 60)
    except (OSError, bounded.Expired):
        return []
    found = []
    for line in out.decode("utf-8", "replace").splitlines():
        entry = _decision(line, 0.0) or {}
        message, micro = entry.get("MESSAGE"), str(entry.get("__REALTIME_TIMESTAMP", ""))
        if isinstance(message, str) and micro.isdigit():
            parsed = _decision(message, int(micro) / 1e6)
            found += [parsed] if parsed else []
    return found
