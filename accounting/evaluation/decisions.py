"""Reading back the decisions that the hook logged: one JSON line each, from the log files of our own or the journal.

Standard library only. Lines of users' making (anyone can write to syslog) are data to count, never to act on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_hook.common import installed
from slurm_hook.common.errors import InputError
from slurm_hook.published import decision_log, log_reader

LOG_FILE = "/var/log/workhorse/workhorse.log"
JOURNAL = "the journal"
HOW_TO_KEEP = f"let rsyslog write them to {LOG_FILE} (etc/rsyslog/workhorse.conf), or run as a member of systemd-journal"
MAX_LINES = 200_000
ROUTES = ("wrapper", "cli_filter", "job_submit", "dispatch")


def source(path: str = LOG_FILE) -> str | None:
    """Where decisions can be read from here: the log file, the journal, or nowhere."""
    if os.access(path, os.R_OK):
        return path
    return JOURNAL if log_reader.has_journal() else None


def read(where: str | None, since: float, until: float) -> Iterator[dict[str, Any]]:
    """Decisions of a stretch of time (epoch seconds), oldest first; each with its time as `time`. Raises InputError."""
    if where is None:
        return
    service = {0, *installed.trusted_uids()}
    for entry in log_reader.journal(since, until, MAX_LINES) if where == JOURNAL else _file(where, since, until):
        if since <= entry.time <= until and log_reader.believed(entry, None, service):
            yield {**entry.fields, "time": entry.time}


def route(line: Mapping[str, Any]) -> str:
    """By which of ROUTES a decision came, or "other": anyone can write to syslog."""
    by = line.get("by", "wrapper")
    return by if by in ROUTES else "other"


def fallback(line: Mapping[str, Any]) -> str:
    """Why mode steer acted as avoid, one of log.FALLBACKS or "other"; "" where it didn't."""
    told = line.get("fallback", "")
    return told if told == "" or told in decision_log.FALLBACKS else "other"


def _file(path: str, since: float, now: float) -> Iterator[log_reader.Entry]:
    """Of a log and of what logrotate made of it, at most the last MAX_LINES: the newest are what is asked for."""
    try:
        for line in log_reader.last_lines(path, MAX_LINES, since):
            entry = log_reader.of_file(line, now)
            if entry is not None:
                yield entry
    except OSError as err:
        raise InputError(f"{path}: can't be read ({err.strerror}); name the log of decisions with --log") from err
