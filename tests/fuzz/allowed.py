# ruff: noqa: E501 - tables
"""Two outcomes of one call compared, and what may differ. README has the same list in a few words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_hook.common import hostlist
from slurm_hook.common.errors import WorkhorseError
from slurm_hook.published import mark
from tests.fuzz.call import Call
from tests.fuzz.probe import Probe
from tests.fuzz.running import Outcome
from tests.fuzz.sites import SITES
from tests.wrapped import REAL

SLOWER = 5.0  # seconds: the two that are promised, and what a busy machine adds
Difference = tuple[str, object, object]  # what, plain, through us


class Allowed(NamedTuple):
    """A difference by its name (a pattern) that is explained where `holds` says so of the call and both values."""

    what: str
    why: str
    holds: Callable[[Call, Any, Any], bool]


def _changes(call: Call) -> bool:
    return SITES[call.site].changes


def _more_excludes(call: Call, plain: str, ours: str) -> bool:
    return _changes(call) and _names(plain) <= _names(ours)


def _a_mark(call: Call, plain: str, ours: str) -> bool:
    told, asked = mark.parse(ours), mark.parse(plain)
    return _changes(call) and told is not None and told.decided and (not plain or (asked is not None and not asked.decided))


def _pinned(call: Call, plain: str, ours: str) -> bool:
    return call.site == "nodelist" and plain == "(null)" and bool(_names(ours))


def _adds(line: bytes) -> Callable[[Call, Any, Any], bool]:
    return lambda call, plain, ours: isinstance(ours, bytes) and re.sub(line, b"", ours) == plain


def _has(*texts: str) -> Callable[[Call, Any, Any], bool]:
    return lambda call, plain, ours: any(text in part.text for part in call.parts for text in texts)


def _demanded(call: Call, plain: str, ours: str) -> bool:
    texts = (part.text for part in call.parts)
    return _changes(call) and any(("#WORKHORSE" in text and "demand" in text) or "d=100" in text for text in texts)


SAID = "stderr|stdout and stderr, in order"
ALLOWED = (
    Allowed("job ExcNodeList", "modes avoid and steer add nodes to the job's excludes", _more_excludes),
    Allowed("job Comment", "an empty Comment gets our mark, so that dispatch knows the job", _a_mark),
    Allowed("job ReqNodeList", "a site may choose to have nodes pinned instead", _pinned),
    Allowed("job (NumNodes|NumCPUs|NumTasks|TRES)", "a job that says its total demand gets its number of nodes from us", _demanded),
    Allowed(SAID, "where the folder is gone, so that sbatch fails, bash says so before it", _adds(rb"shell-init: .*getcwd.*\n")),
    Allowed(SAID, "bash warns of an SHLVL of 999 and more", _adds(rb"/bin/bash: warning: shell level .*\n")),
    Allowed("the caller's process becomes sbatch", "and waits for room to say so where stderr is full", _has("SHLVL=999", "SHLVL=1001")),
)  # fmt: skip
# not right, and not mended yet: told, but no failure. Who mends one deletes its row
FAULTS: tuple[Allowed, ...] = ()
# lines of `sbatch -v` that print options we may have given
PRINTED = re.compile(rb"(?m)^\S+: (exclude|nodelist|comment|nodes) +: .*\n")
# a script doesn't learn by what name it was called: messages begin with sbatch's own
NAMES = re.compile(rb"(?m)^(?:/usr/bin/|/x/|-)?(?:sbatch|other)?: ")


def differences(call: Call, plain: Outcome, ours: Outcome, sbatch: str) -> list[Difference]:
    """All that differs and isn't allowed."""
    if call.kill and ours.status == -call.kill[0] != plain.status:
        return _ended(call, plain, ours, sbatch)
    found: list[Difference] = []
    told = [(_said(o.out, o, sbatch, call), _said(o.err, o, sbatch, call)) for o in (plain, ours)]
    _add(found, "status", plain.status, ours.status)
    _add(found, "stdout and stderr, in order" if call.merged else "stdout", told[0][0], told[1][0])
    _add(found, "stderr", told[0][1], told[1][1])
    _add(found, "jobs", len(plain.jobs), len(ours.jobs))
    for before, after in zip(plain.jobs, ours.jobs):
        for key in sorted({*before, *after}):
            _add(found, f"job {key}", before.get(key, ""), after.get(key, ""))
    _add(found, "script", [s for s, _ in plain.stored], [s for s, _ in ours.stored])
    if plain.jobs and ours.jobs:
        _add(found, "environment", [_env(e, plain) for _, e in plain.stored], [_env(e, ours, sbatch) for _, e in ours.stored])
    _add(found, "seen by the job", [*map(list, plain.dumped)], [*map(list, ours.dumped)])
    _add(found, "files", plain.files, ours.files)
    if call.probe and plain.probe:
        found += _probes(plain.probe, ours.probe, sbatch)
    return [d for d in found + _always(plain, ours) if not _explained(call, d)]


