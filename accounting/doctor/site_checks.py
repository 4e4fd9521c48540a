"""Doctor's checks of what is ours: settings, published files, history, timers, wrapper, log."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sqlite3
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from slurm_hook import __version__
from slurm_hook.common import bounded
from slurm_hook.common.config import SETTINGS
from slurm_hook.common.errors import SlurmError, SnapshotError
from slurm_hook.common.terminal import count

from ..evaluation import decisions
from ..history import sqlite_words
from .checks import ANEW, Answer, Check, Host, ago, bad, ok, warn

SCORER_PACKAGES = ("numpy", "scipy", "sqlite_utils", "rich", "hostlist", "prometheus_client", "jinja2")
TIMERS = ("collect", "refresh", "dispatch")
WATCH = "workhorse-dispatch-watch.service"
LEAST_FREE = 500 * 1024 * 1024


def settings(host: Host) -> Answer:
    """Can the settings be used as they stand?"""
    if host.settings_error:
        return bad(host.settings_error, "mend the line named; until then commands refuse to run")
    path = Path(host.settings_path)
    if not path.exists():
        return ok(f"no {path}: all defaults, mode {host.settings.steer.mode}")
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return bad(f"{path} can be written by others than root", f"chown root {path}; chmod 0644 {path}")
    changed = [s.key for s in SETTINGS if host.settings[s.key] != s.default]
    return ok(f"{path}: {len(changed)} of {len(SETTINGS)} changed, mode {host.settings.steer.mode}")


def program(host: Host) -> Answer:
    """Is the installed program whole, with the Python and packages it needs?"""
    have = f"workhorse {__version__}, Python {platform.python_version()}"
    absent = [name for name in SCORER_PACKAGES if importlib.util.find_spec(name) is None] if host.role != "login" else []
    if absent:
        return bad(f"{have}; missing packages: {', '.join(absent)}", "run install.sh --role controller again")
    if host.role != "login" and sys.version_info < (3, 11):
        return bad(f"{have}: the scorer needs 3.11", "run install.sh --role controller --python PATH")
    lost = [path for path in _manifest(host) if not os.path.lexists(path)]
    if lost:
        return bad(f"{have}; installed files are gone: {', '.join(lost[:3])}", "run install.sh again: it puts them back")
    both = ", where people submit, too," if host.submits and host.role == "controller" else ""
    return ok(f"{have}, {host.role}{both}{' at ' + host.prefix if host.prefix else ''}")


def _manifest(host: Host) -> list[str]:
    path = Path(host.prefix) / "manifest"
    return path.read_text(encoding="utf-8").split("\n")[:-1] if host.prefix and path.is_file() else []


def switch(host: Host) -> Answer:
    """Is it switched off somewhere?"""
    off = Path(host.config_folder) / "disable"
    if off.exists():
        return warn(f"{off} exists: nothing is steered", f"workhorse enable, when it shall go on (it removes {off})")
    if os.environ.get("WORKHORSE_MODE") == "off":
        return warn("WORKHORSE_MODE=off in this environment", "unset it")
    mode = host.settings.steer.mode
    return ok(f"mode {mode}" + (": it looks and logs, and changes no job" if mode == "observe" else ""))


def scores(host: Host) -> Answer:
    """Are there scores, of the nodes that exist, and young enough to be used?"""
    found = host.scores
    age, limit = found.age(host.now), host.settings.steer.max_age_hours * 3600
    text = f"{len(found.nodes)} nodes, {ago(age)} old, by method {found.method}"
    again = f"see {host.logged('refresh')} on the controller, then {host.by_hand('refresh')}"
    if found.created > host.now + 300:
        return bad(f"{text}: made in the future", "set the clocks right (check clock)")
    if age > limit:
        return bad(f"{text}: over [steer] max_age_hours, so submissions pass through", again)
    own = [n for n in found.nodes.values() if n.capability is not None]
    if age > 36 * 3600:
        return warn(f"{text}: a nightly run was missed", again)
    if not own:
        return warn(
            f"{text}: none has a capability of its own yet", f"let it collect longer, or {host.by_hand('collect -S now-90days')}"
        )
    strangers = _strangers(host, set(found.nodes))
    if strangers:
        return warn(f"{text}; not in Slurm's configuration any more: {strangers}", again)
    return ok(f"{text}, {len(own)} with a capability of their own, {count(sum(n.lemon for n in own), 'lemon')}")


def _strangers(host: Host, names: set[str]) -> str:
    """Published nodes that Slurm doesn't know, the first of them and how many; empty if all are known."""
    listing = host.slurm("sinfo", "-h", "-N", "-o", "%N")
    gone = sorted(names - set(listing.split()))
    return "" if not gone else ", ".join(gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")


def dispatcher(host: Host) -> Answer:
    """Is dispatch alive? Without it nothing is confined to a pool."""
    mode, limit = host.settings.steer.mode, host.settings.steer.live_max_age
    look = f"on the controller: see {host.logged('dispatch')}, and {host.by_hand('dispatch')}; until then collect stands in"
    problem = bad if mode == "steer" else warn
    if mode not in ("avoid", "steer"):
        return ok(f"not needed in mode {mode}: it works in avoid and steer")
    try:
        age = host.live.age(host.now)
    except SnapshotError as err:
        return problem(f"{err}; mode steer acts as avoid", look)
    if age > limit:
        return problem(f"last pass {ago(age)} ago (limit {limit:g} s); mode steer acts as avoid", look)
    return ok(f"last pass {ago(age)} ago")


FALLBACKS = {
    "dispatch": "dispatch not heard of",
    "waiting": "a job waited in the partition",
    "nodes": "too few nodes free",
    "partition": "the partition or its topology",
    "job": "what the job asks for",
    "comment": "a comment of its own",
}


def steering(host: Host) -> Answer:
    """How often did mode steer draw a pool, and why not?"""
    mode = host.settings.steer.mode
    if mode not in ("steer", "observe"):
        return ok(f"no pools are drawn in mode {mode}")
    lines = list(decisions.read(decisions.source(), host.now - 7 * 86400, host.now))
    found = Counter(filter(None, map(decisions.fallback, lines)))
    drawn = sum(line.get("action") == "steer" and decisions.route(line) != "dispatch" for line in lines)
    why = ", ".join(f"{times} {FALLBACKS.get(label, label)}" for label, times in found.most_common())
    text = f"{count(drawn, 'pool')} drawn in 7 days, {count(found.total(), 'decision')} as in mode avoid" + (
        f": {why}" if why else ""
    )
    if found.total() < 20 or drawn > found.total() / 20:
        return ok(text)
    if found.most_common(1)[0][0] == "dispatch":
        return warn(text, "see check dispatcher")
    mend = (
        "`squeue -t PD -S -p` shows who waits, `workhorse plan` why for one call; on a machine that is always full this is right"
    )
    return warn(text, mend)


def writers(host: Host) -> Answer:
    """Who can write the published files, or put others in their place?"""
    folder = Path(host.settings.publish.path)
    if not folder.is_dir():
        return bad(f"{folder} doesn't exist", "run install.sh on the controller, or mount the shared file system")
    for path in (*_files(folder), folder, *folder.parents):
        status = path.stat()
        shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and path != folder
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not shared:
            return bad(f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})", f"chmod go-w {path}")
        if status.st_uid not in (*host.trusted_uids, 0):
            owner = f"belongs to uid {status.st_uid}, which is neither root nor {host.service_user}"
            return bad(f"{path} {owner}", f"chown {host.service_user} {path}")
    return ok(f"{folder}: only {' and '.join(dict.fromkeys(['root', host.service_user]))}")


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if not path.name.startswith("."))


