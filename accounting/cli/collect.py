"""`workhorse collect`: accounting → history."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Optional

import click

from slurm_hook.common import progress
from slurm_hook.common.errors import BusyError, InputError, SlurmError, StoreError, UsageError, WorkhorseError
from slurm_hook.common.hostlist import fold
from slurm_hook.common.terminal import count, json_option, one_line, say, tell

from ..history import collect as collecting
from ..history import event_rows, node_rows, source
from ..history.store import Counts, Store, clusters, connect
from ..sources import converters, dump, events, json_dump, node_inventory, times
from ..sources.records import Reject


def database_path(ctx: click.Context, db: str | None) -> str:
    """--db, else [history] path. It is noted, so that an error of SQLite can name the file."""
    if db == "":
        raise UsageError("--db '': an empty path; name the history database")
    path: str = db or ctx.obj.history.path
    ctx.meta["workhorse.history"] = path
    return path


@click.command()
@click.option("-S", "--starttime", help="read from here (backfill), as in sacct: now-90days, 2026-01-31, …")
@click.option("-E", "--endtime", default="now", show_default=True, help="read up to here")
@click.option("-M", "--cluster", help="cluster; default: the one of this configuration")
@click.option("--no-resume", is_flag=True, help="begin an interrupted -S anew instead of going on where it was")
@click.option("--db", type=click.Path(), help="history database; default: [history] path")
@click.option("--file", "dump_path", type=click.Path(), help="read a dump (sacct -p, -P or --json output; - is stdin)")
@click.option("--delimiter", default="|", show_default=True, help="delimiter of the dump")
@click.option("--fields", help="field names of a dump without header, comma-separated")
@click.option("--timezone", help="time zone of ISO times in the dump, such as Europe/Berlin; default: this machine's")
@click.option("--nodes", "nodes_path", type=click.Path(), help="inventory for a dump: a saved `scontrol -o show node`")
@click.option("--events", "events_path", type=click.Path(), help="events for a dump: a saved `sacctmgr -nP list event`")
@json_option
@click.pass_context
def collect(ctx: click.Context, as_json: bool, **options: Any) -> None:
    """Read accounting into the history: what is new since the last run, a stretch of time, or a dump.

    Exit code 3: all is read, but some rows could not be understood; `workhorse db rejects` shows them with the reason.

    \b
    Examples:
      workhorse collect -S now-90days
      workhorse collect --db history.db --file jobs.psv
    """
    try:
        values = run(ctx, options, quiet=as_json)
    except (SlurmError, StoreError, BusyError):
        write_metrics(ctx.obj)  # accounting grows old, and dispatch may be well: both stand in them
        raise
    if as_json:
        tell("", values, as_json=True)
    write_metrics(ctx.obj)
    if values["rejected"]:
        ctx.exit(3)


def run(ctx: click.Context, options: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Collect and say so, or not where it is `quiet`; what was said, as values. `workhorse refresh` calls it too."""
    path = database_path(ctx, options["db"])
    _check_together(options)
    started = time.monotonic()
    dumped = options.get("dump_path") is not None
    if not options.get("dump_path"):
        stand_in(ctx.obj)
    beside, missing = Read(), dict[str, str]()
    with ExitStack() as files:
        # before anything is stored: a mistyped name must cost nothing
        given = read_dump(ctx.obj, options, files) if dumped else None
        db = connect(path)
        files.enter_context(collecting.one_at_a_time(path))
        stores = collecting.Stores(db, path, _asked(db, options["cluster"] or ""))
        if given is not None:
            counts, beside = from_dump(stores, given)
            missing = dump.lacking(given.header)
            tell_missing(given.path, missing)
        else:
            try:
                counts = from_slurm(ctx.obj, stores, options)
            except SlurmError as err:
                hint = "" if "--file" in str(err) else " (for a dump: workhorse collect --file)"
                raise SlurmError(f"{err}{hint}") from err
        stores.finish()
    seconds = time.monotonic() - started
    if not quiet:
        say(closing_line(stores, counts, seconds, beside, options["db"]))
    suspects = renew_suspects(ctx.obj, stores) if not options.get("dump_path") else []
    if suspects and not quiet:
        say(f"suspects, left out for an hour: {fold(suspects)}")
    return {
        "clusters": sorted(stores.all) or [stores.default], **counts._asdict(), **beside._asdict(),
        "reason": stores.reason if counts.rejected else None, "seconds": round(seconds, 3), "suspects": suspects,
        "missing": missing,
    }  # fmt: skip


