"""`workhorse metrics`."""

from __future__ import annotations

import click

from slurm_hook.common.installed import trusted_uids
from slurm_hook.common.terminal import json_option, tell

from ..reports import metrics as measuring


@click.command()
@click.option("-o", "--output", "folder", type=click.Path(), help="folder of node_exporter's textfile collector; default: print")
@json_option
@click.pass_context
def metrics(ctx: click.Context, folder: str | None, as_json: bool) -> None:
    """Print the metrics for Prometheus, or write them where node_exporter picks them up.

    With [publish] metrics set, every collect and refresh writes them there.

    Example: workhorse metrics -o /var/lib/prometheus/node-exporter
    """
    found = measuring.gather(ctx.obj, uids=trusted_uids())
    path = measuring.write(found, folder) if folder else None
    if as_json:
        tell("", {"path": path, "metrics": found.values()}, as_json=True)
    elif path is None:
        click.echo(found.text(), nl=False)