def history(host: Host) -> Answer:
    """Is the database there, private and sound?"""
    path = Path(host.settings.history.path)
    if not path.exists():
        return bad(f"{path} doesn't exist", host.by_hand("collect"))
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return bad(f"{path} has mode {mode:04o}: others' job names can be read", f"chmod 0600 {path}")
    with _database(path) as db:
        damage = _damage(db)
        if damage:
            return bad(f"{path}: {damage}", ANEW)
        attempts = db.execute("SELECT count(*) FROM attempts").fetchone()[0]
        rejects = db.execute("SELECT count(*) FROM rejects").fetchone()[0]
    text = f"{path}: {count(attempts, 'attempt')}, {path.stat().st_size / 1e6:.1f} MB"
    if attempts == 0:
        return warn(f"{text}: nothing collected yet", host.by_hand("collect"))
    if rejects > 0.01 * attempts:
        return warn(f"{text}, {count(rejects, 'row')} set aside", f"{host.by_hand('db rejects')} has the reasons")
    return ok(f"{text}, {count(rejects, 'row')} set aside")


def _damage(db: sqlite3.Connection) -> str:
    """What is wrong inside the database; empty if nothing is. Raises sqlite3.DatabaseError where it can't be read."""
    said = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    orphans = db.execute("PRAGMA foreign_key_check").fetchone()
    if said != "ok":
        return f"damaged ({said})"
    return f"rows of {orphans[0]} refer to nothing" if orphans else ""