def _always(plain: Outcome, ours: Outcome) -> list[Difference]:
    """What must not be, whatever plain did."""
    found: list[Difference] = []
    if ours.alive:
        found.append(("goes on though the caller's process was ended", (), ours.alive))
    if ours.living:
        found.append(("lives on", (), ours.living))
    if ours.seconds > plain.seconds + SLOWER:
        found.append(("seconds", round(plain.seconds, 1), round(ours.seconds, 1)))
    return found


def _ended(call: Call, plain: Outcome, ours: Outcome, sbatch: str) -> list[Difference]:
    """Ended by the signal before it was done: it has said no more than the beginning of what it would have said."""
    found: list[Difference] = []
    for what, before, after in (("stdout", plain.out, ours.out), ("stderr", plain.err, ours.err)):
        whole, part = _said(before, plain, sbatch, call), _said(after, ours, sbatch, call)
        if not whole.startswith(part):
            found.append((what + " of one that was ended", whole, part))
    if len(ours.jobs) > len(plain.jobs):
        found.append(("jobs", len(plain.jobs), len(ours.jobs)))
    return found + _always(plain, ours)


def _add(found: list[Difference], what: str, before: object, after: object) -> None:
    if before != after:
        found.append((what, before, after))


def _explained(call: Call, difference: Difference, table: Sequence[Allowed] = ALLOWED) -> bool:
    what, before, after = difference
    return any(re.fullmatch(row.what, what) and row.holds(call, before, after) for row in table)


def known(call: Call, found: Sequence[Difference]) -> bool:
    """All of it is a fault that is known."""
    return all(_explained(call, difference, FAULTS) for difference in found)


def _said(text: bytes, outcome: Outcome, sbatch: str, call: Call) -> bytes:
    """Without what differs between any two calls, and what is printed of our options."""
    text = text.replace(sbatch.encode(), REAL.encode()).replace(b"." * 4096, b"")
    for number in outcome.ids:
        text = re.sub(rb"\b%d\b" % number, b"N", text)
    text = re.sub(rb"\d{4}-\d\d-\d\dT[\d:]+", b"TIME", re.sub(rb"\bJob \d+ to start", b"Job N to start", text))
    text = re.sub(rb"(debug\d*: .*|Submit.*delay.*)\n", b"", text) if b"debug" in text else text
    text = NAMES.sub(b"sbatch: ", text)
    return PRINTED.sub(b"", text) if _changes(call) else text


def _env(stored: bytes, outcome: Outcome, sbatch: str = REAL) -> list[bytes]:
    return sorted(stored[4:].replace(sbatch.encode(), REAL.encode()).split(b"\0"))


def _probes(plain: Probe, ours: Probe | None, sbatch: str) -> list[Difference]:
    if ours is None:
        return [("the caller's process becomes sbatch", True, False)]
    found: list[Difference] = []
    options = ("--exclude=", "--comment=", "--nodelist=", "--nodes=")
    left = [word for word in ours.argv if word in plain.argv or not word.startswith(options)]
    _add(found, "argv", list(plain.argv), left)
    _add(
        found,
        "environment of sbatch",
        list(plain.environment),
        [e.replace(sbatch.encode(), REAL.encode()) for e in ours.environment],
    )
    _add(found, "descriptors", _of(plain.descriptors), _of(ours.descriptors))
    _add(found, "process", plain.status, ours.status)
    _add(found, "limits", plain.limits, ours.limits)
    _add(found, "cwd", plain.cwd, ours.cwd)
    return found


def _of(descriptors: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(descriptors.items()))


def _names(text: str) -> set[str]:
    try:
        return set() if text in ("", "(null)") else set(hostlist.expand(text))
    except WorkhorseError:
        return {text}