class Read(NamedTuple):
    """How much was read beside a dump; None where there was no such file."""

    nodes: int | None = None
    events: int | None = None

    def words(self) -> str:
        """For the closing line."""
        numbers = ((self.nodes, "node"), (self.events, "node event"))
        return "".join(f", {count(n, what)}" for n, what in numbers if n is not None)


def _asked(db: Any, cluster: str) -> str:
    """The cluster that -M names, as Slurm has it (and rows that name theirs): one, in lower case. Raises UsageError."""
    return cluster if cluster in clusters(db) else node_inventory.as_slurm_names(cluster)


UNNAMED = "cluster"  # in a dump that doesn't name its cluster, into a history that has none yet or several
_OF_SLURM = (("starttime", "-S", None), ("endtime", "-E", "now"), ("no_resume", "--no-resume", False))
_OF_DUMPS = (
    ("delimiter", "--delimiter", "|"), ("fields", "--fields", None), ("timezone", "--timezone", None),
    ("nodes_path", "--nodes", None), ("events_path", "--events", None),
)  # fmt: skip


def _check_together(options: dict[str, Any]) -> None:
    """Options that would be passed over in silence. Raises UsageError."""
    dumped = options.get("dump_path") is not None
    for key, name, unused in _OF_SLURM if dumped else _OF_DUMPS:
        if options.get(key, unused) not in (unused, ""):
            raise UsageError(
                f"{name}: " + ("is for a running Slurm, not for --file" if dumped else "is for a dump; name it with --file")
            )


def stand_in(settings: Any) -> None:
    """Widen and refresh what a dispatcher that isn't heard of has left; accounting is collected all the same."""
    from slurm_hook.dispatch import daemon  # noqa: PLC0415 - where dispatch has never run there is nothing to do

    try:
        report = daemon.stand_in(settings)
    except WorkhorseError as err:
        say(f"workhorse: dispatch isn't heard of, and nobody can stand in for it: {err}", err=True)
        return
    if report is not None:
        say(f"dispatch isn't heard of: excluded nodes of {report.applied} waiting jobs brought up to date in its place", err=True)


def renew_suspects(settings: Any, stores: collecting.Stores) -> list[str]:
    """Suspects into the published scores; returns them. What was collected is kept all the same when that fails."""
    from ..publishing import renew  # noqa: PLC0415 - numpy and scipy, which a collect needs for nothing else

    try:
        return list(renew.renew(stores[""].db, stores.default, settings))
    except WorkhorseError as err:
        say(f"workhorse: {err}", err=True)
        return []


def write_metrics(settings: Any) -> None:
    """Metrics where [publish] metrics says. What was collected or scored is done all the same when that fails."""
    if not settings.publish.metrics:
        return
    from slurm_hook.common.installed import trusted_uids  # noqa: PLC0415 - most sites that only try have no use for it

    from ..reports import metrics  # noqa: PLC0415

    try:
        metrics.write(metrics.gather(settings, uids=trusted_uids()), settings.publish.metrics)
    except WorkhorseError as err:
        say(f"workhorse: {err}", err=True)


def see_rejects(db: str | None) -> str:
    """The command that shows what was set aside in this history, ready to paste. db: what --db names."""
    return "see `workhorse db rejects" + (f" --db {shlex.quote(db)}`" if db else "`")


