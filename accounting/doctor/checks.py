"""`workhorse doctor`: what a check is, what it may look at, and the verdict over all of them.

The checks themselves are in doctor_slurm.py and doctor_site.py. Standard library only, so that it runs on login nodes.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from slurm_hook.common.config import DEFAULT_PATH, Settings
from slurm_hook.common.errors import SlurmError, SnapshotError
from slurm_hook.published.snapshot import Live, Scores, read_live, read_scores

from ..history import sqlite_words
from ..sources import sacct

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
WORDS = ("ok", "WARNING", "CRITICAL", "UNKNOWN")
TIMEOUT = 15.0
ANEW = "restore a copy, or move it away and collect anew"


@dataclass(frozen=True)
class Answer:
    """What one check found: level as Nagios counts, one line of text, and how to mend it (empty where nothing is wrong)."""

    level: int
    text: str
    mend: str = ""


@dataclass(frozen=True)
class Check:
    """name: for --check; means: what it is about, for people; roles: where it makes sense."""

    name: str
    means: str
    run: Callable[[Host], Answer]
    roles: tuple[str, ...] = ("controller", "login", "checkout")


def ok(text: str) -> Answer:
    """Nothing wrong."""
    return Answer(OK, text)


def warn(text: str, mend: str) -> Answer:
    """Works, but not as it should."""
    return Answer(WARNING, text, mend)


def bad(text: str, mend: str) -> Answer:
    """Doesn't work."""
    return Answer(CRITICAL, text, mend)


@dataclass(frozen=True)
class Host:
    """What the checks look at. Answers of Slurm are asked for once; `now` is epoch seconds."""

    settings: Settings
    settings_path: str = DEFAULT_PATH
    settings_error: str = ""
    prefix: str = ""
    service_user: str = "workhorse"
    role: str = "checkout"
    submits: bool = False  # a controller where people submit, too
    config_folder: str = "/etc/workhorse"
    now: float = field(default_factory=time.time)
    trusted_uids: tuple[int, ...] = (0,)

    def by_hand(self, command: str) -> str:
        """How a command of ours is run for the site, ready to paste."""
        return f"`workhorse {command}`" if self.role == "checkout" else f"`runuser -u {self.service_user} -- workhorse {command}`"

    def logged(self, unit: str) -> str:
        """Where the output of a regular run can be read."""
        return f"`journalctl -u workhorse-{unit}`" if self.has_systemd else "syslog's lines of workhorse"

    @property
    def has_systemd(self) -> bool:
        """Do timers of systemd run things here?"""
        return os.path.isdir("/run/systemd/system")

    def slurm(self, *argv: str) -> str:
        """Output of a Slurm command. Raises SlurmError."""
        return sacct.run(argv, TIMEOUT)

    @cached_property
    def slurm_conf(self) -> dict[str, str]:
        """`scontrol show config` by lower-case name. Raises SlurmError."""
        return parse_config(self.slurm("scontrol", "show", "config"))

    @cached_property
    def dbd_conf(self) -> dict[str, str]:
        """slurmdbd's part of `sacctmgr show configuration` by lower-case name. Raises SlurmError."""
        _, _, dbd = self.slurm("sacctmgr", "show", "configuration").partition("SlurmDBD configuration")
        return parse_config(dbd)

    @cached_property
    def slurm_version(self) -> tuple[int, int]:
        """Such as (22, 5). Raises SlurmError."""
        text = self.slurm_conf.get("slurm_version", "")
        numbers = text.split(".")
        if len(numbers) < 2 or not (numbers[0] + numbers[1]).isdigit():
            raise SlurmError(f"scontrol names no version: {text!r}")
        return int(numbers[0]), int(numbers[1])

    @cached_property
    def scores(self) -> Scores:
        """The published scores. Raises SnapshotError."""
        return read_scores(self.settings.publish.path, trusted_uids=self.trusted_uids)

    @cached_property
    def live(self) -> Live:
        """What dispatch last published. Raises SnapshotError."""
        return read_live(self.settings.publish.path, trusted_uids=self.trusted_uids)


def parse_config(text: str) -> dict[str, str]:
    """`Name = value` lines by lower-case name; `(null)` is empty."""
    found = {}
    for line in text.splitlines():
        name, mark, value = line.partition("=")
        if mark and name.strip() and " " not in name.strip():
            found[name.strip().lower()] = "" if value.strip() == "(null)" else value.strip()
    return found


def run(checks: Iterable[Check], host: Host) -> list[tuple[Check, Answer]]:
    """All checks that make sense for the host's role, in order. What Slurm doesn't answer is critical, not an exception."""
    return [(check, _run_one(check, host)) for check in checks if host.role in check.roles]


def _run_one(check: Check, host: Host) -> Answer:
    try:
        return check.run(host)
    except SlurmError as err:
        if check.name in ("slurm", "slurmdbd"):
            return bad(str(err), "see `scontrol ping` and `sacctmgr list cluster`, and what SLURM_CONF points to")
        text = f"can't be seen: {str(err).split(' / ')[0]}"
        return Answer(UNKNOWN, text, "mend what --check slurm and --check slurmdbd say")
    except SnapshotError as err:
        return bad(str(err), f"{host.by_hand('refresh')} on the controller, or see the message")
    except sqlite3.DatabaseError as err:
        meaning, mend = sqlite_words.cause(err)
        return bad(f"{host.settings.history.path}: {meaning}", ANEW if sqlite_words.is_damage(err) else mend or "run it again")
    except PermissionError as err:
        who = f"root or {host.service_user}"
        return Answer(UNKNOWN, f"{err.filename}: may not be read by {_me()}", f"run doctor as {who} for this check")


def _me() -> str:
    import pwd  # noqa: PLC0415

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def verdict(answers: Sequence[Answer]) -> int:
    """One level for all, as Nagios' exit code: critical before warning before unknown before ok."""
    levels = {answer.level for answer in answers}
    return next((level for level in (CRITICAL, WARNING, UNKNOWN) if level in levels), OK)


def ago(seconds: float) -> str:
    """A stretch of time in words: 40 s, 12 min, 5.0 h, 3.2 days."""
    for limit, unit, word in ((90, 1, "s"), (5400, 60, "min")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {word}"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
