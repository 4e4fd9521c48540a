"""The `workhorse` command: one group whose commands are loaded only when called.

A login node has neither numpy nor SQLite tools; the commands of the accounting half are imported when asked for, and
their absence is a message that says what to install.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from contextlib import suppress
from typing import Any

import click

from .. import __version__
from ..common import config
from ..common.errors import ConfigError, StoreError, WorkhorseError
from ..common.terminal import say

# group: {name: (module:attribute, what it does in a line)}
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "For everybody": {
        "plan": ("slurm_hook.cli.plan:plan", "show what would happen to `sbatch ARGUMENTS`, and why"),
        "explain": ("slurm_hook.cli.explain:explain", "tell why a job got its nodes, and who broke it"),
        "nodes": ("slurm_hook.cli.nodes:nodes", "show the nodes by capability, and why each has its score"),
        "queue": ("slurm_hook.cli.queue:show", "show waiting stages in the order in which they get nodes"),
        "submit": ("slurm_hook.cli.submit:submit", "submit a pipeline: jobs that wait for each other"),
    },
    "To look after it": {
        "doctor": ("accounting.cli.doctor:doctor", "look at everything that can be wrong, with the mend"),
        "report": ("accounting.cli.report:report", "write a page: nodes, failures, who broke what, decisions"),
        "lemons": ("accounting.cli.lemons:lemons", "list the nodes to drain, with the evidence"),
        "backtest": ("accounting.cli.lemons:run_backtest", "hold the scores against failures that came after"),
        "effect": ("accounting.cli.effect:effect", "compare steered jobs with the control group"),
        "metrics": ("accounting.cli.metrics:metrics", "print the metrics for Prometheus, or write them"),
    },
    "To tell it something": {
        "mark": ("accounting.cli.marks:mark", "tell what accounting can't know: repaired, bad, ignore, wrong"),
        "import": ("accounting.cli.marks:import_events", "read node events, such as those of health checks"),
        "disable": ("slurm_hook.cli.dispatch:disable", "switch it off on this host, at once"),
        "enable": ("slurm_hook.cli.dispatch:enable", "switch it on again"),
    },
    "What the timers run": {
        "collect": ("accounting.cli.collect:collect", "read accounting, or a dump of it, into the history"),
        "score": ("accounting.cli.scores:score", "score the nodes of the history and publish the result"),
        "refresh": ("accounting.cli.scores:refresh", "collect, score and publish: the nightly run"),
        "dispatch": ("slurm_hook.cli.dispatch:dispatch", "decide anew for stages that wait; each minute"),
        "hints": ("slurm_hook.cli.hints:hints", "write what lets the wrapper skip jobs that aren't ours"),
        "db": ("accounting.cli.db:db", "care for the history: what it could not understand, what is old"),
    },
}
COMMANDS = {name: place for group in GROUPS.values() for name, (place, _) in group.items()}
IN_A_LINE = {name: text for group in GROUPS.values() for name, (_, text) in group.items()}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called or its help is shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as err:
            return _absent(cmd_name, err.name or module)
        command.short_help = IN_A_LINE[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self._in_a_line(ctx, name)) for name in group])

    def _in_a_line(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return (command.short_help if command else "") or ""

    def invoke(self, ctx: click.Context) -> Any:
        """Errors of SQLite, which can come with any row of a damaged history, are told like all others."""
        try:
            return super().invoke(ctx)
        except Exception as err:
            sqlite = sys.modules.get("sqlite3")
            if sqlite is None or not isinstance(err, sqlite.DatabaseError) or isinstance(err, sqlite.ProgrammingError):
                raise
            path = ctx.meta.get("workhorse.history") or ctx.obj.history.path
            raise StoreError(importlib.import_module("accounting.history.sqlite_words").explain(path, err)) from err


EXTRAS = {"pyslurm": "pyslurm"}  # package: the extra that brings it, where it isn't `accounting`


def _absent(name: str, module: str) -> click.Command:
    """Stands for a command whose packages aren't installed here. It takes any arguments and still describes itself."""
    extra = EXTRAS.get(module, "accounting")

    def fail(words: tuple[str, ...]) -> None:
        where = "" if extra in EXTRAS.values() else ", or run it on the controller"
        raise WorkhorseError(f"workhorse {name} needs the package {module}; install slurm-workhorse[{extra}] here{where}")

    said = IN_A_LINE[name]
    needs = f"(needs {module})" if extra in EXTRAS.values() else "(controller only)"
    return click.Command(
        name,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        callback=fail,
        help=f"{said[0].upper()}{said[1:]}.\n\n"
        f"Not usable here: the package {module} is missing; slurm-workhorse[{extra}] brings it.",
        short_help=f"{said} {needs}",
        context_settings={"ignore_unknown_options": True},
    )


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", "config_path", type=click.Path(), help=f"settings file; default: ${config.PATH_VARIABLE} or {config.DEFAULT_PATH}"
)
@click.version_option(__version__, prog_name="workhorse")
@click.pass_context
def workhorse(ctx: click.Context, config_path: str | None) -> None:
    """Reliability-aware placement for large-model training on Slurm."""
    ctx.meta["workhorse.settings_path"] = config_path
    try:
        ctx.obj = config.load(config_path)
    except ConfigError as err:
        if ctx.invoked_subcommand != "doctor":
            raise
        # doctor tells of it among the rest
        ctx.obj, ctx.meta["workhorse.settings_error"] = config.Settings(), str(err)


def main(argv: list[str] | None = None) -> None:
    """Entry point: exceptions of this project become one message on stderr and their exit code."""
    if not _streams():
        say("workhorse: stdout is closed; send it to a file, or to /dev/null", err=True)
        sys.exit(1)
    code = _run(argv)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as err:
            if stream is sys.stdout and code == 0:
                code = _stdout_lost(err)
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or Python's own flush at exit fails again
    sys.exit(code)


def _streams() -> bool:
    """Make sure that no file of ours gets the number of a closed standard stream. False where nothing can be printed."""
    closed = []
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            closed.append(number)
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the life of the process
    return 1 not in closed


def _run(argv: list[str] | None) -> int:
    try:
        code = workhorse.main(args=argv, prog_name="workhorse", standalone_mode=False)
    except WorkhorseError as err:
        say(f"workhorse: {err}", err=True)
        return err.exit_code
    except click.ClickException as err:
        with suppress(OSError):
            err.show()
        return err.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("workhorse: interrupted", err=True)
        return 130
    except OSError as err:
        if err.filename is not None or err.errno not in _LOST:  # files that we open have names
            raise
        return _stdout_lost(err)
    return code if isinstance(code, int) else 0


_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def _stdout_lost(err: OSError) -> int:
    say(f"workhorse: stdout can't be written ({err.strerror})", err=True)
    return 1


if __name__ == "__main__":
    main()