class _database:
    """The history, opened so that nothing is changed or created. A damaged file reads as a failed check."""

    def __init__(self, path: Path) -> None:
        if not os.access(path, os.R_OK):
            raise PermissionError(13, "not readable", str(path))
        self._connection = sqlite_words.look_at(str(path))

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def collected(host: Host) -> Answer:
    """Is accounting read regularly?"""
    path = Path(host.settings.history.path)
    if not path.exists():
        return bad(f"{path} doesn't exist", host.by_hand("collect"))
    with _database(path) as db:
        rows = db.execute("SELECT name, high_water FROM clusters WHERE high_water IS NOT NULL").fetchall()
        dumped = db.execute("SELECT EXISTS (SELECT 1 FROM attempts)").fetchone()[0]
    look = f"see {host.logged('collect')}; a run by hand: {host.by_hand('collect')}"
    if not rows:
        if dumped:
            return warn("the history is of dumps (collect --file); no run against Slurm yet", "run `workhorse collect` regularly")
        return warn("no run has finished yet", look)
    name, mark = min(_still_read(host, rows), key=lambda row: row[1])
    age = host.now - mark
    ahead = max(marked for _, marked in rows) - host.now
    if ahead > 300:
        mend = "set the clock right (check clock) and run `workhorse collect`: it takes the mark back and reads again"
        return bad(f"accounting is said to be read up to {ago(ahead)} in the future", mend)
    text = f"cluster {name} is read up to {ago(max(age, 0))} ago"
    if age > 86400:
        return bad(text, look)
    return warn(text, look) if age > 1800 else ok(text)


