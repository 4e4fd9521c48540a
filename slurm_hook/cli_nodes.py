"""`workhorse nodes`: the published scores as a table. Runs on login nodes: no numpy, no database."""

from __future__ import annotations

import os
import pwd

import click

from . import hostlist, table
from .errors import UsageError
from .light import TYPE_CHECKING
from .snapshot import read_scores

if TYPE_CHECKING:
    from typing import Any

    from .snapshot import NodeScore

SERVICE_USER = "workhorse"


def trusted_uids() -> list[int]:
    """Whose published files are believed on the command line: root's, the service user's and one's own."""
    try:
        return [0, os.geteuid(), pwd.getpwnam(SERVICE_USER).pw_uid]
    except KeyError:
        return [0, os.geteuid()]


@click.command()
@click.option("-w", "--nodelist", help="only these nodes: gpu[01-08]")
@click.option("-p", "--partition", help="only nodes of these partitions: llm,small")
@click.option("--scores", "folder", type=click.Path(), help="folder of scores.json; default: [publish] path")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.option("-P", "--parsable", is_flag=True, help="print fields delimited by |")
@click.option("--noheader", is_flag=True, help="leave the header out")
@click.option("-o", "--format", "columns", help=f"columns: {','.join(name.lower() for name, _ in table.COLUMNS)}")
@click.pass_context
def nodes(ctx: click.Context, nodelist: str | None, partition: str | None, folder: str | None, **options: Any) -> None:
    """Show the nodes by capability, best first: what scores.json says of each.

    Example: workhorse nodes -p llm -o node,relative,state
    """
    columns = _columns(options["columns"])
    scores = read_scores(folder or ctx.obj.publish.path, trusted_uids=trusted_uids())
    chosen = _chosen(list(scores.nodes.values()), nodelist, partition)
    table.print_nodes(
        chosen, as_json=options["as_json"], parsable=options["parsable"], header=not options["noheader"], columns=columns
    )


def _chosen(found: list[NodeScore], nodelist: str | None, partition: str | None) -> list[NodeScore]:
    if partition:
        wanted = set(partition.split(","))
        found = [n for n in found if wanted & set(n.partitions)]
        if not found:
            raise UsageError(f"-p {partition}: no node of the published scores is in it; see `sinfo -s` for the partitions")
    if nodelist:
        names = hostlist.expand(nodelist)
        unknown = sorted(set(names) - {n.name for n in found})
        if unknown:
            raise UsageError(f"-w {nodelist}: not in the published scores: {hostlist.fold(unknown)}; see `workhorse nodes`")
        found = [n for n in found if n.name in set(names)]
    return found


def _columns(text: str | None) -> list[str]:
    names = [word.strip().upper() for word in (text or "").split(",") if word.strip()]
    valid = [name for name, _ in table.COLUMNS]
    unknown = [name for name in names if name not in valid]
    if unknown:
        raise UsageError(f"-o {unknown[0].lower()}: no such column; valid ones: {', '.join(v.lower() for v in valid)}")
    return names
