"""`workhorse nodes`: the published scores as a table. Runs on login nodes: no numpy, no database."""

from __future__ import annotations

import importlib
import json
import time

import click

from ..common import hostlist
from ..common.errors import HostlistError, UsageError
from ..common.installed import trusted_uids
from ..common.record import TYPE_CHECKING
from ..common.terminal import json_option, one_line
from ..published import node_table
from ..published.snapshot import read_scores

if TYPE_CHECKING:
    from typing import Any

    from ..common.config import Settings
    from ..published.snapshot import NodeScore, Scores


@click.command()
@click.option("-w", "--nodelist", help="only these nodes: gpu[01-08]")
@click.option("-p", "--partition", help="only nodes of these partitions: llm,small")
@click.option("--scores", "folder", type=click.Path(), help="folder of scores.json; default: [publish] path")
@click.option("--long", "-l", "long", is_flag=True, help="say why each node has its score (with -w)")
@json_option
@click.option("-P", "--parsable", is_flag=True, help="print fields delimited by |")
@click.option("--noheader", is_flag=True, help="leave the header out")
@click.option("-o", "--format", "columns", help=f"columns: {', '.join(name.lower() for name, _ in node_table.COLUMNS)}")
@click.pass_context
def nodes(ctx: click.Context, nodelist: str | None, partition: str | None, folder: str | None, **options: Any) -> None:
    """Show the nodes by capability, best first: what scores.json says of each.

    With --long: why a node has its score, in words. Failures of others are shown only to who may read the history.

    \b
    Examples:
      workhorse nodes -p llm -o node,relative,state
      workhorse nodes -w gpu[01-02] --long
    """
    columns = _columns(options["columns"])
    scores = read_scores(folder or ctx.obj.publish.path, trusted_uids=trusted_uids())
    chosen = _chosen(list(scores.nodes.values()), nodelist, partition)
    if options["long"]:
        if not nodelist:
            raise UsageError("--long: name the nodes with -w; it tells a page about each")
        _print_long(chosen, scores, ctx.obj, options["as_json"])
        return
    node_table.print_nodes(
        chosen, as_json=options["as_json"], parsable=options["parsable"], header=not options["noheader"], columns=columns,
        method=scores.method,
    )  # fmt: skip


def _print_long(chosen: list[NodeScore], scores: Scores, settings: Settings, as_json: bool) -> None:
    # by name: this half must not depend on the other, and what the words need of it is standard library
    long = importlib.import_module("accounting.reports.long")
    words = long.lines_for(chosen, scores, settings, time.time())
    if as_json:
        click.echo(json.dumps(long.as_json(chosen, words), indent=1))
        return
    for name, lines in words.items():
        click.echo(one_line(name))
        for line in lines:
            click.echo("  " + one_line(line))


def _chosen(found: list[NodeScore], nodelist: str | None, partition: str | None) -> list[NodeScore]:
    if partition:
        wanted = set(partition.split(","))
        found = [n for n in found if wanted & set(n.partitions)]
        if not found:
            raise UsageError(f"-p {partition}: no node of the published scores is in it; see `sinfo -s` for the partitions")
    if nodelist:
        try:
            names = hostlist.expand(nodelist)
        except HostlistError as err:
            raise UsageError(f"-w: {err}") from err
        unknown = sorted(set(names) - {n.name for n in found})
        if unknown:
            raise UsageError(f"-w {nodelist}: not in the published scores: {hostlist.fold(unknown)}; see `workhorse nodes`")
        found = [n for n in found if n.name in set(names)]
    return found


def _columns(text: str | None) -> list[str]:
    names = [word.strip().upper() for word in (text or "").split(",") if word.strip()]
    valid = [name for name, _ in node_table.COLUMNS]
    unknown = [name for name in names if name not in valid]
    if unknown:
        raise UsageError(f"-o {unknown[0].lower()}: no such column; valid ones: {', '.join(v.lower() for v in valid)}")
    return names
