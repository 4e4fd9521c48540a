"""`workhorse dispatch`: one pass over the waiting stages, or one each period."""

from __future__ import annotations

import click

from . import passes
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
        passes.watch(settings, lambda report: _tell(report, quiet))
    else:
        _tell(passes.one_pass(settings), quiet)


def _tell(report: Report, quiet: bool) -> None:
    for problem in report.problems:
        click.echo(f"workhorse dispatch: {problem}", err=True)
    if not quiet:
        more = f" left={report.left}" if report.left else ""
        click.echo(f"waiting={report.waiting} changed={report.applied} started_meanwhile={report.started}{more}")
