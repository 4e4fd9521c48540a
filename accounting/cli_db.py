"""`workhorse db vacuum`: care of the history."""

from __future__ import annotations

import os
import time

import click

from slurm_hook.terminal import count, json_option, tell

from . import collect as collecting
from . import maintenance, progress, times
from .cli import database_path
from .store import connect


@click.group()
def db() -> None:
    """Care of the history database."""


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
