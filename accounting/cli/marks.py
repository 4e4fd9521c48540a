"""`workhorse mark` and `workhorse import`: what people, health checks and tickets know of nodes and jobs."""

from __future__ import annotations

import getpass
import time
from typing import Any, NamedTuple

import click

from slurm_hook.common import hostlist, progress
from slurm_hook.common.errors import HostlistError, UsageError
from slurm_hook.common.terminal import count, json_option, one_line, tell

from ..history import collect as collecting
from ..history import event_rows
from ..history.store import Store, connect, connect_to_read, loaded_text, stored_text, the_cluster, transaction
from ..sources import converters, dump, events, times
from ..sources.records import Reject
from .collect import database_path, see_rejects

FARTHEST = 366 * times.DAY  # s; a mark may name planned work
LONGEST_NOTE = 1000
SOURCE = "mark"  # of node events
NODE_MARKS = ("repaired", "bad", "ignore")


@click.command()
@click.argument("node", required=False)
@click.argument("mark_name", metavar="[repaired|bad|ignore|wrong]", required=False)
@click.option("--job", help="mark an attempt instead: `--job 123 wrong`; an array task as 123_4")
@click.option("--at", "at_text", default="now", show_default=True, help="since when")
@click.option("--until", help="mark holds until then; default: until the next")
@click.option("--note", default="", help="why")
@click.option("--undo", is_flag=True, help="take the last such mark off again")
@click.option("--list", "as_list", is_flag=True, help="show all marks")
@click.option("-M", "--cluster", help="cluster; default: the only one of the database")
@click.option("--db", type=click.Path(), help="history database; default: [history] path")
@json_option
@click.pass_context
def mark(ctx: click.Context, node: str | None, mark_name: str | None, job: str | None, as_list: bool, **options: Any) -> None:
    """Tell what accounting can't know.

    \b
    workhorse mark NODE repaired      earlier evidence against it counts half
    workhorse mark NODE bad           known to be bad, until it is marked repaired
    workhorse mark NODE ignore        evidence of this time is left out (with --until)
    workhorse mark --job ID wrong     the job completed, but its result is wrong

    NODE may be a list: gpu[017-018]. Scores by the method `published` heed only `wrong`; what is marked bad is left out by both.

    Example: workhorse mark gpu017 repaired --note "new GPU 3"
    """
    if as_list and (node or job):
        raise UsageError("--list: shows all marks; name no node and no job with it")
    if job is not None and (options["until"] or options["at_text"] != "now"):
        raise UsageError("--at, --until: of marks of nodes; a job is wrong for good")
    if job is not None and node is not None and mark_name is not None:
        raise UsageError(f"--job {job}: name no node ({node}) with it")
    if options["undo"] and (options["note"] or options["until"] or options["at_text"] != "now"):
        raise UsageError("--undo: takes the last such mark off; give no --at, --until or --note with it")
    if len(options["note"]) > LONGEST_NOTE:
        raise UsageError(f"--note: {len(options['note'])} characters; at most {LONGEST_NOTE}")
    path = database_path(ctx, options["db"])
    if as_list:
        reading = connect_to_read(path)
        cluster = the_cluster(reading, path, options["cluster"])
        found = all_marks(reading, cluster)
        values = {"cluster": cluster, "marks": [one._asdict() for one in found]}
        tell("\n".join(one_line(one.words()) for one in found) or "no marks", values, as_json=options["as_json"])
        return
    db = connect(path, create=False)
    with collecting.one_at_a_time(path):
        store = Store(db, path, the_cluster(db, path, options["cluster"]))
        if job is not None:
            name = node if mark_name is None else mark_name
            told = unmark_job(store, job, name or "wrong") if options["undo"] else mark_job(store, job, name, options["note"])
        else:
            told = unmark_node(store, node, mark_name) if options["undo"] else mark_node(store, node, mark_name, options)
    tell(*told, as_json=options["as_json"])


Told = tuple[str, dict[str, Any]]  # the closing line and its values


class Mark(NamedTuple):
    """One mark; times in epoch seconds."""

    node: str | None
    job: str | None
    mark: str
    start: int
    end: int | None
    who: str
    note: str

    def words(self) -> str:
        """A line of --list."""
        what = f"job {self.job}" if self.node is None else f"node {self.node}"
        until = f" to {converters.utc(self.end)}" if self.end else ""
        note = f": {self.note}" if self.note else ""
        return f"{what} {self.mark}, {converters.utc(self.start)}{until}, by {self.who}{note}"


def _nodes_of(store: Store, node: str | None, name: str | None) -> tuple[str, ...]:
    """The nodes that a mark is about. Raises UsageError where it is no mark of nodes that the history knows."""
    if node is None or name not in NODE_MARKS:
        said = "" if name is None else f" {name!r} is no mark of a node;"
        raise UsageError(f"mark what?{said} NODE {'|'.join(NODE_MARKS)}, or --job ID wrong")
    try:
        names = tuple(dict.fromkeys(hostlist.expand(node)))
    except HostlistError as err:
        raise UsageError(str(err)) from None
    known = {row[0] for row in store.conn.execute("SELECT name FROM nodes WHERE cluster_id = ?", (store.cluster_id,))}
    for one in names:
        if one not in known:
            raise UsageError(f"node {one!r} is not in the history of cluster {store.cluster}; see `workhorse nodes`")
    return names


