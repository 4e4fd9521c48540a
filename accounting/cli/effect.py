"""`workhorse effect`: steered jobs against the control group."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

import click

from slurm_hook.common import progress
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import InputError, SlurmError
from slurm_hook.common.terminal import count, json_option

from ..evaluation import effect as effects
from ..evaluation import treatment
from ..history.store import connect_to_read, the_cluster
from ..sources import times
from .collect import database_path

DAYS = 28


@click.command()
@click.option("-S", "--starttime", default=f"now-{DAYS}days", show_default=True, help="jobs from here on, as in sacct")
@click.option("-M", "--cluster", help="cluster; default: the only one of the history")
@click.option("--db", type=click.Path(), help="history database; default: [history] path")
@json_option
@click.pass_context
def effect(ctx: click.Context, starttime: str, cluster: str | None, db: str | None, as_json: bool) -> None:
    """Compare steered jobs with the control group: failures, lost node-hours and waiting, with 95 % intervals.

    All failures are counted: users' own errors are as many in both groups, so the difference is what nodes caused.

    Needs [steer] control_share above 0 for a while, and AccountingStoreFlags=job_comment in slurm.conf.

    Example: workhorse effect -S now-56days
    """
    now = int(time.time())
    start = times.past(starttime, now, "-S")
    path = database_path(ctx, db)
    database = connect_to_read(path)
    name = the_cluster(database, path, cluster)
    steered, control, rows = compared(database, name, cluster, ctx.obj, (start, now))
    if as_json:
        click.echo(
            json.dumps({"steered": len(steered), "control": len(control), "differences": [asdict(r) for r in rows]}, indent=1)
        )
        return
    if not rows:
        raise InputError(f"{_too_few(steered, control, starttime)}, or look further back with -S")
    click.echo(f"steered: {count(len(steered), 'job')}, control group: {count(len(control), 'job')}")
    for row in rows:
        click.echo(line(row))


def compared(
    database: Any, name: str, asked: str | None, settings: Settings, window: tuple[int, int]
) -> tuple[effects.Group, effects.Group, list[effects.Difference]]:
    """Both groups of a window (epoch seconds) and their differences. asked: the cluster that -M named. Raises SlurmError."""
    start, end = window
    with progress.steps("effect", 3) as step:
        step("asking accounting for marks")
        modes, seconds = treatment.side_by_side(treatment.marks(start, end, asked or "", settings))
        step("reading the history")
        steered, control = treatment.groups(database, name, modes, (float(start), float(end)), settings)
        step("comparing")
        return steered, control, effects.compare(steered, control, weeks=max(seconds, 3600.0) / (7 * 86400.0))


def _too_few(steered: effects.Group, control: effects.Group, since: str) -> str:
    return (
        f"{len(steered)} steered and {len(control)} control jobs side by side since {since}: {effects.LEAST} of each are needed; "
        "set [steer] control_share, let Slurm keep comments (AccountingStoreFlags=job_comment)"
    )


def told(database: Any, name: str, asked: str | None, settings: Settings, end: int) -> list[str]:
    """What the report says of the four weeks before `end`: lines as `workhorse effect` prints them, or why there are none.

    Slurm is asked only where a control group is kept: a report on a dump must need no Slurm.
    """
    if settings.steer.control_share <= 0:
        return ["No control group is kept ([steer] control_share is 0), so steered jobs can't be compared with others."]
    try:
        steered, control, rows = compared(database, name, asked, settings, (end - DAYS * times.DAY, end))
    except SlurmError as err:
        return [f"Not compared: {err}"]
    if not rows:
        return [_too_few(steered, control, f"{DAYS} days ago") + "."]
    head = f"{len(steered)} steered jobs of the last {DAYS} days against the {len(control)} of the control group."
    return [head, *(line(row) for row in rows)]


def line(row: effects.Difference) -> str:
    """One measure in words."""
    numbers = f"{row.unit}: {row.steered:.3g} steered, {row.control:.3g} control"
    interval = f"difference {row.difference:+.3g} (95 %: {row.low:+.3g} to {row.high:+.3g})"
    if row.more_weeks == 0.0:
        verdict = "sure"
    elif row.more_weeks is None:
        verdict = "no difference yet"
    elif row.more_weeks < 1.5:
        verdict = "not sure: about a week more"
    else:
        verdict = f"not sure: about {row.more_weeks:.0f} more weeks" if row.more_weeks < 520 else "not sure: more than ten years"
    return f"{numbers}; {interval}; {verdict}"
