"""`workhorse dispatch`: one pass over the waiting stages, or one each period."""

from __future__ import annotations

import os

import click

from ..common import installed
from ..common.config import STEERING
from ..common.errors import UsageError, WorkhorseError
from ..common.record import TYPE_CHECKING
from ..common.terminal import json_option, say, tell
from ..dispatch import daemon, passes

if TYPE_CHECKING:
    from ..common.config import Settings
    from ..dispatch.passes import Report


@click.command()
@click.option("--watch", is_flag=True, help="a pass each [dispatch] period, until ended; else one pass")
@click.option("--release", is_flag=True, help="take all our excludes off waiting jobs, and do nothing else")
@click.option("-q", "--quiet", is_flag=True, help="say nothing but problems")
@json_option
@click.pass_obj
def dispatch(settings: Settings, watch: bool, release: bool, quiet: bool, as_json: bool) -> None:
    """Decide anew for stages that wait, and tell submissions the state of the cluster (live.json).

    Works in the modes avoid and steer; changes nothing but the excluded nodes of waiting jobs. Run it as the service
    user, from the systemd timer or cron. With --json --watch: one object a line for each pass.

    Example: workhorse dispatch
    """
    if watch and release:
        raise UsageError("--watch and --release exclude each other; leave one out")
    if release:
        report = passes.release(settings)
        _tell(report, quiet, as_json)
        if report.problems:
            raise WorkhorseError("some of our excludes could not be taken off (above); run it again")
    elif watch:
        daemon.watch(settings, lambda report: _tell(report, quiet, as_json))
    else:
        _tell(daemon.guarded_pass(settings), quiet, as_json)
        if settings["steer.mode"] not in STEERING and not quiet and not as_json:
            click.echo(f"mode {settings['steer.mode']}: no excluded nodes are changed ([steer] mode avoid or steer does it)")


def _tell(report: Report, quiet: bool, as_json: bool = False) -> None:
    for problem in report.problems:
        click.echo(f"workhorse dispatch: {problem}", err=True)
    if not quiet:
        more = f" left={report.left}" if report.left else ""
        words = f"waiting={report.waiting} changed={report.applied} started_meanwhile={report.started}{more}"
        tell(words, _values(report), as_json=as_json)


def _values(report: Report) -> dict[str, object]:
    names = {"applied": "changed", "started": "started_meanwhile"}  # as the line has them
    return {names.get(key, key): value for key, value in report._asdict().items()}


@click.command()
@json_option
@click.pass_obj
def disable(settings: Settings, as_json: bool) -> None:
    """Switch submissions and dispatch off on this host, and take all our excludes off waiting jobs.

    Writes the file `disable` beside the settings file, which other hosts don't see: run it on each login node. Where no
    Slurm answers, the file is written all the same and the exit code is 69.

    Example: workhorse disable
    """
    path = installed.disable_path(settings)
    _write(path)
    values: dict[str, object] = {"path": path, "given_back": None}  # null: it could not be done
    if not as_json:
        say(f"{path} is written: submissions go through untouched from now on")
    try:
        report = passes.release(settings)
    except WorkhorseError:
        if as_json:
            tell("", values, as_json=True)
        raise
    _tell(report, quiet=True)
    values["given_back"] = report.applied
    tell(f"jobs whose excluded nodes were given back: {report.applied}", values, as_json=as_json)


@click.command()
@json_option
@click.pass_obj
def enable(settings: Settings, as_json: bool) -> None:
    """Switch submissions and dispatch on again on this host.

    Example: workhorse enable
    """
    path, mode = installed.disable_path(settings), settings["steer.mode"]
    try:
        os.unlink(path)
    except FileNotFoundError:
        was, words = False, f"{path} does not exist: nothing was disabled here"
    except OSError as err:
        raise UsageError(f"{path} can't be removed ({err.strerror}); run this as root") from err
    else:
        was, words = True, f"{path} is gone: mode {mode} counts again"
    tell(words, {"path": path, "was_disabled": was, "mode": mode}, as_json=as_json)


def _write(path: str) -> None:
    try:
        with open(path, "a", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)  # whatever root's umask: submissions run as their users
    except OSError as err:
        raise UsageError(f"{path} can't be written ({err.strerror}); run this as root") from err