def mark_node(store: Store, node: str | None, name: str | None, options: dict[str, Any]) -> Told:
    """Keep a mark of nodes; returns what to say. Raises UsageError."""
    names = _nodes_of(store, node, name)
    now = int(time.time())
    start = times.parse_when(options["at_text"], now)
    if start > now + FARTHEST:
        raise UsageError(f"--at {options['at_text']}: over a year ahead")
    end = times.parse_when(options["until"], now) if options["until"] else None
    if end is not None and end <= start:
        raise UsageError(f"--until {options['until']}: not after --at {options['at_text']}")
    kind, who = str(name), getpass.getuser()
    kind_class = {"repaired": "repaired", "bad": "hardware"}.get(kind, "unknown")
    made = [events.Event(one, kind, start, end, "", options["note"], kind_class, who, SOURCE) for one in names]
    event_rows.save(store, made)
    later = "" if start <= now else f" from {converters.utc(start)} on"
    known_by = "collect or score" if name == "bad" else "score"
    words = f"cluster {store.cluster}: node {node} marked {name}{later}; published scores know it from the next {known_by} on"
    about = {"cluster": store.cluster, "nodes": list(names), "mark": name, "holds": True}
    return words, {**about, "start": start, "end": end, "note": options["note"]}


def unmark_node(store: Store, node: str | None, name: str | None) -> Told:
    """Take the last such mark off each of the nodes; returns what to say. Raises UsageError where one has none."""
    names = _nodes_of(store, node, name)
    last = "SELECT max(e.id) FROM node_events e JOIN nodes n ON n.id = e.node_id WHERE n.cluster_id = ? AND n.name = ?"
    with transaction(store.conn, store.path):
        for one in names:
            found = store.conn.execute(
                f"{last} AND e.kind = ? AND e.source = ?", (store.cluster_id, one, name, SOURCE)
            ).fetchone()
            if found[0] is None:
                raise UsageError(f"node {one!r} has no mark {name}; see workhorse mark --list")
            store.conn.execute("DELETE FROM node_events WHERE id = ?", found)
    words = f"cluster {store.cluster}: node {node} no longer marked {name}"
    return words, {"cluster": store.cluster, "nodes": list(names), "mark": name, "holds": False}


def unmark_job(store: Store, job: str, name: str | None) -> Told:
    """Take the mark off a job; returns what to say. Raises UsageError where it has none."""
    which = "SELECT job_id, submit FROM attempts WHERE cluster_id = :cluster AND label = :label"
    with transaction(store.conn, store.path):
        gone = store.conn.execute(
            f"DELETE FROM job_marks WHERE cluster_id = :cluster AND mark = :mark AND (job_id, submit) IN ({which})",  # noqa: S608
            {"cluster": store.cluster_id, "mark": name, "label": job},
        )
        if not gone.rowcount:
            raise UsageError(f"job {job!r} has no mark {name}; see workhorse mark --list")
    words = f"cluster {store.cluster}: job {job} no longer marked {name}"
    return words, {"cluster": store.cluster, "job": job, "mark": name, "holds": False}


def all_marks(db: Any, cluster: str) -> list[Mark]:
    """All marks, earliest first."""
    rows = db.execute(
        "SELECT e.start, 0, n.name, e.kind, e.end, e.who, e.reason FROM node_events e JOIN nodes n ON n.id = e.node_id"
        " JOIN clusters c ON c.id = n.cluster_id WHERE c.name = :cluster AND e.source = :source UNION ALL"
        " SELECT m.made, 1, coalesce(a.label, m.job_id), m.mark, NULL, m.who, m.note FROM job_marks m"
        " JOIN clusters c ON c.id = m.cluster_id LEFT JOIN attempts a USING (cluster_id, job_id, submit)"
        " WHERE c.name = :cluster ORDER BY 1, 2 DESC, 3",
        {"cluster": cluster, "source": SOURCE},
    )
    return [
        Mark(None if of_job else str(what), str(what) if of_job else None, kind, start, end, loaded_text(who), loaded_text(note))
        for start, of_job, what, kind, end, who, note in rows
    ]


def mark_job(store: Store, job: str, name: str | None, note: str) -> Told:
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
    words = f"cluster {store.cluster}: job {job} marked {name}"
    return words, {"cluster": store.cluster, "job": job, "mark": name, "holds": True, "note": note}


@click.command("import")
@click.argument("file", type=click.Path())
@click.option("-M", "--cluster", help="cluster; default: the only one of the database")
@click.option("--db", type=click.Path(), help="history database; default: [history] path")
@json_option
@click.pass_context
def import_events(ctx: click.Context, file: str, cluster: str | None, db: str | None, as_json: bool) -> None:
    """Read node events from a file (- is stdin): one JSON object a line with node, time, kind, source, perhaps end, reason.

    Exit code 3: some lines could not be understood; `workhorse db rejects` shows them.

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
        kept = event_rows.save(store, progress.counted("import", read))
        rejected = len(rejects)
        store.add_rejects(file, rejects, int(time.time()))
    aside = f"; {count(rejected, 'line')} set aside, {see_rejects(db)} (first: {rejects[0].reason})" if rejected else ""
    values = {"cluster": store.cluster, "events": kept, "rejected": rejected, "reason": rejects[0].reason if rejected else None}
    tell(one_line(f"cluster {store.cluster}: {count(kept, 'event')} read{aside}"), values, as_json=as_json)
    if rejected:
        ctx.exit(3)