def _still_read(host: Host, rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Clusters (name, read up to) that somebody still collects: this one, and others that were in the last week. One that was
    read once by -M, or had another name before, is no fault."""
    if len(rows) == 1:
        return rows
    try:
        here = host.slurm_conf.get("clustername", "")
    except SlurmError:
        here = ""
    return [row for row in rows if row[0] == here or host.now - row[1] < 7 * 86400] or rows


def timers(host: Host) -> Answer:
    """Are the three regular runs switched on, and did they end well?"""
    cron = Path("/etc/cron.d/workhorse")
    if not host.has_systemd:
        if cron.is_file():
            return ok(f"{cron}")
        return warn("neither systemd timers nor cron run collect, refresh and dispatch", "run install.sh --role controller again")
    if cron.is_file():
        return ok(f"{cron}")
    watches = _systemctl("is-active", WATCH) == "active"  # dispatch as a service that goes on (install.sh --watch)
    names = tuple(name for name in TIMERS if not (watches and name == "dispatch"))
    idle = [name for name in names if _systemctl("is-active", f"workhorse-{name}.timer") != "active"]
    if idle:
        units = " ".join(f"workhorse-{name}.timer" for name in idle)
        return bad(f"not switched on: {units}", f"systemctl enable --now {units}")
    failed = [name for name in names if _systemctl("is-failed", f"workhorse-{name}.service") == "failed"]
    if failed:
        return warn(f"the last run failed: {', '.join(failed)}", f"journalctl -u workhorse-{failed[0]} -n 20")
    return ok(f"{' and '.join(names)} run by systemd timers" + ("" if "dispatch" in names else ", dispatch as a service"))


def _systemctl(*words: str) -> str:
    argv = ["systemctl", *words]
    try:
        _, out, _ = bounded.run(argv, 10)
    except (OSError, bounded.Expired):
        return ""
    return out.decode("utf-8", "replace").strip()


def wrapper(host: Host) -> Answer:
    """Is our sbatch the first in PATH, and does it lead to a real one?"""
    found = list(_in_path("sbatch"))
    ours = [path for path in found if is_wrapper(path)]
    real = [path for path in found if not is_wrapper(path)]
    if not real:
        return bad("no sbatch in PATH but ours", "install Slurm's commands, or put them into PATH")
    if not ours and (host.submits or host.role == "login"):
        mend = f"log in anew, or put {host.prefix}/bin first in PATH" if host.prefix else "run install.sh --role login here"
        return warn(f"not in PATH; sbatch is {real[0]}", mend)
    if not ours:
        return ok("not in PATH here (jobs may still come by Lua plugin or from login nodes)")
    if found[0] != ours[0]:
        return warn(f"{found[0]} comes before {ours[0]}", f"put {os.path.dirname(ours[0])} first in PATH")
    wrong = _says_otherwise(ours[0], real[0])
    return bad(wrong, "take it out of PATH and run install.sh again") if wrong else ok(f"{ours[0]}, before {real[0]}")


def _says_otherwise(ours: str, real: str) -> str:
    """What differs between `--version` of the two; empty if nothing does."""
    try:
        said = [bounded.run([path, "--version"], 10)[:2] for path in (ours, real)]
    except bounded.Expired:
        return f"{ours} --version or {real} --version: no answer within 10 s"
    except OSError as err:
        return f"{ours} --version: {err}"
    if said[0] != said[1]:
        return f"{ours} --version says something else than {real}"
    return ""


def _in_path(name: str) -> Iterator[str]:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            yield path


def is_wrapper(path: str) -> bool:
    """Is this file our sbatch?"""
    with open(path, "rb") as file:
        return b"sbatch of slurm-workhorse" in file.read(300)


def routes(host: Host) -> Answer:
    """By which route did jobs come these seven days, and how many of those that match by none?"""
    since = host.now - 7 * 86400
    source = decisions.source()
    found = Counter(decisions.route(line) for line in decisions.read(source, since, host.now))
    if source is None:
        return Answer(3, "no log of decisions can be read here", decisions.HOW_TO_KEEP)
    by = ", ".join(f"{count} by {name}" for name, count in found.most_common()) or "none"
    matching = _matching_jobs(host, since)
    total = sum(found[name] for name in decisions.ROUTES if name != "dispatch")  # what that does to jobs is no way in
    if matching is None:
        return ok(f"decisions of the last 7 days: {by}")
    share = min(1.0, total / matching) if matching else 1.0
    text = f"{count(matching, 'job')} on at least [match] min_nodes in 7 days; decisions here: {by}"
    text += f" ({share:.0%})" if matching else ""
    if matching >= 20 and share < 0.5:
        mend = "login nodes log on their own hosts unless syslog is forwarded; jobs by API or portal need the job_submit plugin"
        return warn(text, mend)
    return ok(text)


def _matching_jobs(host: Host, since: float) -> int | None:
    path = Path(host.settings.history.path)
    if host.role == "login" or not path.exists():
        return None
    with _database(path) as db:
        sql = "SELECT count(DISTINCT job_id) FROM attempts WHERE submit >= ? AND nnodes >= ?"
        return int(db.execute(sql, (int(since), host.settings.match.min_nodes)).fetchone()[0])


def time_zone(host: Host) -> Answer:
    """Is the time zone a known one? Accounting is read in epoch seconds, so it matters for display and dumps only."""
    named = os.environ.get("TZ", "").removeprefix(":")
    offset = time.strftime("%z", time.localtime(host.now))
    if re.fullmatch(r"[A-Z][A-Za-z_+-]+(/[A-Za-z_+-]+)*", named) and not (Path("/usr/share/zoneinfo") / named).exists():
        return warn(f"TZ={named} isn't a known zone: times are shown in UTC", "set TZ to a name below /usr/share/zoneinfo")
    return ok(f"{time.strftime('%Z', time.localtime(host.now))} ({offset})")


def log(host: Host) -> Answer:
    """Is there a syslog for the decisions, and can they be read back?"""
    if not os.path.exists("/dev/log"):
        return warn("/dev/log is missing: decisions are logged nowhere", "run rsyslog or systemd-journald")
    source = decisions.source()
    if source is None:
        return warn("decisions are logged but can't be read back here", decisions.HOW_TO_KEEP)
    return ok(f"decisions are read from {source}")


def disk(host: Host) -> Answer:
    """Is there room to go on?"""
    names = [host.settings.publish.path] + ([os.path.dirname(host.settings.history.path) or "."] if host.role != "login" else [])
    for name in names:
        if not os.path.isdir(name):
            continue
        usage = shutil.disk_usage(name)
        if usage.free < LEAST_FREE:
            text = f"{usage.free / 1e6:.0f} MB free below {name}"
            return bad(text, "make room, or lower [history] keep_days and run `workhorse db vacuum`")
    return ok("enough room below " + " and ".join(dict.fromkeys(names)))


CHECKS = (
    Check("settings", "the settings file is valid and only root's to write", settings),
    Check("program", "the installed program is whole, Python and packages fit", program),
    Check("switch", "it isn't switched off", switch),
    Check("scores", "scores are published, of today's nodes, and young enough", scores),
    Check("dispatcher", "dispatch makes its passes", dispatcher),
    Check("steering", "mode steer draws pools, or why it can't", steering),
    Check("writers", "nobody else can write the published files", writers),
    Check("history", "the database is there, private and sound", history, ("controller", "checkout")),
    Check("collected", "accounting is read regularly", collected, ("controller", "checkout")),
    Check("timers", "collect, refresh and dispatch run by themselves", timers, ("controller",)),
    Check("wrapper", "our sbatch is the first in PATH and leads to the real one", wrapper),
    Check("log", "decisions are logged and can be read back", log),
    Check("routes", "which share of jobs came by which route", routes),
    Check("time-zone", "the time zone is a known one", time_zone),
    Check("disk", "there is room to go on", disk),
)
