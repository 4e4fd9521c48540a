"""`workhorse doctor`."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from slurm_hook.common import installed
from slurm_hook.common.config import DEFAULT_PATH, PATH_VARIABLE
from slurm_hook.common.errors import UsageError
from slurm_hook.common.terminal import json_option, one_line

from ..doctor import site_checks, slurm_checks
from ..doctor.checks import OK, UNKNOWN, WORDS, Answer, Check, Host, run, verdict

CHECKS = (*slurm_checks.CHECKS, *site_checks.CHECKS)
COLOURS = ("green", "yellow", "red", "magenta")


def host_for(settings: Any, error: str, path: str | None, role: str | None) -> Host:
    """The host as the checks see it: from the note that install.sh left, options before it."""
    note = installed.note()
    user = note.get("user", "workhorse")
    try:
        trusted: tuple[int, ...] = (0, pwd.getpwnam(user).pw_uid)
    except KeyError:
        trusted = (0,)
    source = path or os.environ.get(PATH_VARIABLE) or DEFAULT_PATH
    if not note:  # a checkout is tried out by whoever owns it
        user, trusted = pwd.getpwuid(os.geteuid()).pw_name, (0, os.geteuid())
    role = role or note.get("role", "checkout")
    return Host(
        settings, settings_path=source, settings_error=error, prefix=note.get("prefix", ""), service_user=user,
        role="login" if role == "compute" else role, submits=note.get("submit") == "yes",
        trusted_uids=trusted,
    )  # fmt: skip


@click.command()
@click.option("--check", "names", multiple=True, metavar="NAME", help="only this check (again for more); --list names them")
@click.option("--role", type=click.Choice(["controller", "login"]), help="look at this host as one; default: as installed")
@click.option("--list", "listing", is_flag=True, help="list the checks and what they mean")
@json_option
@click.option("-q", "--quiet", is_flag=True, help="only what is wrong, and the verdict")
@click.pass_context
def doctor(ctx: click.Context, names: Sequence[str], role: str | None, listing: bool, **form: bool) -> None:
    """Look at everything that can be wrong here, and say what it means and how to mend it.

    The first line and the exit code are those of a Nagios plugin: 0 fine, 1 warning, 2 critical, 3 unknown.

    \b
    Examples:
      workhorse doctor
      workhorse doctor --check scores --check dispatcher
    """
    chosen = _chosen(names)
    if listing:
        listed = [{"check": check.name, "means": check.means} for check in chosen]
        click.echo(
            json.dumps(listed, indent=1) if form["as_json"] else "\n".join(f"{c['check']:13} {c['means']}" for c in listed)
        )
        return
    host = host_for(ctx.obj, ctx.meta.get("workhorse.settings_error", ""), ctx.meta.get("workhorse.settings_path"), role)
    if names:  # what is asked for by name is looked at whatever the role
        chosen = [
            check if host.role in check.roles else Check(check.name, check.means, check.run, (host.role,)) for check in chosen
        ]
    # a Slurm that doesn't answer can take a quarter of a minute; rich isn't on login nodes
    answers = _looked_at(chosen, host)
    level = verdict([answer for _, answer in answers])
    _print_json(answers, level) if form["as_json"] else _print_text(answers, level, form["quiet"])
    ctx.exit(level)


def _looked_at(chosen: Sequence[Check], host: Host) -> list[tuple[Check, Answer]]:
    """A Slurm that doesn't answer can take a quarter of a minute; rich isn't on login nodes, and old clicks hide no bar."""
    if not sys.stderr.isatty():
        return run(chosen, host)
    with click.progressbar(chosen, label="doctor", file=sys.stderr, item_show_func=lambda c: c.name if c else "") as checks:
        return run(checks, host)


def _chosen(names: Sequence[str]) -> list[Check]:
    known = {check.name: check for check in CHECKS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"--check {unknown[0]}: no such check; there are {', '.join(known)}")
    return [known[name] for name in names] if names else list(CHECKS)


def _print_json(answers: Sequence[tuple[Check, Answer]], level: int) -> None:
    checks = [
        {
            "check": check.name,
            "means": check.means,
            "level": WORDS[answer.level].lower(),
            "text": answer.text,
            "mend": answer.mend,
        }
        for check, answer in answers
    ]
    click.echo(json.dumps({"level": WORDS[level].lower(), "checks": checks}, indent=1))


def _print_text(answers: Sequence[tuple[Check, Answer]], level: int, quiet: bool) -> None:
    wrong = [(check, answer) for check, answer in answers if answer.level]
    word = WORDS[level].upper()
    names = ", ".join(check.name for check, _ in wrong)
    click.echo(
        f"WORKHORSE {word}: {len(answers) - len(wrong)} of {len(answers)} checks fine" + (f"; look at {names}" if wrong else "")
    )
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    unseen = Counter(answer.mend for _, answer in wrong if answer.level == UNKNOWN)
    for check, answer in wrong if quiet else answers:
        if answer.level == UNKNOWN and unseen[answer.mend] > 1:
            continue  # one cause, told once below
        label = f"{WORDS[answer.level]:8}"
        shown = click.style(label, fg=COLOURS[answer.level]) if coloured else label
        click.echo(f"{shown} {check.name:13} {one_line(answer.text)}")
        if answer.level != OK and answer.mend:
            click.echo(f"{'':8} {'':13} mend: {one_line(answer.mend)}")
    for mend, count in unseen.items():
        if count > 1:
            same = [(check.name, answer.text) for check, answer in wrong if (answer.level, answer.mend) == (UNKNOWN, mend)]
            click.echo(f"{WORDS[UNKNOWN]:8} {count} checks: {', '.join(name for name, _ in same)}")
            click.echo(f"{'':8} {'':13} {one_line(same[0][1])}")
            click.echo(f"{'':8} {'':13} mend: {one_line(mend)}")
