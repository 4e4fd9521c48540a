"""`workhorse mark` and `workhorse import`: what people, health checks and tickets know of nodes and jobs."""

from __future__ import annotations

import getpass
import time
from typing import Any

import click

from slurm_hook.errors import UsageError
from slurm_hook.terminal import count, one_line, say

from . import collect as collecting
from . import dump, events, progress, times
from .cli import database_path
from .records import Reject
from .store import Store, connect, stored_text, the_cluster, transaction

FARTHEST = 366 * times.DAY  # s; a mark may name planned work
LONGEST_NOTE = 1000
NODE_MARKS = ("repaired", "bad", "ignore")


@click.command()
@click.argument("node", required=False)
@click.argument("mark_name", metavar="[repaired|bad|ignore|wrong]", required=False)
@click.option("--job", help="mark an attempt instead: `--job 123 wrong`; an array task as 123_4")
@click.option("--at", "at_text", default="now", show_default=True, help="since when")
@click.option("--until", help="mark holds until then; default: until the next")
@click.option("--note", default="", help="why")
@click.option("-M", "--cluster", help="cluster; default: the only one of the database")
@click.option("--db", type=click.Path(), help="history database; default: [history] path")
@click.pass_context
def mark(ctx: click.Context, node: str | None, mark_name: str | None, job: str | None, **options: Any) -> None:
    """Tell what accounting can't know.

    \b
    workhorse mark NODE repaired      earlier evidence against it counts half
    workhorse mark NODE bad           known to be bad
    workhorse mark NODE ignore        evidence of this time is left out (with --until)
    workhorse mark --job ID wrong     the job completed, but its result is wrong

    Example: workhorse mark gpu017 repaired --note "new GPU 3"
    """
    if len(options["note"]) > LONGEST_NOTE:
        raise UsageError(f"--note: {len(options['note'])} characters; at most {LONGEST_NOTE}")
    path = database_path(ctx, options["db"])
    db = connect(path, create=False)
    with collecting.one_at_a_time(path):
        store = Store(db, path, the_cluster(db, path, options["cluster"]))
        if job is not None:
            say(mark_job(store, job, node if mark_name is None else mark_name, options["note"]))
        else:
            say(mark_node(store, node, mark_name, options))


def mark_node(store: Store, node: str | None, name: str | None, options: dict[str, Any]) -> str:
    """Keep a mark of a node; returns what to say. Raises UsageError."""
    if node is None or name not in NODE_MARKS:
        raise UsageError(f"mark what? NODE {'|'.join(NODE_MARKS)}, or --job ID wrong")
    known = store.conn.execute("SELECT id FROM nodes WHERE cluster_id = ? AND name = ?", (store.cluster_id, node)).fetchone()
    if known is None:
        raise UsageError(f"node {node!r} is not in the history of cluster {store.cluster}; see the table nodes")
    now = int(time.time())
    start = times.parse_when(options["at_text"], now)
    if start > now + FARTHEST:
        raise UsageError(f"--at {options['at_text']}: over a year ahead")
    end = times.parse_when(options["until"], now) if options["until"] else None
    if end is not None and end <= start:
        raise UsageError(f"--until {options['until']}: not after --at {options['at_text']}")
    kind_class = {"repaired": "repaired", "bad": "hardware"}.get(name, "unknown")
    event = events.Event(node, name, start, end, "", options["note"], kind_class, getpass.getuser(), "mark")
    events.save(store, [event])
    return f"cluster {store.cluster}: node {node} marked {name}"


def mark_job(store: Store, job: str, name: str | None, note: str) -> str:
    """Keep a mark of a job's last attempt; returns what to say. Raises UsageError."""
    if name != "wrong":
        raise UsageError("a job can only be marked wrong: workhorse mark --job ID wrong")
    found = store.conn.execute(
        "SELECT job_id, submit FROM attempts WHERE cluster_id = ? AND label = ? ORDER BY submit DESC LIMIT 1",
        (store.cluster_id, job),
    ).fetchone()
    if found is None:
        raise UsageError(f"job {job!r} is not in the history of cluster {store.cluster}; collect it first")
    with transaction(store.conn, store.path):
        store.conn.execute(
            "INSERT OR REPLACE INTO job_marks (cluster_id, job_id, submit, mark, note, who, made) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (store.cluster_id, *found, name, stored_text(note), getpass.getuser(), int(time.time())),
        )
    return f"cluster {store.cluster}: job {job} marked {name}"


@click.command("import")
@click.argument("file", type=click.Path())
@click.option("-M", "--cluster", help="cluster; default: the only one of the database")
@click.option("--db", type=click.Path(), help="history database; default: [history] path")
@click.pass_context
def import_events(ctx: click.Context, file: str, cluster: str | None, db: str | None) -> None:
    """Read node events from a file (- is stdin): one JSON object a line with node, time, kind, source, perhaps end, reason.

    Exit code 3: some lines could not be understood; they are in the table `rejects`.

    Example: workhorse import xid-events.jsonl
    """
    path = database_path(ctx, db)
    database = connect(path, create=False)
    rejects: list[Reject] = []
    with collecting.one_at_a_time(path), dump.open_dump(file) as lines:
        store = Store(database, path, the_cluster(database, path, cluster))
        classify = events.Reasons(ctx.obj["events.reasons"])
        known = {row[0] for row in store.conn.execute("SELECT name FROM nodes WHERE cluster_id = ?", (store.cluster_id,))}
        read = events.parse_import(lines, classify, rejects.append, known)
        kept = events.save(store, progress.counted("import", read))
        rejected = len(rejects)
        store.add_rejects(file, rejects, int(time.time()))
    aside = f"; {count(rejected, 'line')} set aside, see the table rejects (first: {rejects[0].reason})" if rejected else ""
    say(one_line(f"cluster {store.cluster}: {count(kept, 'event')} read{aside}"))
    if rejected:
        ctx.exit(3)
