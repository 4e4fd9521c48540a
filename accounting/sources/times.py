"""Times as sacct's -S and -E take them, and zones of dumps."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from slurm_hook.common.errors import UsageError

from .converters import LAST_TIME, Times

HOUR = 3600
DAY = 86_400
SECONDS_DIGITS = (
    9  # plain digits are epoch seconds (from 1973 on); fewer are a date to sacct (MMDD[YY]), and to people (YYYYMMDD)
)
_UNITS = {"second": 1, "minute": 60, "hour": HOUR, "day": DAY, "week": 7 * DAY}
_NOW = re.compile(r"(?a)now(?:([+-])(\d{1,12})(second|minute|hour|day|week)s?)?")
_FORMATS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d")


def parse_when(text: str, now: int) -> int:
    """now, now-90days, today, midnight, 2026-01-31[T12:00[:00]], uts1795958909 → epoch seconds. Raises UsageError."""
    try:
        found = _parsed(text.strip(), now)
    except (ValueError, OverflowError, OSError):
        found = None
    if found is None:
        raise UsageError(f"{text!r} is not a time; write now-90days, 2026-01-31, 2026-01-31T12:00:00 or uts1795958909")
    if not 0 < found < LAST_TIME:
        raise UsageError(f"{text!r} is not a time between 1970 and 2286")
    return found


def past(text: str, now: int, option: str) -> int:
    """The same for what can't be known before it happens. Raises UsageError for a time later than now."""
    when = parse_when(text, now)
    if when > now:
        raise UsageError(f"{option} {text}: lies in the future")
    return when


def _parsed(word: str, now: int) -> int | None:
    match = _NOW.fullmatch(word)
    if match:
        sign, count, unit = match.groups()
        return now + (int(count) * _UNITS[unit] * (-1 if sign == "-" else 1) if sign else 0)
    if word in ("today", "midnight", "yesterday", "tomorrow"):
        day = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
        shift = {"yesterday": -1, "tomorrow": 1}.get(word, 0)
        return int((day + timedelta(days=shift)).timestamp())
    if word.removeprefix("uts").isdecimal() and len(word) <= 15 and (word.startswith("uts") or len(word) >= SECONDS_DIGITS):
        return int(word.removeprefix("uts"))
    for form in _FORMATS:
        try:
            return int(datetime.strptime(word, form).timestamp())
        except (ValueError, OverflowError):
            continue
    return None


def zone(name: str | None) -> Times:
    """Reader of ISO times in a named zone (None: this machine's). Raises UsageError."""
    if not name:
        return Times()
    try:
        return Times(ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"--timezone {name!r}: unknown; write a name such as Europe/Berlin or UTC") from None
