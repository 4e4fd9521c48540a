"""`workhorse queue`: waiting stages in the order in which they get nodes, and the stages of one pipeline."""

from __future__ import annotations

import json
import os
import pwd
import time

import click

from ..common.errors import InputError, SlurmError, SnapshotError, UsageError
from ..common.record import TYPE_CHECKING
from ..common.terminal import json_option, one_line
from ..dispatch import tracking
from ..pipelines import queue_view
from ..slurm import jobs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..common.config import Settings
    from ..pipelines.queue_view import Part, Stage

STAGE_COLUMNS = (
    "JOB", "USER", "NAME", "PIPELINE", "NODES", "DEMAND_GIB", "WAIT_H", "COMPLETION", "URGENCY", "PRIORITY", "INVESTED_H",
    "REASON",
)  # fmt: skip
LEGEND = (
    "priority: urgency by share of the largest demand; urgency: hours waited since its dependencies were met, by completion; "
    "completion: its pipeline's share of all hours invested"
)
PART_COLUMNS = ("JOB", "STAGE", "STATE", "WIDTH", "NODES", "HOURS", "NODE_HOURS", "NEXT")
HISTORY_DAYS = 90


@click.command(name="queue")
@click.option("--pipeline", "name", help="the stages of this pipeline (a name, or the id of a job in its chain)")
@click.option("-u", "--user", help="only this user's (root and the service user see everybody's)")
@json_option
@click.option("-P", "--parsable", is_flag=True, help="print fields delimited by |")
@click.option("--noheader", is_flag=True, help="leave the header out")
@click.pass_obj
def show(settings: Settings, name: str | None, user: str | None, **form: Any) -> None:
    """Show waiting stages in the order in which they get nodes, or the stages of one pipeline.

    You see your own jobs; others' are counted.

    Example: workhorse queue --pipeline llama
    """
    now, me = time.time(), _myself()
    everybody = os.geteuid() == 0 or me == "workhorse"
    if user and user != me and not everybody:
        raise UsageError(f"-u {user}: only root and the service user see others' jobs")
    whom = user or (None if everybody else me)
    if name is not None:
        _show_pipeline(name, whom or me, now, form, _seen(settings))
        return
    found = _with_details(jobs.load())
    past = _past(settings, whom, found, now)
    shown = queue_view.waiting_stages(found, settings, now, method=_method(settings), past=past, user=whom)
    plain = not (form["as_json"] or form["parsable"])
    if plain and not shown.stages:
        click.echo("no stage is waiting" if user is None else f"no stage of {one_line(user)} is waiting")
    else:
        _print(STAGE_COLUMNS, [_stage_cells(s) for s in shown.stages], [s._asdict() for s in shown.stages], form)
        if plain and not form["noheader"]:
            click.echo(LEGEND)
    if shown.others and plain:
        click.echo(f"and {shown.others} of others")


def _myself() -> str:
    """Who asks, by the system and not by the environment, which says what its user likes."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _with_details(found: list[jobs.Job]) -> list[jobs.Job]:
    known = jobs.details(job.id for job in found if job.pending)
    return [job._replace(details=known.get(job.id)) for job in found]


def _past(settings: Settings, user: str | None, found: list[jobs.Job], now: float) -> queue_view.Past:
    """What slurmctld has forgotten: from dispatch's memory for those who may read it, else from one's own accounting."""
    try:
        if user is None:
            return queue_view.past_of_state(tracking.read_state(settings["dispatch.state"]), found, now)
        return queue_view.past_of_user(_history(user), found, user, _seen(settings))
    except (SlurmError, SnapshotError):
        return queue_view.Past()


def _history(user: str) -> list[jobs.PastJob]:
    return jobs.history(user, HISTORY_DAYS)


def _seen(settings: Settings) -> dict[int, int]:
    """Chains that dispatch has seen; none where it isn't heard of."""
    from ..published.snapshot import read_live  # noqa: PLC0415
    from .nodes import trusted_uids  # noqa: PLC0415

    try:
        chains = read_live(settings["publish.path"], trusted_uids=trusted_uids()).chains
    except SnapshotError:
        return {}
    return {int(job): int(first) for job, first in chains.items() if str(job).isdecimal()}


def _method(settings: Settings) -> str:
    from ..published.snapshot import read_scores  # noqa: PLC0415
    from .nodes import trusted_uids  # noqa: PLC0415

    try:
        return read_scores(settings["publish.path"], trusted_uids=trusted_uids()).method
    except SnapshotError:
        return str(settings["scoring.method"])


def _show_pipeline(name: str, user: str, now: float, form: dict[str, Any], seen: dict[int, int]) -> None:
    try:
        past = _history(user)
    except SlurmError as err:
        click.echo(f"workhorse queue: finished stages are missing: {err}", err=True)
        past = []
    parts = queue_view.pipeline_parts(name, jobs.load(), past, user, now, seen=seen)
    if not parts:
        raise InputError(f"--pipeline {name}: {user} has no such pipeline; `workhorse queue` shows names and job ids")
    _print(PART_COLUMNS, [_part_cells(p) for p in parts], [p._asdict() for p in parts], form)


def _stage_cells(stage: Stage) -> list[str]:
    return [
        stage.job, stage.user, stage.name, stage.pipeline, str(stage.nodes), f"{stage.demand / 1024:.0f}", f"{stage.wait:.2f}",
        f"{stage.completion:.3f}", f"{stage.urgency:.3g}", f"{stage.priority:.3g}", f"{stage.invested:.2f}", stage.reason,
    ]  # fmt: skip


def _part_cells(part: Part) -> list[str]:
    turn = "next" if part.turn else f"after {part.after}" if part.after else ""
    turn = f"never: {part.never} ended otherwise" if part.never else turn
    return [part.job, part.name, part.state, str(part.width), part.nodes, f"{part.hours:.2f}", f"{part.node_hours:.2f}", turn]


def _print(titles: Sequence[str], cells: list[list[str]], data: list[dict[str, Any]], form: dict[str, Any]) -> None:
    """Names come from users: control characters never reach a terminal, `|` and line breaks never a parsable line."""
    if form["as_json"]:
        click.echo(json.dumps(data, indent=1))
        return
    header = [] if form["noheader"] else [list(titles)]
    if form["parsable"]:
        for line in header + cells:
            click.echo("|".join(one_line(cell).replace("|", "\\x7c") for cell in line))
        return
    lines = header + [[one_line(cell)[:40] for cell in line] for line in cells]
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(titles))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
