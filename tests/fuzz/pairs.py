"""Runs pairs, many at a time, and makes what differs small."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import records
from tests.fuzz.allowed import Difference, differences
from tests.fuzz.call import Call
from tests.fuzz.running import OURS, Caller, Outcome, end, sessions
from tests.fuzz.sites import Sites
from tests.sandbox.client import Client
from tests.wrapped import REAL

SHRINKING = 20  # seconds at most
GRACE = 4.0  # seconds in which what a call has left running must end


@dataclass(frozen=True)
class Found:
    """A pair that differs; again: how often it did when it was repeated three times."""

    call: Call
    differences: tuple[Difference, ...]
    again: int = 0


class Pairs:
    """Runs pairs in one folder, as one thread."""

    def __init__(self, sandbox: Client, sites: Sites, folder: Path) -> None:
        self.sandbox, self.sites, self.caller = sandbox, sites, Caller(sandbox, folder)
        self.jobs = self.ours = 0
        self._job, self._last = False, 0

    def compare(self, calls: Sequence[Call]) -> list[list[Difference]]:
        """What differs of each of these calls."""
        outcomes = [(self.caller.run(call, REAL, killed=False), self.caller.run(call, self._shim(call))) for call in calls]
        flat = [outcome for pair in outcomes for outcome in pair]
        self._living([ours for _, ours in outcomes])
        running = {o.session for call, pair in zip(calls, outcomes) if call.runs for o in pair}
        self._last = records.fill(self.sandbox, flat, running, self._last)
        records.cancel(self.sandbox, flat)
        self.jobs += sum(bool(plain.jobs) for plain, _ in outcomes)
        self.ours += sum(_touched(*pair) for pair in outcomes)
        self._job = bool(outcomes[-1][0].jobs)
        return [differences(call, *pair, self._shim(call)) for call, pair in zip(calls, outcomes)]

    def _shim(self, call: Call) -> str:
        return str(self.sites.get(call.site).sbatch)

    def _living(self, outcomes: Sequence[Outcome]) -> None:
        until = time.monotonic() + GRACE
        while True:
            now = sessions()
            for outcome in outcomes:
                left = [name for _, name in now.get(outcome.session, []) if name in OURS]
                outcome.living = tuple(sorted(left))
            if not any(outcome.living for outcome in outcomes) or time.monotonic() > until:
                break
            time.sleep(0.05)
        for outcome in outcomes:
            if outcome.living:
                end(outcome.session)

    def shrunk(self, call: Call, found: list[Difference]) -> Found:
        """The call with all parts left out without which it differs in one of the same ways (and still makes a job if it did)."""
        kinds = {what for what, _, _ in found}
        self.compare([call])
        job, place = self._job, 0
        until = time.monotonic() + SHRINKING
        while place < len(call.parts) and time.monotonic() < until:
            smaller = call.without(place)
            still = [d for d in self.compare([smaller])[0] if d[0] in kinds]
            if still and self._job >= job:
                call, found = smaller, still
            else:
                place += 1
        again = sum(bool(each) for each in self.compare([call] * 3))
        return Found(call, tuple(found), again)


def _touched(plain: Outcome, ours: Outcome) -> bool:
    return any(b.get("ExcNodeList") != a.get("ExcNodeList") for b, a in zip(plain.jobs, ours.jobs))
