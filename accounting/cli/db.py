"""`workhorse db rejects` and `workhorse db vacuum`: what of accounting could not be understood, and care of the history."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import Any, NamedTuple

import click

from slurm_hook.common import progress
from slurm_hook.common.terminal import count, json_option, one_line, tell

from ..history import collect as collecting
from ..history import maintenance
from ..history.store import connect, connect_to_read, loaded_text, the_cluster
from ..sources import times
from .collect import database_path

SHOWN = 300  # characters of a row


@click.group()
def db() -> None:
    """Care of the history database, and what it could not understand."""


@db.command()
@click.option("--keep-days", type=click.IntRange(1, 36500), help="default: [history] keep_days")
@click.option("--db", "db_path", type=click.Path(), help="history database; default: [history] path")
@json_option
@click.pass_context
def vacuum(ctx: click.Context, keep_days: int | None, db_path: str | None, as_json: bool) -> None:
    """Remove what is older than [history] keep_days and give the space back.

    Example: workhorse db vacuum --keep-days 200
    """
    path = database_path(ctx, db_path)
    database = connect(path, create=False)
    days = keep_days or ctx.obj.history.keep_days
    with collecting.one_at_a_time(path):
        before = os.path.getsize(path)
        with progress.steps("vacuum", 2) as step:
            step("removing what is old")
            gone = maintenance.prune(database, path, int(time.time()) - days * times.DAY)
            step("giving space back")
            maintenance.vacuum(database, path)
    after = os.path.getsize(path)
    tell(
        f"{path}: {count(gone.attempts, 'attempt')}, {count(gone.events, 'event')}, {count(gone.rejects, 'reject')}"
        f" older than {days} days removed;"
        f" {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after",
        {"path": path, "keep_days": days, **gone._asdict(), "bytes_before": before, "bytes_after": after},
        as_json=as_json,
    )


class Rejected(NamedTuple):
    """A row that was set aside. seen: when last, epoch seconds; source: sacct, or the file that it came from; text: its
    fields of those that are kept."""

    cluster: str
    seen: int
    source: str
    reason: str
    text: str

    def words(self) -> str:
        """Two lines; what of the row is cut is in --json."""
        when = datetime.fromtimestamp(self.seen).astimezone().strftime("%Y-%m-%d %H:%M %z")
        more = f"… ({len(self.text):,} characters)" if len(self.text) > SHOWN else ""
        return one_line(f"{when} {self.cluster} from {self.source}: {self.reason}") + f"\n    {one_line(self.text[:SHOWN])}{more}"


@db.command()
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="how many at most")
@click.option("-M", "--cluster", help="only those of this cluster")
@click.option("--db", "db_path", type=click.Path(), help="history database; default: [history] path")
@json_option
@click.pass_context
def rejects(ctx: click.Context, limit: int, cluster: str | None, db_path: str | None, as_json: bool) -> None:
    """Show the rows of accounting, dumps and imports that could not be understood, each with the reason, newest first.

    A row that is read again and again (collects overlap) is there once, with the time when it was last seen. What is no
    longer read goes with [history] keep_days.

    Example: workhorse db rejects --limit 5
    """
    path = database_path(ctx, db_path)
    database = connect_to_read(path)
    asked = None if cluster is None else the_cluster(database, path, cluster)
    total, found = rejected(database, asked, limit)
    lines = [one.words() for one in found]
    if total > len(found):
        lines.append(f"{len(found):,} of {count(total, 'row')} set aside; --limit shows more")
    values = {"path": path, "total": total, "rejects": [one._asdict() for one in found]}
    tell("\n".join(lines) or "nothing was set aside", values, as_json=as_json)


def rejected(database: Any, cluster: str | None, limit: int) -> tuple[int, list[Rejected]]:
    """How many rows are set aside, and the last of them. cluster None: of all."""
    of = "FROM rejects r JOIN clusters c ON c.id = r.cluster_id WHERE ? IS NULL OR c.name = ?"
    total = database.execute(f"SELECT count(*) {of}", (cluster, cluster)).fetchone()[0]
    sql = f"SELECT c.name, r.seen, r.source, r.reason, r.text {of} ORDER BY r.seen DESC, r.id DESC LIMIT ?"
    rows = database.execute(sql, (cluster, cluster, limit))
    return total, [Rejected(loaded_text(name), seen, *map(loaded_text, texts)) for name, seen, *texts in rows]
