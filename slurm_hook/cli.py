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

from . import __version__, config
from .errors import ConfigError, StoreError, WorkhorseError
from .terminal import say

COMMANDS: dict[str, str] = {
    # name: module:attribute
    "backtest": "accounting.cli_lemons:run_backtest",
    "explain": "slurm_hook.cli_explain:explain",
    "lemons": "accounting.cli_lemons:lemons",
    "collect": "accounting.cli:collect",
    "db": "accounting.cli_db:db",
    "disable": "slurm_hook.cli_dispatch:disable",
    "dispatch": "slurm_hook.cli_dispatch:dispatch",
    "doctor": "accounting.cli_doctor:doctor",
    "import": "accounting.cli_marks:import_events",
    "mark": "accounting.cli_marks:mark",
    "hints": "slurm_hook.cli_hints:hints",
    "metrics": "accounting.cli_metrics:metrics",
    "effect": "accounting.cli_effect:effect",
    "enable": "slurm_hook.cli_dispatch:enable",
    "nodes": "slurm_hook.cli_nodes:nodes",
    "plan": "slurm_hook.cli_plan:plan",
    "queue": "slurm_hook.cli_queue:show",
    "refresh": "accounting.cli_scores:refresh",
    "report": "accounting.cli_report:report",
    "score": "accounting.cli_scores:score",
    "submit": "slurm_hook.cli_submit:submit",
}


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
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Errors of SQLite, which can come with any row of a damaged history, are told like all others."""
        try:
            return super().invoke(ctx)
        except Exception as err:
            sqlite = sys.modules.get("sqlite3")
            if sqlite is None or not isinstance(err, sqlite.DatabaseError) or isinstance(err, sqlite.ProgrammingError):
                raise
            path = ctx.meta.get("workhorse.history") or ctx.obj.history.path
            raise StoreError(importlib.import_module("accounting.sqlite_words").explain(path, err)) from err


EXTRAS = {"pyslurm": "pyslurm"}  # package: the extra that brings it, where it isn't `accounting`


def _absent(name: str, module: str) -> click.Command:
    """Stands for a command whose packages aren't installed here. It takes any arguments and still describes itself."""
    extra = EXTRAS.get(module, "accounting")

    def fail(words: tuple[str, ...]) -> None:
        where = "" if extra in EXTRAS.values() else ", or run it on the controller"
        raise WorkhorseError(f"workhorse {name} needs the package {module}; install slurm-workhorse[{extra}] here{where}")

    said = _description(COMMANDS[name])
    needs = f"(needs {module})" if extra in EXTRAS.values() else "(controller only)"
    return click.Command(
        name,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        callback=fail,
        help=f"{said}\n\nNot usable here: the package {module} is missing; slurm-workhorse[{extra}] brings it.",
        short_help=f"{needs} {said}",
        context_settings={"ignore_unknown_options": True},
    )


def _description(place: str) -> str:
    """First line of a command's docstring, read without importing it."""
    import ast  # noqa: PLC0415 - only where packages are missing
    import importlib.util  # noqa: PLC0415

    module, _, attribute = place.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    with open(spec.origin, encoding="utf-8") as file:
        found = [f for f in ast.parse(file.read()).body if isinstance(f, ast.FunctionDef) and f.name == attribute]
    return ((ast.get_docstring(found[0]) or "") if found else "").partition("\n")[0]


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
