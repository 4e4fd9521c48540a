"""Commands on the admin's side of the scores: `lemons`, `explain` (who broke it), `backtest`."""

from __future__ import annotations

import json
import math
import re
import time
from typing import Any

import click

from slurm_hook.common import progress
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import UsageError
from slurm_hook.common.job_ids import check_single
from slurm_hook.common.terminal import count, json_option, one_line, say
from slurm_hook.published.snapshot import WHILE_MARKED

from ..evaluation.backtest import STEPS, Backtest, Value, backtest, read_truth
from ..history.columns import History
from ..history.columns_reader import load_history
from ..history.store import connect_to_read, the_cluster
from ..reports.job_story import FAILED, MARKED, STEP_FAILED, Verdict, who_broke
from ..scoring import carried
from ..scoring.attributed_method import Attribution, attribute
from ..scoring.groups import worse_groups
from ..scoring.lemons import TIMES_MEDIAN, Lemon, describe
from ..scoring.outliers import outliers
from ..scoring.score import model, options
from ..scoring.suspects import suspects
from ..scoring.suspects import words as suspect_words
from ..sources import times
from .collect import database_path

_SPAN = re.compile(r"(?a)(\d+(?:\.\d+)?)([dwh]?)")
LONGEST_DAYS = 36_500.0
REQUEUED_WITHIN = 3600  # s
_UNITS = {"d": 1.0, "": 1.0, "w": 7.0, "h": 1 / 24}


def days(text: str) -> float:
    """60d, 8w, 36h or plain days. Raises UsageError."""
    match = _SPAN.fullmatch(text.strip())
    length = float(match[1]) * _UNITS[match[2]] if match and len(text) < 20 else 0.0
    if not 0 < length <= LONGEST_DAYS:
        raise UsageError(f"{text!r} is not a length of time up to a hundred years; write 60d, 8w or 36h")
    return length


def _source(command: Any) -> Any:
    for option in (
        json_option,
        click.option("--as-of", help="as of this moment instead of now, as in sacct: now-7days, 2026-01-31, …"),
        click.option("-M", "--cluster", help="cluster; default: the only one of the history"),
        click.option("--db", type=click.Path(), help="history database; default: [history] path"),
    ):
        command = option(command)
    return command


def _load(ctx: click.Context, source: dict[str, Any], window_days: float) -> tuple[Any, History]:
    """The database and what it has of the window."""
    path = database_path(ctx, source["db"])
    database = connect_to_read(path)
    now = int(time.time())
    moment = times.past(source["as_of"], now, "--as-of") if source["as_of"] else now
    history = load_history(database, the_cluster(database, path, source["cluster"]), float(moment), window_days, ctx.obj)
    if source["as_of"] and not len(history.tasks):
        raise UsageError(f"--as-of {source['as_of']}: nothing ran in the {window_days:g} days before it, as far as {path} tells")
    return database, history


def _scored(ctx: click.Context, source: dict[str, Any]) -> tuple[History, Attribution]:
    settings: Settings = ctx.obj
    with progress.steps(str(ctx.info_name), 2) as step:
        step("reading the history")
        database, history = _load(ctx, source, settings.scoring.window_days)
        step("scoring")
        chosen = carried.options(database, history.cluster, settings, history.as_of)
        return history, attribute(history, chosen, model(settings))


@click.command()
@_source
@click.pass_context
def lemons(ctx: click.Context, as_json: bool, **source: Any) -> None:
    """List the nodes to drain, with the evidence, what draining would gain, and the command. Drains nothing itself.

    Example: workhorse lemons
    """
    history, scored = _scored(ctx, source)
    found, until = describe(history, scored), suspects(history, scored.failures)
    suspected = {name: float(until[i]) for i, name in enumerate(history.nodes.names) if 0 < until[i] < WHILE_MARKED}
    groups = worse_groups(history, scored, ctx.obj.scoring.chassis)
    watched = outliers(history, scored, frozenset(lemon.name for lemon in found))
    if as_json:
        told = {"lemons": [vars(x) for x in found], "suspects": suspected, "groups": groups}
        click.echo(json.dumps({**told, "outliers": [one._asdict() for one in watched]}, indent=1))
        return
    for lemon in found:
        say(_lemon_text(lemon))
    for name, why in suspect_words(history, scored.failures).items():
        say(f"{name}: {why}")
    for line in [*groups, *(f"{one.name}: {one.words}" for one in watched)]:
        say(line)
    if not found:
        say(f"cluster {history.cluster}: no lemons among {int(history.nodes.here.sum())} nodes")


