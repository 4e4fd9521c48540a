"""A dispatcher that goes on: passes until it is ended, what it does last, and who acts where it can't any more.

Three nets, each for what slips through the one before: its own last act at an orderly end; a guard where it just dies or
hangs; and `workhorse collect`, which stands in with a pass of its own as long as no dispatcher is heard of.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress

from ..common import config
from ..common.config import STEERING
from ..common.errors import BusyError, ConfigError, SlurmError, SnapshotError
from ..common.installed import disabled
from ..common.record import TYPE_CHECKING
from ..published import decision_log, snapshot
from ..slurm import commands, jobs
from . import guard, tracking, updates
from .passes import BRIEFLY, LOCK_WAIT, Report, lock, locked_pass, one_pass, release, set_excludes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..common.config import Settings

SILENCE = guard.SILENCE  # seconds without a sign of life after which a dispatcher is taken for hanging
GRACE = 15.0  # seconds, at most, in which another dispatcher may take over from one that died
LAST_LOOK = 2.5  # seconds after which no submission is left that had still seen live.json


def watch(settings: Settings, tell: object = None) -> None:
    """A pass each period until SIGTERM or SIGINT; then confined jobs are widened, since nobody will do it later.

    Slurm not answering ends a pass, not the watch. A guard does the same and more where this process just dies or hangs.
    Each pass goes by the settings as they are then.
    """
    stop, path = threading.Event(), settings["dispatch.state"]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with _guarded(settings, lambda: _relieve(settings)) as pulse, lock(path, wait=BRIEFLY):
        while not stop.is_set():
            begun = time.monotonic()
            settings = reread(settings)
            _watched_pass(settings, tell)
            _rest(stop, begun + settings["dispatch.period"], pulse)
        _end(settings)


def guarded_pass(settings: Settings) -> Report:
    """One pass, as `one_pass`; one that hangs is ended, so that it doesn't keep the next ones from working."""
    with _guarded(settings, None):
        return one_pass(settings)


@contextmanager
def _guarded(settings: Settings, relieve: Callable[[], None] | None) -> Iterator[guard.Pulse]:
    """Under a guard, which hears of each Slurm command that ends."""
    path, grace = settings["dispatch.state"], min(GRACE, settings["dispatch.period"] / 2)
    duty = guard.Duty(path + ".lock", grace, relieve, lambda: _look(settings), _widen_by_marks)
    with guard.posted(duty, SILENCE) as pulse, commands.heard(pulse.beat):
        yield pulse


def _rest(stop: threading.Event, until: float, pulse: guard.Pulse) -> None:
    while not stop.is_set() and time.monotonic() < until:
        pulse.beat()
        stop.wait(max(0.0, min(pulse.pause, until - time.monotonic())))


def reread(settings: Settings) -> Settings:
    """The settings as their file says now; as they were, and said so, where it can't be read. Its own files stay where the
    lock and the guard know them."""
    if not settings.source or not os.path.exists(settings.source):
        return settings
    try:
        now = config.load(settings.source)
    except ConfigError as err:
        print(f"workhorse dispatch: {err}; going on with the settings of before", file=sys.stderr, flush=True)
        return settings
    kept = {key.replace(".", "__"): settings[key] for key in ("dispatch.state", "publish.path")}
    return now.replace(**kept)


def _end(settings: Settings) -> None:
    """Submissions confine nobody from now on, and whom they or we confined is widened."""
    _unpublish(settings)
    try:
        with lock(settings["dispatch.state"], ".pass.lock", LOCK_WAIT):
            widen_all(settings)
            time.sleep(LAST_LOOK)
            widen_all(settings)
    except BusyError as err:  # the guard would take that for a successor at work, and not try any more
        raise SlurmError(str(err)) from err


def _relieve(settings: Settings) -> None:
    """What the guard does for a dispatcher that died: excludes that nobody brings up to date must not stay."""
    _unpublish(settings)
    release(settings, by="guard")


def _look(settings: Settings) -> None:
    """Touches what `_relieve` needs."""
    guard.taken(settings["dispatch.state"] + ".lock")
    tracking.read_state(settings["dispatch.state"])
    os.path.exists(os.path.join(settings["publish.path"], snapshot.LIVE_NAME))


def _widen_by_marks() -> None:
    """What the guard does while the state's file system doesn't answer: the marks tell whose excludes are whose, but for
    jobs that were marked before anything was decided. No lock: who could change jobs waits for the same files."""
    for update in updates.releases(jobs.load(), {}):
        done, _ = set_excludes(update.job, update.excludes)
        if done:
            decision_log.send(decision_log.event("guard", "release", update.job.id))


def _unpublish(settings: Settings) -> None:
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(settings["publish.path"], snapshot.LIVE_NAME))


def _watched_pass(settings: Settings, tell: object) -> None:
    try:
        report = locked_pass(settings, time.time())
    except (BusyError, SlurmError, SnapshotError) as err:  # busy: somebody else changes jobs for long, and may hang
        print(f"workhorse dispatch: {err}", file=sys.stderr, flush=True)
        return
    if callable(tell):
        tell(report)


def widen_all(settings: Settings) -> None:
    """Take confined jobs out of their pools, down to the user's own excludes: the last act of a dispatcher that ends."""
    state = tracking.read_state(settings["dispatch.state"])
    tracked, found = dict(state.tracked), []
    for job in jobs.load():
        known = tracking.adopt(job, tracked.get(job.id)) if tracking.concerns(job) else tracked.get(job.id)
        if job.pending and known is not None and known.confined and not known.hands_off:
            found.append((job, known))
    for job, known in found:
        done, _ = set_excludes(job, known.user)
        if done:
            decision_log.send(decision_log.event("dispatch", "release", job.id))
        tracked[job.id] = known._replace(confined=0.0, ours="", before=known.ours)
    if found:
        tracking.write_state(settings["dispatch.state"], state._replace(tracked=tracked, fingerprint=""))


def stand_in(settings: Settings, now: float | None = None) -> Report | None:
    """A pass in place of a dispatcher that isn't heard of: it widens and refreshes, confines nobody and isn't heard of itself.

    None where there is nothing to stand in for: one works, or the mode doesn't steer. Raises as `one_pass`, but for
    BusyError.
    """
    now, path = time.time() if now is None else now, settings["dispatch.state"]
    if settings["steer.mode"] not in STEERING or disabled(settings) or _heard_of(settings, now):
        return None
    if not os.access(os.path.dirname(path) or ".", os.W_OK):
        return None
    try:
        with lock(path):
            return locked_pass(settings.replace(steer__mode="avoid"), now, publish=False)
    except BusyError:
        return None


def _heard_of(settings: Settings, now: float) -> bool:
    """Each pass writes the state file."""
    try:
        last = os.stat(settings["dispatch.state"]).st_mtime
    except OSError:
        return False
    return abs(now - last) <= max(settings["steer.live_max_age"], 3 * settings["dispatch.period"])
