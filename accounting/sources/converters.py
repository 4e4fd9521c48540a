"""Converters: one text of sacct → one value. Each takes what any Slurm from 20.11 on prints for its field.

Words in place of a value ("Unknown", "None", "Partition_Limit", …) mean that there is none and give None; what is
neither a value nor such a word raises ValueError. Memory is MiB, times are epoch seconds, durations seconds.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone, tzinfo
from typing import NamedTuple

# what Slurm prints where there is no value (sacct's print.c, slurm_make_time_str, and reports of other tools)
NO_VALUE = frozenset(
    ("", "unknown", "none", "none assigned", "partition_limit", "unlimited", "invalid", "n/a", "(null)", "null", "nan")
)
_FACTOR = {"": 1 / 1048576, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1048576.0, "P": 1073741824.0, "E": 2.0**40}
_MEMORY = re.compile(r"(-?\d{1,18}(?:\.\d+)?)([KMGTPE]?)(?:i?B)?([nc?]?)", re.IGNORECASE)
_ELAPSED = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(\.\d+)?")
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:Z|[+-]\d\d:?\d\d)?")
_CACHE_SIZE = 20_000
MAX_DIGITS = 18
_MOST_MIB = 2.0**36  # 64 PiB for one job
_MOST = 2**31  # CPUs, nodes or GPUs of one job
LAST_TIME = 10**10  # epoch seconds; later (2286) is no time that a cluster saw


def is_no_value(text: str) -> bool:
    """True for the words that Slurm prints where there is no value."""
    return text.strip().lower() in NO_VALUE


def whole(text: str) -> int:
    """A whole number that fits a database column. Raises ValueError."""
    try:
        if len(text) <= MAX_DIGITS:
            return int(text)
    except ValueError:
        pass
    raise ValueError(f"{text[:80]!r} is not a whole number")


def integer(text: str) -> int | None:
    """A whole number; None for a word that means "no value"."""
    try:
        return whole(text)
    except ValueError:
        if is_no_value(text):
            return None
        raise


# ":MM:SS" → seconds into the hour
_CLOCK = {f":{minute:02}:{second:02}": minute * 60 + second for minute in range(60) for second in range(60)}


class Times(dict[str, "int | None"]):
    """Time stamps → epoch seconds: epoch as it is, ISO in the zone given (None: this machine's).

    Used as a dict: `times[text]`; None where Slurm has no time, ValueError for what is no time. Remembered are the words for
    no time and the hours of ISO stamps; seconds are too many.
    """

    def __init__(self, zone: tzinfo | None = None) -> None:
        super().__init__()
        self._zone = zone
        self._hours: dict[str, int] = {}

    def __missing__(self, text: str) -> int | None:
        try:
            return self._hours[text[:13]] + _CLOCK[text[13:]]
        except KeyError:
            pass
        value = (whole(text) or None) if text.isdigit() else self._slow(text)
        if value is not None and not 0 <= value < LAST_TIME:
            raise ValueError(f"{text!r} is not a time between 1970 and 2286")
        if value is None and len(self) < _CACHE_SIZE:
            self[text] = value
        return value

    def _slow(self, text: str) -> int | None:
        if is_no_value(text):
            return None
        if not _ISO.fullmatch(text):
            raise ValueError(f"{text!r} is not a time (epoch seconds or YYYY-MM-DDTHH:MM:SS)")
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
        if when.tzinfo is not None:
            return int(when.timestamp())
        self._remember(text[:13], when)
        return self._epoch(when)

    def _remember(self, hour: str, when: datetime) -> None:
        """Note where an hour begins, unless the clock is set within it."""
        first, last = self._epoch(when.replace(minute=0, second=0)), self._epoch(when.replace(minute=59, second=59))
        if last - first == 3599 and first >= 0:
            if len(self._hours) >= _CACHE_SIZE:
                self._hours.clear()
            self._hours[hour] = first

    def _epoch(self, when: datetime) -> int:
        return int(when.replace(tzinfo=self._zone).timestamp() if self._zone else when.timestamp())

    def later_reading(self, text: str) -> int | None:
        """The second reading of an ISO stamp in the hour that DST repeats; None where there is only one."""
        if not _ISO.fullmatch(text) or len(text) != 19:
            return None
        when = datetime.fromisoformat(text)
        first, second = self._epoch(when), self._epoch(when.replace(fold=1))
        return second if second > first else None


def elapsed(text: str) -> float | None:
    """Seconds of D-HH:MM:SS, HH:MM:SS, MM:SS, MM:SS.mmm, or plain seconds (the Raw fields)."""
    clock = _CLOCK.get(text[-6:])
    if clock is not None:
        days, dash, hours = text[:-6].rpartition("-")
        if hours.isdecimal() and len(text) < MAX_DIGITS and (days.isdecimal() if dash else not days):
            return int(days or 0) * 86400 + int(hours) * 3600 + clock
    if text.isdigit():
        return whole(text)
    match = _ELAPSED.fullmatch(text)
    if match:
        days, hours, minutes, seconds, fraction = match.groups()
        total = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes)) * 60 + int(seconds)
        return total + float(fraction) if fraction else total
    if is_no_value(text):
        return None
    raise ValueError(f"{text!r} is not a duration ([D-][HH:]MM:SS)")


def limit_minutes(text: str) -> int | None:
    """Minutes of Timelimit (D-HH:MM:SS) or TimelimitRaw (minutes); None for UNLIMITED, Partition_Limit and the like."""
    if text.isdigit():
        return whole(text)
    seconds = elapsed(text)
    return None if seconds is None else int(seconds // 60)


class Memory(NamedTuple):
    """Memory in MiB and what it is per: "c" CPU, "n" node (before 21.08), "" the job."""

    mib: float
    per: str


def memory(text: str) -> Memory | None:
    """`4000Mn`, `1.5G`, `0c`, `3080K`, `125G`, `1048576` (bytes). None for words. Raises ValueError."""
    match = _MEMORY.fullmatch(text)
    if not match:
        if is_no_value(text):
            return None
        raise ValueError(f"{text!r} is not an amount of memory")
    number, unit, per = match.groups()
    mib = float(number) * _FACTOR[unit.upper()]
    if mib > _MOST_MIB:
        raise ValueError(f"{text!r} is more memory than any job has")
    return Memory(mib, per.lower().strip("?"))


def exit_code(text: str) -> tuple[int | None, int | None]:
    """`code:signal`; (None, None) where there is none."""
    code, colon, signal = text.partition(":")
    if not colon and is_no_value(text):
        return None, None
    return whole(code), whole(signal) if colon else 0


def state(text: str) -> tuple[str, int | None]:
    """State word and, for `CANCELLED by UID`, the uid. Any word is a state; case and a trailing + are evened out."""
    word, _, rest = text.strip().partition(" ")
    uid = rest.removeprefix("by ").strip()
    return word.rstrip("+").upper(), whole(uid) if uid.isdigit() else None


class Tres(NamedTuple):
    """What matters of a TRES list. gpus is the total, counted once; gpu_type the type most of them have."""

    cpus: int | None = None
    mem_mib: float | None = None
    nodes: int | None = None
    gpus: int | None = None
    gpu_type: str | None = None


def parse_tres(text: str) -> Tres:
    """`cpu=32,gres/gpu:a100=16,gres/gpu=16,mem=125G,node=2` → Tres. Raises ValueError."""
    if is_no_value(text):
        return Tres()
    if not text.isascii():
        raise ValueError(f"{text[:80]!r} is not a TRES list (name=count,…)")
    values: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not a TRES list (name=count,…)")
        values[name.strip()] = value.strip()
    typed = {name[9:]: _count(v) for name, v in values.items() if name.startswith("gres/gpu:")}
    total = _count(values["gres/gpu"]) if "gres/gpu" in values else sum(typed.values()) if typed else None
    mem = memory(values["mem"]) if "mem" in values else None
    return Tres(
        cpus=_count(values["cpu"]) if "cpu" in values else None,
        mem_mib=mem.mib if mem else None,
        nodes=_count(values["node"]) if "node" in values else None,
        gpus=total,
        gpu_type=max(typed, key=lambda t: typed[t]) if typed else None,
    )


def _count(text: str) -> int:
    number = float(text)
    if not 0 <= number < _MOST:
        raise ValueError(f"{text!r} is not a count")
    return int(number)


class JobId(NamedTuple):
    """JobID as Slurm shows it, taken apart. `step` is None for the job's own row; `task` None for the pending rest."""

    job: int
    task: int | None = None
    is_array: bool = False
    het_offset: int | None = None
    step: str | None = None


_JOB_ID = re.compile(r"(\d{1,12})(?:_(\d{1,9}|\[[\d,:%-]+(?:\.\.\.)?\])|\+(\d{1,9}))?(?:\.(.+))?", re.DOTALL)


def job_id(text: str) -> JobId:
    """`123`, `123_4`, `123_[5-9:2%1]`, `123+1`, each with `.step`. Raises ValueError."""
    match = _JOB_ID.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a job id")
    job, task, offset, step = match.groups()
    return JobId(
        int(job),
        int(task) if task and task.isdigit() else None,
        task is not None,
        int(offset) if offset else None,
        step,
    )


def utc(epoch: float) -> str:
    """Epoch seconds as people read them, in UTC."""
    return datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
