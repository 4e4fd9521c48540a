"""Commands that turn the history into scores: `score` and `refresh`."""

from __future__ import annotations

import time
from typing import Any

import click

from slurm_hook.common import progress
from slurm_hook.common.config import Settings
from slurm_hook.common.terminal import count, json_option, say, tell
from slurm_hook.published.node_table import print_nodes

from ..history.store import connect, connect_to_read, the_cluster
from ..publishing import refresh as refreshing
from ..sources import times
from . import collect as collecting
from .collect import database_path, write_metrics

_PATHS = [
    click.option("--db", type=click.Path(), help="history database; default: [history] path"),
    click.option("-M", "--cluster", help="cluster; default: the only one of the history"),
    click.option("--method", type=click.Choice(["attributed", "published"]), help="default: [scoring] method"),
]


def _options(command: Any) -> Any:
    for option in reversed(_PATHS):
        command = option(command)
    return command


def _settings(settings: Settings, method: str | None) -> Settings:
    return settings.replace(scoring__method=method) if method else settings


def _values(done: refreshing.Refreshed) -> dict[str, Any]:
    """What the closing line tells."""
    scores = done.scores
    return {
        "cluster": scores.cluster, "scored": sum(node.capability is not None for node in scores.nodes.values()),
        "nodes": len(scores.nodes), "method": scores.method, "lemons": sum(node.lemon for node in scores.nodes.values()),
        "path": done.path or None,
    }  # fmt: skip


def _closing(done: refreshing.Refreshed) -> str:
    v = _values(done)
    scored = f"{v['scored']:,} of {v['nodes']:,} nodes scored ({v['method']})"
    line = f"cluster {v['cluster']}: {scored}, {count(v['lemons'], 'lemon')}"
    return f"{line}; {done.path}" if done.path else line


@click.command()
@_options
@click.option("--as-of", help="score as of this moment instead of now, as in sacct: now-7days, 2026-01-31, …")
@click.option("--full", is_flag=True, help="work out everything anew, using nothing that earlier runs left but the threshold")
@click.option("--dry-run", is_flag=True, help="print the scores, publish nothing")
@click.option("--json", "as_json", is_flag=True, help="print the scores as JSON")
@click.pass_context
def score(ctx: click.Context, db: str | None, cluster: str | None, method: str | None, **options: Any) -> None:
    """Score the nodes of the history and publish the result.

    Example: workhorse score --db history.db --dry-run
    """
    path = database_path(ctx, db)
    moment = times.past(options["as_of"], int(time.time()), "--as-of") if options["as_of"] else None
    write = not (options["dry_run"] or moment is not None)
    database = connect(path, create=False) if write else connect_to_read(path)
    name = the_cluster(database, path, cluster)
    with progress.steps("score", refreshing.STEPS) as step:
        done = refreshing.run(
            database, name, _settings(ctx.obj, method), as_of=moment, write=write, full=options["full"], step=step
        )
    for note in done.notes:
        say(f"note: {note}", err=True)
    if options["as_json"] or options["dry_run"] or moment is not None:
        print_nodes(list(done.scores.nodes.values()), as_json=options["as_json"], method=done.scores.method)
    if not options["as_json"]:
        say(_closing(done))


@click.command()
@_options
@json_option
@click.pass_context
def refresh(ctx: click.Context, db: str | None, cluster: str | None, method: str | None, as_json: bool) -> None:
    """Collect what is new, score the nodes, publish: the nightly run.

    Example: workhorse refresh
    """
    collected = collecting.run(ctx, {"db": db, "cluster": cluster}, quiet=as_json)
    write_metrics(ctx.obj)
    path = database_path(ctx, db)
    database = connect(path, create=False)
    clusters = collected["clusters"]  # the one of this configuration, whatever others the history has
    name = the_cluster(database, path, clusters[0] if cluster is None and len(clusters) == 1 else cluster)
    with progress.steps("score", refreshing.STEPS) as step:
        done = refreshing.run(database, name, _settings(ctx.obj, method), step=step)
    for note in done.notes:
        say(f"note: {note}", err=True)
    tell(_closing(done), {"collected": collected, **_values(done)}, as_json=as_json)
    write_metrics(ctx.obj)
    if collected["rejected"]:  # some rows were set aside: the others are worth a score
        ctx.exit(3)