def _lemon_text(lemon: Lemon) -> str:
    return (
        f"{lemon.name}: {lemon.words} (P = {lemon.probability:.2f} of over {TIMES_MEDIAN:g} × the median)\n"
        f"  draining it: about {lemon.gain:.1f} fewer failures in 30 days\n  {lemon.command}"
    )


def blame(ctx: click.Context, job: str, **source: Any) -> Verdict:
    """Who broke a job (as people name it), for `workhorse explain`. Raises StoreError, UsageError."""
    path = database_path(ctx, source["db"])
    database = connect_to_read(path)
    cluster = the_cluster(database, path, source["cluster"])
    number = job_number(database, cluster, job)
    since = 0 if number is None else in_use_since(database, cluster, number)
    history, scored = _scored(ctx, source)
    how = how_it_failed(database, history.cluster, number)
    return who_broke(history, scored, number, job, how, since=since)


def how_it_failed(db: Any, cluster: str, number: int | None) -> tuple[str, float]:
    """In which words the failure of a job's last attempt is told, and when that was submitted (epoch s): a completed one has
    a failed step, or a person's word against it. What failed before it, and was requeued, plainly failed."""
    of = "FROM attempts a JOIN clusters c ON c.id = a.cluster_id JOIN states s ON s.id = a.state_id"
    mark = "SELECT 1 FROM job_marks m WHERE (m.cluster_id, m.job_id, m.submit) = (a.cluster_id, a.job_id, a.submit)"
    row = db.execute(
        f"SELECT s.name, EXISTS ({mark}), a.submit {of} WHERE c.name = ? AND a.job_id = ? ORDER BY a.submit DESC LIMIT 1",
        (cluster, number),
    ).fetchone()
    if row is None or row[0] != "COMPLETED":
        return FAILED, 0.0
    return (MARKED if row[1] else STEP_FAILED), float(row[2])


def job_number(db: Any, cluster: str, job: str) -> int | None:
    """Slurm's own number of a job named as people see it; of an array or heterogeneous job UsageError: name a member."""
    of = "FROM attempts a JOIN clusters c ON c.id = a.cluster_id WHERE c.name = ?"
    row = db.execute(f"SELECT a.job_id {of} AND a.label = ? ORDER BY a.submit DESC LIMIT 1", (cluster, job)).fetchone()
    if row is None and job.isdigit():
        number = int(job)
        member = db.execute(f"SELECT a.label {of} AND ? IN (a.array_job, a.het_job) LIMIT 1", (cluster, number)).fetchone()
        if member is not None:
            check_single(job, member[0])
        row = db.execute(f"SELECT a.job_id {of} AND a.job_id = ? LIMIT 1", (cluster, number)).fetchone()
    return None if row is None else int(row[0])


def in_use_since(db: Any, cluster: str, number: int) -> int:
    """Submit time of the last job of this number: numbers are used again after a reset or a wrap-around.

    A requeued attempt is submitted when the one before ends; what ended long before is another job.
    """
    rows = db.execute(
        "SELECT a.submit, a.end FROM attempts a JOIN clusters c ON c.id = a.cluster_id WHERE c.name = ? AND a.job_id = ?"
        " ORDER BY a.submit DESC",
        (cluster, number),
    ).fetchall()
    since = rows[0][0]
    for submit, end in rows[1:]:
        if end is not None and end < since - REQUEUED_WITHIN:
            break
        since = submit
    return int(since)


