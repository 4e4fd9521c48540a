"""`workhorse report`."""

from __future__ import annotations

import time
from typing import Any

import click

from slurm_hook.common import progress
from slurm_hook.common.terminal import count, json_option, tell

from ..evaluation import decisions
from ..history.store import connect_to_read, the_cluster
from ..reports import contents as reporting
from ..reports import report_html
from ..sources import times
from . import effect as cli_effect
from .collect import database_path


@click.command()
@click.option("-o", "--output", default="report.html", show_default=True, type=click.Path(), help="file to write (mode 0600)")
@click.option("--db", type=click.Path(), help="history database; default: [history] path")
@click.option("-M", "--cluster", help="cluster; default: the only one of the history")
@click.option("--as-of", help="report as of this moment instead of now, as in sacct: now-7days, 2026-01-31, …")
@click.option("--days", type=click.IntRange(1, 90), default=7, show_default=True, help="decisions of how many days")
@click.option("--log", "log_path", type=click.Path(), help="log of decisions; default: workhorse's own log file or the journal")
@json_option
@click.pass_context
def report(ctx: click.Context, output: str, db: str | None, cluster: str | None, as_json: bool, **options: Any) -> None:
    """Write one HTML file about the cluster: nodes, worst nodes with their history, who broke what, decisions.

    It holds names of users and jobs, so only its owner may read it; it needs no network and runs no scripts.

    Example: workhorse report -o report.html --days 14
    """
    now = int(time.time())
    as_of = times.past(options["as_of"], now, "--as-of") if options["as_of"] else now
    path = database_path(ctx, db)
    database = connect_to_read(path)
    name = the_cluster(database, path, cluster)
    lines = decisions.read(options["log_path"] or decisions.source(), as_of - options["days"] * 86400, as_of)
    effect = cli_effect.told(database, name, cluster, ctx.obj, as_of)
    with progress.steps("report", 1 + reporting.STEPS) as step:
        found = reporting.gather(database, name, ctx.obj, as_of=as_of, decisions=lines, effect=effect, step=step)
        step("drawing")
        report_html.write(output, report_html.render(found))
    o, decided = found.overview, sum(found.routes.values())
    numbers = (o.nodes, "node"), (o.lemons, "lemon"), (o.failures, "failure"), (decided, "decision")
    words = ", ".join([f"{output}: cluster {o.cluster}", *[count(n, what) for n, what in numbers]])
    tell(words, {"path": output, "cluster": o.cluster, **{f"{what}s": n for n, what in numbers}}, as_json=as_json)
