"""`workhorse explain`: why a job got its nodes, and who broke it. Runs on login nodes; the blame needs the history."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pwd

import click

from ..common import job_ids
from ..common.errors import InputError, SlurmError, SnapshotError
from ..common.installed import trusted_uids
from ..common.record import TYPE_CHECKING
from ..common.terminal import json_option, one_line
from ..explain import job as explaining
from ..explain import replay
from ..published import log_reader, mark
from ..published.snapshot import read_scores, scores_from_json
from ..slurm import commands

if TYPE_CHECKING:
    from typing import Any

    from ..common.config import Settings
    from ..explain.job import JobFacts
    from ..published.snapshot import Scores

UNENDED = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED")


@click.command()
@click.argument("job")
@click.option("--db", type=click.Path(), help="history database; default: [history] path")
@click.option("-M", "--cluster", help="cluster; default: the only one of the history")
@click.option("--as-of", help="blame as known at this moment, as in sacct: now-7days, 2026-01-31, …")
@click.option("--log", type=click.Path(readable=False), default=replay.LOG, show_default=True, help="syslog's file of workhorse")
@json_option
@click.pass_context
def explain(ctx: click.Context, job: str, db: str | None, **options: Any) -> None:
    """Tell why a job got its nodes and, where it failed, who broke it: a node, the job itself, or unknown.

    Users are told about their own jobs; who broke it is told to who may read the history.

    \b
    Examples:
      workhorse explain 4711
      workhorse explain 4711_3
    """
    settings: Settings = ctx.obj
    facts = ask_slurm(job_ids.checked_id(job))
    may_read = os.access(db or settings.history.path, os.R_OK)
    if facts is None and not may_read:
        raise InputError(f"job {job}: Slurm doesn't know it, or it is another user's; users are told about their own jobs")
    if facts is not None and not may_read and facts.user != pwd.getpwuid(os.geteuid()).pw_name and os.geteuid() != 0:
        raise InputError(f"job {job} is another user's; users are told about their own jobs")
    lines = told(facts, settings, options["log"]) if facts is not None else []
    verdict = None
    if may_read and importlib.util.find_spec("numpy") is not None:
        verdict = _blame(ctx, job, db, options)
        if verdict.cause == "none" and facts is None:
            raise InputError(verdict.sentence)
        if verdict.cause != "none" or facts is None or facts.state not in UNENDED:  # of those nobody asks who broke them
            lines.append(verdict.sentence)
    if options["as_json"]:
        known = {} if facts is None else facts._asdict()
        click.echo(json.dumps({"words": lines, **known, "job": job, "blame": vars(verdict) if verdict else None}, indent=1))
        return
    for line in lines:
        click.echo(one_line(line))


def ask_slurm(job: str) -> JobFacts | None:
    """The job as slurmctld or else accounting knows it; None where neither does or answers. Raises UsageError for an array."""
    number = job_ids.own_number(job)
    try:
        code, out, _ = commands.attempt(["squeue", "-h", "-t", "all", "-j", number, "-o", explaining.SQUEUE])
        found = explaining.from_squeue(out) if code == 0 else None
        if found is None:
            argv = ["sacct", "-X", "-n", "-P", "-j", number, "-o", explaining.SACCT]
            found = explaining.from_sacct(commands.run(argv))
    except SlurmError:
        return None
    if found is not None:
        job_ids.check_single(job, found.job)
        if "+" in job and found.job != job:  # the components' numbers don't follow each other here
            return None
    return found


def told(facts: JobFacts, settings: Settings, log: str = replay.LOG) -> list[str]:
    """The decision by the snapshot that made it, its draw made again from the log, the nodes by the scores of now."""
    try:
        now = read_scores(settings.publish.path, trusted_uids=trusted_uids())
    except SnapshotError:
        now = None
    found = mark.parse(facts.comment)
    then = archived(settings, found.snapshot) if found is not None and found.snapshot else None
    witness = _witness(facts.user, settings, log)
    again = replay.words(found, witness) if found is not None and found.decided and found.seed else []
    # of an array that waits as a whole, dispatch knows the first number only
    numbers = {facts.raw, int(facts.job.partition("_")[0])} if "_" in facts.job else {facts.raw}
    since = replay.made_at(found.snapshot if found is not None else "")
    done = [line for number in sorted(numbers) for line in replay.dispatched(number, witness, since)]
    mode = str(now.settings.get("steer.mode", "")) if now is not None else ""
    return [*explaining.decision_words(facts, then or now, mode), *again, *done, *explaining.nodes_words(facts, now)]


def _witness(user: str, settings: Settings, log: str) -> replay.Witness:
    """The journal, where the log isn't named otherwise, as it knows who wrote a line; else syslog's file."""
    service = {0, *(uid for uid in trusted_uids() if uid != os.geteuid())}
    try:
        owner = pwd.getpwnam(user).pw_uid
    except KeyError:
        owner = None
    journal = log == replay.LOG and log_reader.has_journal()
    return replay.Witness(log, settings.publish.path, owner, tuple(service), journal)


def archived(settings: Settings, name: str) -> Scores | None:
    """A kept snapshot by its id, None where it is gone. The name comes from a Comment: no path may be in it."""
    if "/" in name or name.startswith("."):
        return None
    path = os.path.join(settings.publish.path, "snapshots", f"{name}.json")
    try:
        with open(path, encoding="utf-8") as file:
            return scores_from_json(json.load(file), path)
    except (OSError, ValueError, SnapshotError):
        return None


def _blame(ctx: click.Context, job: str, db: str | None, options: dict[str, Any]) -> Any:
    # by name: this half must not depend on the other
    lemons = importlib.import_module("accounting.cli.lemons")
    return lemons.blame(ctx, job, db=db, cluster=options["cluster"], as_of=options["as_of"])