@click.command("backtest")
@_source
@click.option("--train", default="60d", show_default=True, help="length of the part that is scored")
@click.option("--test", "testing", default="30d", show_default=True, help="length of the part that is predicted")
@click.option("--truth", type=click.Path(), help="tickets (CSV: node,time) as labels instead of FailedNode and hardware drains")
@click.pass_context
def run_backtest(ctx: click.Context, as_json: bool, train: str, testing: str, truth: str | None, **source: Any) -> None:
    """Test the scores on the site's own past: how well they predict the node failures that followed.

    Example: workhorse backtest --train 60d --test 30d
    """
    train_days, test_days = days(train), days(testing)
    settings: Settings = ctx.obj
    with progress.steps("backtest", 1 + STEPS) as step:
        step("reading the history")
        _, history = _load(ctx, source, train_days + test_days)
        tickets = _tickets(truth, history) if truth else None
        result = backtest(
            history, train_days, test_days, options=options(settings), model=model(settings),
            truth=tickets, worst_share=settings.steer.max_excluded, step=step,
        )  # fmt: skip
    say(json.dumps(_plain(result), indent=1, allow_nan=False) if as_json else backtest_text(result))


def _tickets(path: str, history: History) -> Any:
    """The tickets of a file; those of nodes that nobody knows are told, as a mistyped name would count for nothing."""
    unknown: list[str] = []
    tickets = read_truth(path, history, unknown)
    if unknown:
        names = one_line(", ".join(sorted(set(unknown))[:5]))
        say(
            f"workhorse: {path}: {count(len(unknown), 'ticket')} of nodes that the history doesn't know left out: {names}",
            err=True,
        )
    return tickets


def _plain(value: Any) -> Any:
    """What JSON can hold: null where there is no number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return _plain(vars(value)) if hasattr(value, "__dict__") else value


def _value(value: Value, form: str = ".2f") -> str:
    return f"{value.value:{form}} [{value.low:{form}}, {value.high:{form}}]"


def backtest_text(result: Backtest) -> str:
    """The result for people."""
    lines = [
        f"{count(result.nodes, 'node')}; scored on {_train_words(result)}, tested on the {result.test_days:g} that followed: "
        f"{count(result.failures, 'node-caused failure')} on {count(result.failed_nodes, 'node')} "
        f"({count(result.dropped_attempts, 'attempt')} of runs that straddle the split left out)",
        "",
    ]
    if not result.failures:
        why = "no node-caused failures in the part that is tested: nothing to compare the scores with"
        return "\n".join([*lines, f"{why}; try a longer --test, or tell of failures with --truth"])
    lines += [
        "predictor      AUC                 failures per hour on the worst 1 % / 3 % / 5 %, over the mean",
    ]
    for key, name in (("scores", "scores"), ("counts", "failure counts")):
        lifts = "  ".join(_value(v, ".1f") for v in result.lift[key].values())
        lines.append(f"{name:14s} {_value(result.auc[key]):19s} {lifts}")
    lines += [f"{'chance':14s} 0.50                1.0  1.0  1.0", "", "calibration, by third of the predicted hazard:"]
    for (n, expected, seen, low, high), name in zip(result.calibration, ("best", "middle", "worst")):
        lines.append(f"  {name:7s} {n} nodes: {expected:.1f} expected, {seen} seen [{low:.1f}, {high:.1f}]")
    lines += ["", _weeks_text(result)]
    return "\n".join(lines)


def _train_words(result: Backtest) -> str:
    """The length of the first part; where the history begins in it, that is what the scores had."""
    asked = f"{result.train_days:g} days"
    if result.covered_days > 0.9 * result.train_days:
        return asked
    return f"{result.covered_days:.1f} days (of {asked}, as the history begins then: a shorter --test leaves more)"


def _weeks_text(result: Backtest) -> str:
    rate = f"{result.per_week:.1f} node-caused failures a week; leaving the worst nodes out would save {result.avoidable:.0%}"
    if result.weeks is None:
        return f"{rate}: no effect to be seen by steering here"
    return f"{rate}: {result.weeks:.0f} weeks of steering after as many without would show it"