def closing_line(stores: collecting.Stores, counts: Counts, seconds: float, beside: Read, db: str | None) -> str:
    """What a run did, in one line. beside: what else was read."""
    names = one_line(", ".join(sorted(stores.all))) or stores.default
    line = (
        f"cluster {names}: {count(counts.attempts, 'attempt')} read, {counts.new:,} new, {counts.changed:,} changed,"
        f" {count(counts.tasks, 'task')} written{beside.words()} in {seconds:.1f} s"
    )
    if counts.rejected:
        line += f"; {count(counts.rejected, 'row')} set aside, {see_rejects(db)} (first: {one_line(stores.reason)})"
    return line


def from_slurm(settings: Any, stores: collecting.Stores, options: dict[str, Any]) -> Counts:
    """Collect from the running Slurm: inventory, events, then accounting. options: cluster, starttime, endtime, no_resume.

    `workhorse refresh` calls it too.
    """
    now, timeout = int(time.time()), settings.slurm.timeout
    there = node_inventory.as_slurm_names(options.get("cluster") or "")
    stores.default = there or node_inventory.cluster_name(timeout)
    inventory = node_inventory.from_slurm(timeout, there)  # a cluster that Slurm doesn't know must leave nothing behind
    store = stores[""]
    _tell_of_the_clock(store, now)
    start, end, backfill = _stretch(settings, store, options, now)
    node_rows.save(store, inventory, now, "scontrol")
    classify = events.Reasons(settings["events.reasons"])
    event_rows.save(store, events.read(start, timeout, classify, store.cluster))
    reads = source.choose(settings, stores, there)
    with progress.stretch("accounting", end - start) as reached:

        def done(high: int) -> None:
            reached(high - start)
            if backfill:
                backfill.reached(high)

        # a stretch of long ago on a fresh database is no place for the next plain run to go on from
        begins = end > now - settings.history.first_days * times.DAY
        hours = settings.history.window_hours
        counts = collecting.update(store, reads, start, end, hours=hours, done=done, begins=begins)
    if backfill:
        backfill.finished()
    elif start <= now - settings.history.deep_hours * times.HOUR:
        store.set_deep_read(now)
    return counts


def _tell_of_the_clock(store: Store, now: int) -> None:
    """A run of the past whose clock was ahead has left marks that hide what came since."""
    mark = collecting.from_the_future(store, now)
    if mark is not None:
        say(
            f"workhorse: {store.cluster}: an earlier run has read up to {converters.utc(mark)}, which is in the future (was this"
            " host's clock ahead?); marks are set back. If that was long ago, read what is missing with collect -S",
            err=True,
        )


def _stretch(settings: Any, store: Store, options: dict[str, Any], now: int) -> tuple[int, int, collecting.Backfill | None]:
    """Start and end of what is read, and the progress of a backfill if it is one."""
    end = min(times.parse_when(options.get("endtime") or "now", now), now)
    asked = options.get("starttime")
    if not asked:
        history = settings.history
        start = collecting.next_start(
            store, now, overlap_hours=history.overlap_hours, deep_hours=history.deep_hours, first_days=history.first_days
        )
        if start >= end and end < now:
            raise UsageError(
                f"-E {options['endtime']}: before {converters.utc(start)}, where this run begins; name a start with -S"
            )
        return min(start, end - 1), end, None
    start = times.parse_when(asked, now)
    if start >= end:
        raise UsageError(f"-S {asked}: not before -E {options['endtime']}; nothing to read")
    backfill = collecting.Backfill(store, start, end, resume=not options.get("no_resume"))
    if backfill.resumed:
        click.echo(f"going on at {converters.utc(backfill.start)}, where the last run was interrupted", err=True)
    return backfill.start, end, backfill


Beside = tuple[Optional[list[node_inventory.NodeSpec]], Optional[list[events.Event]]]


class Given(NamedTuple):
    """An open dump: its columns, its rows as they are read, what of them is set aside, the files that came with it, and
    whether it has fields that may not be kept."""

    path: str
    header: Sequence[str]
    rows: Iterable[list[str]]
    rejects: list[Reject]
    zone: converters.Times
    beside: Beside
    private: bool = False


