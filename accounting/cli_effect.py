"""`workhorse effect`: steered jobs against the control group."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import click

from slurm_hook.errors import InputError

from . import effect as effects
from . import times, treatment
from .cli import database_path
from .store import connect_to_read, the_cluster


@click.command()
@click.option("-S", "--starttime", default="now-28days", show_default=True, help="jobs from here on, as in sacct")
@click.option("-M", "--cluster", help="cluster; default: the only one of the history")
@click.option("--db", type=click.Path(), help="history database; default: [history] path")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.pass_context
def effect(ctx: click.Context, starttime: str, cluster: str | None, db: str | None, as_json: bool) -> None:
    """Compare steered jobs with the control group: failures, lost node-hours and waiting, with 95 % intervals.

    Needs [steer] control_share above 0 for a while, and AccountingStoreFlags=job_comment in slurm.conf.

    Example: workhorse effect -S now-56days
    """
    now = int(time.time())
    start = times.past(starttime, now, "-S")
    path = database_path(ctx, db)
    database = connect_to_read(path)
    name = the_cluster(database, path, cluster)
    modes = treatment.marks(start, now, cluster or "", ctx.obj)
    steered, control = treatment.groups(database, name, modes, (float(start), float(now)), ctx.obj)
    rows = effects.compare(steered, control, weeks=(now - start) / (7 * 86400.0))
    if as_json:
        click.echo(
            json.dumps({"steered": len(steered), "control": len(control), "differences": [asdict(r) for r in rows]}, indent=1)
        )
        return
    if not rows:
        raise InputError(
            f"{len(steered)} steered and {len(control)} control jobs since {starttime}: {effects.LEAST} of each are needed; set "
            "[steer] control_share, let Slurm keep comments (AccountingStoreFlags=job_comment), or look further back with -S"
        )
    click.echo(f"steered: {len(steered)} jobs, control group: {len(control)} jobs")
    for row in rows:
        click.echo(line(row))


def line(row: effects.Difference) -> str:
    """One measure in words."""
    numbers = f"{row.unit}: {row.steered:.3g} steered, {row.control:.3g} control"
    interval = f"difference {row.difference:+.3g} (95 %: {row.low:+.3g} to {row.high:+.3g})"
    if row.more_weeks == 0.0:
        verdict = "sure"
    elif row.more_weeks is None:
        verdict = "no difference yet"
    else:
        verdict = f"not sure: about {row.more_weeks:.0f} more weeks" if row.more_weeks < 520 else "not sure: more than ten years"
    return f"{numbers}; {interval}; {verdict}"
