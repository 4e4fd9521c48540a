"""`workhorse dispatch`: one pass over the waiting stages, or one each period."""

from __future__ import annotations

import os

import click

from . import passes, watching
from .errors import UsageError, WorkhorseError
from .light import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import Settings
    from .passes import Report


@click.command()
@click.option("--watch", is_flag=True, help="a pass each [dispatch] period, until ended; else one pass")
@click.option("--release", is_flag=True, help="take all our excludes off waiting jobs, and do nothing else")
@click.option("-q", "--quiet", is_flag=True, help="say nothing but problems")
@click.pass_obj
def dispatch(settings: Settings, watch: bool, release: bool, quiet: bool) -> None:
    """Decide anew for stages that wait, and tell submissions the state of the cluster (live.json).

    Works in the modes avoid and steer; changes nothing but the excluded nodes of waiting jobs. Run it as the service
    user, from the systemd timer or cron.

    Example: workhorse dispatch
    """
    if watch and release:
        raise UsageError("--watch and --release exclude each other; leave one out")
    if release:
        report = passes.release(settings)
        _tell(report, quiet)
        if report.problems:
            raise WorkhorseError("some of our excludes could not be taken off (above); run it again")
    elif watch:
        watching.watch(settings, lambda report: _tell(report, quiet))
    else:
        report = passes.one_pass(settings)
        _tell(report, quiet)
        if settings["steer.mode"] not in passes.STEERING and not quiet:
            click.echo(f"mode {settings['steer.mode']}: no excluded nodes are changed ([steer] mode avoid or steer does it)")


def _tell(report: Report, quiet: bool) -> None:
    for problem in report.problems:
        click.echo(f"workhorse dispatch: {problem}", err=True)
    if not quiet:
        more = f" left={report.left}" if report.left else ""
        click.echo(f"waiting={report.waiting} changed={report.applied} started_meanwhile={report.started}{more}")


@click.command()
@click.pass_obj
def disable(settings: Settings) -> None:
    """Switch submissions and dispatch off on this host, and take all our excludes off waiting jobs.

    Writes the file `disable` beside the settings file, which other hosts don't see: run it on each login node. Where no
    Slurm answers, the file is written all the same and the exit code is 69.

    Example: workhorse disable
    """
    path = passes.disable_path(settings)
    _write(path)
    click.echo(f"{path} is written: submissions go through untouched from now on")
    report = passes.release(settings)
    _tell(report, quiet=True)
    click.echo(f"jobs whose excluded nodes were given back: {report.applied}")


@click.command()
@click.pass_obj
def enable(settings: Settings) -> None:
    """Switch submissions and dispatch on again on this host.

    Example: workhorse enable
    """
    path = passes.disable_path(settings)
    try:
        os.unlink(path)
    except FileNotFoundError:
        click.echo(f"{path} does not exist: nothing was disabled here")
    except OSError as err:
        raise UsageError(f"{path} can't be removed ({err.strerror}); run this as root") from err
    else:
        click.echo(f"{path} is gone: mode {settings['steer.mode']} counts again")


def _write(path: str) -> None:
    try:
        with open(path, "a", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)  # whatever root's umask: submissions run as their users
    except OSError as err:
        raise UsageError(f"{path} can't be written ({err.strerror}); run this as root") from err