def read_dump(settings: Any, options: dict[str, Any], files: ExitStack) -> Given:
    """Open a dump and read what came with it; `files` closes it. Raises InputError and UsageError."""
    path, rejects = options["dump_path"], list[Reject]()
    zone = times.zone(options["timezone"])
    beside = _read_files(settings, options, zone)
    file = files.enter_context(dump.open_dump(path))
    if _is_json(file):
        rows = json_dump.rows(json_dump.load(file, path), rejects.append)
        return Given(path, json_dump.HEADER, rows, rejects, zone, beside)
    fields = options["fields"].split(",") if options["fields"] else ()
    text = _dump(file, path, options["delimiter"], fields)
    return Given(path, text.header, text.rows(rejects.append), rejects, zone, beside, text.private)


def from_dump(stores: collecting.Stores, given: Given) -> tuple[Counts, Read]:
    """Collect from a dump, with inventory and events from files or none; and how much these held."""
    path = given.path
    stores.default = stores.default or stores.only or UNNAMED
    rows = progress.counted("dump", given.rows)
    counts = collecting.store_rows(stores, given.header, rows, source=path, times=given.zone, private=given.private)
    counts += collecting.keep_rejects(stores, path, given.rejects)
    if not counts.attempts and not counts.rejected:
        say(f"workhorse: {path}: no rows: nothing was read", err=True)
    beside = _add_files(stores, given.beside)
    _tell_of_the_future(stores)
    return counts, beside


def tell_missing(path: str, missing: Mapping[str, str]) -> None:
    """Say once what a dump's missing fields mean: it is read all the same."""
    if missing:
        words = ", ".join(f"no {names} ({why})" for names, why in missing.items())
        say(f"workhorse: {path}: {words}; save it with these among the fields of `sacct -P -o`", err=True)


def _tell_of_the_future(stores: collecting.Stores) -> None:
    """Times later than now in what was just read are nearly always times of another zone."""
    now = int(time.time()) + collecting.CLOCKS_APART
    for store in stores.all.values():
        late = store.value_of(
            "SELECT count(*) FROM attempts WHERE cluster_id = ? AND max(submit, coalesce(start, 0), coalesce(end, 0)) > ?", now
        )
        if late:
            say(
                f"workhorse: cluster {one_line(store.cluster)}: {late} attempts begin or end in the future and will not count:"
                " are the dump's times of another zone? Read it again into a new database with --timezone (such as UTC), or"
                " save it anew with SLURM_TIME_FORMAT=%s",
                err=True,
            )


def _dump(file: Any, path: str, delimiter: str, fields: Sequence[str]) -> dump.Dump:
    try:
        return dump.Dump(file, delimiter, fields)
    except InputError as err:
        raise InputError(f"{path}: {err}") from None


def _is_json(file: Any) -> bool:
    return file.buffer.peek(64).lstrip()[:1] == b"{"


def _read_files(settings: Any, options: dict[str, Any], zone: converters.Times) -> Beside:
    """Inventory and events that came beside the dump; None where they did not. Raises InputError."""
    inventory, path = options["nodes_path"], options["events_path"]
    specs = None if inventory is None else node_inventory.from_file(inventory)
    if path is None:
        return specs, None
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
            text = file.read()
    except OSError as err:
        raise InputError(f"{path}: can't be read ({err.strerror}); save it with `sacctmgr -nP list event`") from err
    found = list(events.parse(text, zone, events.Reasons(settings["events.reasons"]), user_last=True))
    if text.strip() and not found and not events.is_list(text):
        raise InputError(f"{path}: no event in it; save it with `sacctmgr -nP list event`")
    return specs, found


def _add_files(stores: collecting.Stores, beside: Beside) -> Read:
    """Keep what came beside the dump; nodes without inventory get the size that their tasks show."""
    specs, found = beside
    named = list(stores.all.values()) or [stores[""]]
    if (specs is not None or found is not None) and len(named) > 1:
        raise UsageError("--nodes and --events need a dump of one cluster; this one has several")
    if specs is not None:
        node_rows.save(named[0], specs, 0, "file")
    if found is not None:
        event_rows.save(named[0], found)
    for store in named:
        node_rows.infer(store)
    return Read(*[None if kept is None else len(kept) for kept in (specs, found)])
