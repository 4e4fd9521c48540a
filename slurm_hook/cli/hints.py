"""`workhorse hints`: brings what the settings say of matching jobs to this host, for the sbatch shim."""

from __future__ import annotations

import os

import click

from ..common.config import Settings
from ..common.errors import WorkhorseError
from ..common.installed import trusted_uids
from ..common.terminal import json_option, tell
from ..published.snapshot import read_scores
from ..submit import hints as hinting


@click.command()
@click.option("-o", "--output", "folder", type=click.Path(), help="folder to write the file into; default: print it")
@json_option
@click.pass_obj
def hints(settings: Settings, folder: str | None, as_json: bool) -> None:
    """Print or write the hints by which the sbatch wrapper tells at a glance that a job isn't ours.

    They come from the published settings. A timer on each login node runs this every five minutes; without hints the
    wrapper looks closely at every call, which is right too, only slower.

    Example: workhorse hints -o /var/lib/workhorse/hints
    """
    known = Settings.from_mapping(read_scores(settings.publish.path, trusted_uids=trusted_uids()).settings)
    text, path = hinting.text(known), None
    if folder is not None:
        path = os.path.join(folder, hinting.NAME)
        _write(folder, known, text)
    elif not as_json:
        click.echo(text, nl=False)
    if as_json:
        tell("", {"path": path, "hints": hinting.values(known)}, as_json=True)


def _write(folder: str, known: Settings, text: str) -> None:
    """Write the file where it says something else so far. Raises WorkhorseError."""
    try:
        with open(os.path.join(folder, hinting.NAME), encoding="utf-8") as file:
            if file.read() == text:
                return
    except OSError:
        pass  # not there yet, or not ours to read: writing tells
    try:
        hinting.write(folder, known)
    except OSError as err:
        raise WorkhorseError(f"{folder}: can't be written ({err.strerror}); run as the service user, or make the folder") from err
