"""The `workhorse` command: one group whose commands are loaded only when called.

A login node has neither numpy nor SQLite tools; the commands of the accounting half are imported when asked for, and
their absence is a message that says what to install.
"""

from __future__ import annotations

import importlib
import sys

import click

from . import __version__, config
from .errors import ConfigError, WorkhorseError

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


def _absent(name: str, module: str) -> click.Command:
    """Stands for a command whose packages aren't installed here."""

    def fail() -> None:
        raise WorkhorseError(f"workhorse {name} needs the package {module}; install slurm-workhorse[accounting] here")

    return click.Command(name, callback=fail, short_help=f"(needs {module})", context_settings={"ignore_unknown_options": True})


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
    try:
        code = workhorse.main(args=argv, prog_name="workhorse", standalone_mode=False)
    except WorkhorseError as err:
        click.echo(f"workhorse: {printable(str(err))}", err=True)
        sys.exit(err.exit_code)
    except click.ClickException as err:
        err.show()
        sys.exit(err.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("workhorse: interrupted", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def printable(text: str) -> str:
    """Text without control characters and broken bytes: names that users chose may hold terminal escapes."""
    return "".join(ch if ch.isprintable() or ch == "\n" else f"\\x{ord(ch):02x}" for ch in text)


if __name__ == "__main__":
    main()
