"""`workhorse metrics`."""

from __future__ import annotations

import click

from slurm_hook.installed import trusted_uids

from . import metrics as measuring


@click.command()
@click.option("-o", "--output", "folder", type=click.Path(), help="folder of node_exporter's textfile collector; default: print")
@click.pass_context
def metrics(ctx: click.Context, folder: str | None) -> None:
    """Print the metrics for Prometheus, or write them where node_exporter picks them up.

    With [publish] metrics set, every collect and refresh writes them there.

    Example: workhorse metrics -o /var/lib/prometheus/node-exporter
    """
    found = measuring.gather(ctx.obj, uids=trusted_uids())
    if folder:
        measuring.write(found, folder)
    else:
        click.echo(found.text(), nl=False)
