"""The command reference (Markdown) and the man page, written from the click commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import click

from slurm_hook import __version__
from slurm_hook.cli.group import COMMANDS, GROUPS, workhorse
from slurm_hook.common import config
from slurm_hook.common.errors import EXIT_CODES

PAGE_DATE = "2026"
FILES = (
    (config.DEFAULT_PATH, "settings; every one is in it, commented out with its default"),
    ("/var/lib/workhorse/history.db", "task history (SQLite); private: it holds other users' job names"),
    ("/var/lib/workhorse/public/scores.json", "scores of the nodes and the settings of the submit path"),
    ("/var/lib/workhorse/public/live.json", "what dispatch saw at its last pass"),
    ("/etc/workhorse/disable", "if it exists, submissions and dispatch step aside"),
)
VARIABLES = (
    (config.PATH_VARIABLE, f"settings file instead of {config.DEFAULT_PATH}"),
    ("WORKHORSE_MODE", "off: this submission is left alone; a mode no stronger than the site's may be named too"),
    ("NO_COLOR", "no colours in tables"),
)


def commands() -> Iterator[tuple[str, click.Command]]:
    """All commands by full name, those of subgroups as `db vacuum`; in alphabetical order."""
    context = click.Context(workhorse)
    for name in sorted(COMMANDS):
        command = workhorse.get_command(context, name)
        if command is not None:
            yield from _leaves(name, command)


def _leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for sub in sorted(command.commands):
            yield from _leaves(f"{name} {sub}", command.commands[sub])
    else:
        yield name, command


def options(command: click.Command) -> Iterator[tuple[str, str]]:
    """Options of a command: how it is written, and its help with choices and default."""
    for param in command.params:
        if not isinstance(param, click.Option) or param.hidden:
            continue
        value = "" if param.is_flag or param.count else f" {_metavar(param)}"
        names = ", ".join([*param.opts, *param.secondary_opts])
        default = f" [default: {param.default}]" if param.show_default and isinstance(param.default, (str, int, float)) else ""
        yield names + value, (param.help or "") + default


def _metavar(param: click.Parameter) -> str:
    if param.metavar:
        return param.metavar
    if isinstance(param.type, click.Choice):
        return "|".join(str(choice) for choice in param.type.choices)
    return (param.name or "").upper() if isinstance(param, click.Argument) else param.type.name.upper()


def usage(name: str, command: click.Command) -> str:
    """One line: workhorse NAME [OPTIONS] ARGUMENTS."""
    words = [f"workhorse {name} [OPTIONS]"]
    for param in command.params:
        if isinstance(param, click.Argument):
            text = _metavar(param) + ("..." if param.nargs == -1 and not (param.metavar or "").endswith("...") else "")
            words.append(text if param.required else f"[{text}]")
    return " ".join(words)


def _paragraphs(command: click.Command) -> list[str]:
    """Paragraphs of a command's help; one with line breaks is not to be wrapped."""
    # click marks paragraphs that aren't to be wrapped with \b and what isn't for users with \f
    text = (command.help or command.short_help or "").split("\f")[0]
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    return [
        "\n".join(line.strip() for line in part.split("\n")[1:]) if part.startswith("\b\n") else " ".join(part.split())
        for part in parts
    ]


def _prose(command: click.Command) -> list[str]:
    return [paragraph for paragraph in _paragraphs(command) if not paragraph.startswith("Example")]


def examples(command: click.Command) -> list[str]:
    """The command lines of a command's `Example:` paragraphs."""
    found = []
    for paragraph in _paragraphs(command):
        if paragraph.startswith("Example"):
            found += re.findall(r"workhorse .*?(?=$|\s+workhorse )", paragraph)
    return found


def markdown() -> str:
    """The command reference."""
    lines: list[str] = []
    for name, command in commands():
        lines += [f"### workhorse {name}", "", f"`{usage(name, command)}`", ""]
        for paragraph in _prose(command):
            lines += ["```text", paragraph, "```", ""] if "\n" in paragraph else [paragraph, ""]
        rows = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in options(command)]
        if rows:
            lines += ["| option | what |", "|---|---|", *rows, ""]
        lines += ["```sh", *examples(command), "```", ""]
    return "\n".join(lines)


NAMED = {"db": "db rejects, db vacuum"}  # by its commands


def command_list() -> str:
    """The commands with a line for each, in the groups of `workhorse --help`."""
    rows = ["| command | what it does |", "|---|---|"]
    for title, group in GROUPS.items():
        rows.append(f"| **{title}** | |")
        rows += [f"| `workhorse {NAMED.get(name, name)}` | {_cell(text)} |" for name, (_, text) in group.items()]
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def man_page() -> str:
    """workhorse(1)."""
    parts = [
        f'.TH WORKHORSE 1 "{PAGE_DATE}" "slurm-workhorse {__version__}" "User Commands"',
        *_section("NAME", "workhorse - reliability-aware placement for large-model training on Slurm"),
        ".SH SYNOPSIS",
        ".B workhorse",
        "[--config FILE] COMMAND [OPTIONS] [ARGUMENTS]",
        *_section("DESCRIPTION", workhorse.help or ""),
        ".SH COMMANDS",
    ]
    for name, command in commands():
        parts += _man_command(name, command)
    parts += [".SH EXIT STATUS", *_definitions((str(code), text) for code, text in EXIT_CODES)]
    parts += [
        "The exit status of",
        ".B workhorse doctor",
        "is that of a Nagios plugin: 0 fine, 1 warning, 2 critical, 3 unknown.",
    ]
    parts += [".SH ENVIRONMENT", *_definitions(VARIABLES), ".SH FILES", *_definitions(FILES)]
    parts += [".SH SEE ALSO", r"\fBsbatch\fR(1), \fBsacct\fR(1), \fBscontrol\fR(1)"]
    return "\n".join(parts) + "\n"


def _man_command(name: str, command: click.Command) -> list[str]:
    lines = [f".SS {_roff(usage(name, command))}"]
    for number, paragraph in enumerate(_prose(command)):
        lines += [".PP"] * (number > 0)
        lines += [".nf", _roff(paragraph), ".fi"] if "\n" in paragraph else [_roff(paragraph)]
    lines += _definitions(options(command))
    return [*lines, ".PP", "Example:", ".RS 4", ".nf", *map(_roff, examples(command)), ".fi", ".RE"]


def _section(title: str, text: str) -> list[str]:
    return [f".SH {title}", *[_roff(" ".join(part.split())) for part in text.split("\n\n")]]


def _definitions(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [line for name, text in rows for line in (".TP", rf"\fB{_roff(name)}\fR", _roff(" ".join(text.split())))]


def _roff(text: str) -> str:
    """Text that troff prints as it stands."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)
