"""Commands of the accounting half: what fills the history."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from slurm_hook.errors import UsageError, WorkhorseError

from . import collect as collecting
from . import dump, nodes, times
from .records import Reject
from .store import Counts, Store, connect


def database_path(ctx: click.Context, db: str | None) -> str:
    """--db, else [history] path."""
    return db or ctx.obj.history.path


@click.command()
@click.option("-S", "--starttime", help="read from here (backfill), as in sacct: now-90days, 2026-01-31, …")
@click.option("-E", "--endtime", default="now", show_default=True, help="read up to here")
@click.option("-M", "--cluster", help="cluster; default: the one of this configuration")
@click.option("--db", type=click.Path(), help="history database; default: [history] path")
@click.option("--file", "dump_path", type=click.Path(), help="read a dump (sacct -p, -P or --json output; - is stdin)")
@click.option("--delimiter", default="|", show_default=True, help="delimiter of the dump")
@click.option("--fields", help="field names of a dump without header, comma-separated")
@click.option("--timezone", help="time zone of ISO times in the dump, such as Europe/Berlin; default: this machine's")
@click.option("--nodes", "nodes_path", type=click.Path(), help="inventory for a dump: a saved `scontrol -o show node`")
@click.pass_context
def collect(ctx: click.Context, **options: Any) -> None:
    """Read accounting into the history: what is new since the last run, a stretch of time, or a dump.

    \b
    Examples:
      workhorse collect -S now-90days
      workhorse collect --db history.db --file jobs.psv
    """
    path = database_path(ctx, options["db"])
    db = connect(path)
    with collecting.one_at_a_time(path):
        run = _from_dump if options["dump_path"] else _from_slurm
        store, counts = run(ctx.obj, db, path, options)
    click.echo(closing_line(store, counts))
    write_metrics(ctx.obj)
    if counts.rejected:
        ctx.exit(3)


def write_metrics(settings: Any) -> None:
    """Metrics where [publish] metrics says. What was collected or scored is done all the same when that fails."""
    if not settings.publish.metrics:
        return
    from slurm_hook.cli_nodes import trusted_uids  # noqa: PLC0415 - most sites that only try have no use for it

    from . import metrics  # noqa: PLC0415

    try:
        metrics.write(metrics.gather(settings, uids=trusted_uids()), settings.publish.metrics)
    except WorkhorseError as err:
        click.echo(f"workhorse: {err}", err=True)


def closing_line(store: Store, counts: Counts) -> str:
    """What a run did, in one line."""
    line = (
        f"cluster {store.cluster}: {counts.attempts} attempts read, {counts.new} new, {counts.changed} changed,"
        f" {counts.tasks} tasks written"
    )
    return line + (f"; {counts.rejected} rows set aside (table rejects)" if counts.rejected else "")


def _from_slurm(settings: Any, db: Any, path: str, options: dict[str, Any]) -> tuple[Store, Counts]:
    now = int(time.time())
    timeout = settings.slurm.timeout
    end = min(times.parse_when(options["endtime"], now), now)
    cluster = options["cluster"] or nodes.cluster_name(timeout)
    store = Store(db, path, cluster)
    start = _start(settings, store, options["starttime"], now)
    if start >= end:
        raise UsageError(f"-S {options['starttime']}: not before -E {options['endtime']}; nothing to read")
    nodes.save(store, nodes.from_slurm(timeout, options["cluster"] or ""), now, "scontrol")
    hours = settings.history.window_hours
    with click.progressbar(
        length=end - start, label="reading accounting", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        counts = collecting.update(
            store, start, end, hours=hours, timeout=timeout, cluster=options["cluster"] or "",
            progress=lambda done: bar.update(done - start - bar.pos),
        )  # fmt: skip
    return store, counts


def _start(settings: Any, store: Store, asked: str | None, now: int) -> int:
    if asked:
        return times.parse_when(asked, now)
    mark = store.high_water()
    if mark is None:
        return now - settings.history.first_days * times.DAY
    return mark - settings.history.overlap_hours * times.HOUR


def _from_dump(settings: Any, db: Any, path: str, options: dict[str, Any]) -> tuple[Store, Counts]:
    store = Store(db, path, options["cluster"] or "cluster")
    rejects: list[Reject] = []
    with dump.open_dump(options["dump_path"]) as file:
        delimiter = options["delimiter"]
        header = options["fields"].split(",") if options["fields"] else dump.read_header(file, delimiter)
        zone = times.zone(options["timezone"])
        counts = collecting.store_rows(
            store, header, dump.rows(file, header, delimiter, rejects.append), source=options["dump_path"], times=zone
        )
    store.add_rejects(options["dump_path"], rejects, int(time.time()))
    if options["nodes_path"]:
        nodes.save(store, nodes.from_file(options["nodes_path"]), 0, "file")
    nodes.infer(store)
    return store, counts + Counts(rejected=len(rejects))
