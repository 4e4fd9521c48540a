"""Node events: sacctmgr, imports and marks → `node_events`. The only place that runs sacctmgr."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from slurm_hook.common.errors import ConfigError

from . import converters, sacct
from .records import Reject

KINDS = ("down", "drain", "repaired", "bad", "ignore")
CLASSES = ("hardware", "user", "planned", "repaired")
_FORMAT = "Cluster,NodeName,TimeStart,TimeEnd,State,User,Reason"  # free text last: sacctmgr has no delimiter option
_STAMP = r"(?:\d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|Unknown|None|)"
_START = re.compile(rf"^([^|\n]*)\|([^|\n]*)\|({_STAMP})\|({_STAMP})\|([A-Z_+*~#$!%@^-]*)\|", re.MULTILINE)


class Event(NamedTuple):
    """Something said of a node. end None: still so."""

    node: str
    kind: str
    start: int
    end: int | None
    state: str
    reason: str
    reason_class: str
    who: str
    source: str


class Reasons:
    """Classes of reasons by [events.reasons]: the first class whose expression is found. Raises ConfigError."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = []
        for name, pattern in patterns.items():
            if name not in CLASSES:
                raise ConfigError(f"events.reasons: unknown class {name}; valid ones: {', '.join(CLASSES)}")
            if not isinstance(pattern, str):
                raise ConfigError(f"events.reasons.{name} = {pattern!r}: must be a regular expression in quotes")
            try:
                self._patterns.append((name, re.compile(pattern, re.IGNORECASE)))
            except re.error as err:
                raise ConfigError(f"events.reasons.{name}: not a regular expression ({err})") from None

    def __call__(self, reason: str) -> str:
        return next((name for name, pattern in self._patterns if pattern.search(reason)), "unknown")


def kind_of(state: str) -> str | None:
    """down, drain or None for states that say nothing of a node (its first registration, planned, powered down)."""
    if state.startswith(("DOWN", "FAIL", "ERROR")):
        return "down"
    return "drain" if "DRAIN" in state else None


def parse(text: str, times: converters.Times, classify: Reasons, *, user_last: bool = False) -> Iterator[Event]:
    """Output of `sacctmgr -P list event` → events. A reason may hold bars and line breaks: a row ends where the next begins.

    user_last: the order that sacctmgr has by itself (reason, user) instead of ours (user, reason).
    """
    starts = list(_START.finditer(text))
    for match, following in zip(starts, [*starts[1:], None]):
        _, node, begin, finish, state = match.groups()
        rest = text[match.end() : following.start() if following else len(text)].removesuffix("\n")
        reason, _, who = rest.rpartition("|") if user_last else rest.partition("|")[::-1]
        kind, start = kind_of(state), times[begin]
        if node and kind and start is not None:
            yield Event(node, kind, start, times[finish], state, reason, classify(reason), who, "slurmdbd")


def is_list(text: str) -> bool:
    """Does any line look like one of sacctmgr's?"""
    return _START.search(text) is not None


def read(start: int, timeout: float, classify: Reasons, cluster: str) -> list[Event]:
    """Events of a cluster that were not over before `start`. Raises SlurmError."""
    argv = ["sacctmgr", "--noheader", "--parsable2", "list", "event", f"cluster={cluster}", f"start=uts{start}",
            f"format={_FORMAT}"]  # fmt: skip
    return list(parse(sacct.run(argv, timeout), converters.Times(), classify))


def parse_import(
    lines: Iterable[str], classify: Reasons, reject: Callable[[Reject], None], known: Container[str] | None = None
) -> Iterator[Event]:
    """Lines of JSON objects with node, time (epoch or ISO with zone), kind, source and perhaps end, reason → events.

    known: the cluster's nodes; a line about another is rejected, as it is mistyped or of another cluster.

    A kind other than down, drain, repaired, bad, ignore is a report of that kind ("xid 79", "ticket 4711").
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = _imported(json.loads(line), classify)
            if known is not None and event.node not in known:
                raise ValueError(f"node {event.node} is not in the history of this cluster")
            yield event
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as err:
            why = f"no {err}" if isinstance(err, KeyError) else str(err)
            reject(Reject(f"import line {number}: {why}", line.strip()))


def _imported(item: Mapping[str, object], classify: Reasons) -> Event:
    if not isinstance(item, dict):
        raise ValueError("not an object")
    node, kind, source = (str("" if item[k] is None else item[k]).strip() for k in ("node", "kind", "source"))
    if not node or not re.fullmatch(r"[\w.-]+", node, re.ASCII):
        raise ValueError(f"{node!r} is not a node name")
    if not kind or not source:
        raise ValueError(f"no {'source' if kind else 'kind'}")
    start, end = when(item["time"]), None if item.get("end") is None else when(item["end"])
    if end is not None and end < start:
        raise ValueError("its end is before its time")
    reason = str(item.get("reason") or "")
    if kind not in KINDS:
        kind, reason, end = "report", f"{kind}: {reason}" if reason else kind, end or start
    return Event(node, kind, start, end, "", reason, classify(reason), str(item.get("who") or ""), source)


def when(value: object) -> int:
    """Epoch seconds of a number or an ISO time with zone. Raises ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _bounded(float(value))
    found = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError(f"time {value!r} has no zone; write 2026-01-31T12:00:00Z")
    return _bounded(found.timestamp())


def _bounded(epoch: float) -> int:
    if not 0 < epoch < converters.LAST_TIME:
        raise ValueError(f"{epoch!r} is not a time between 1970 and 2286")
    return int(epoch)
