"""Pythons older than the scorer's that this machine has somewhere, for what has to run on them."""

from __future__ import annotations

import os
from pathlib import Path

OLDER = ("python3.9", "python3.10")


def older() -> dict[str, str]:
    """Path of each of OLDER that is in PATH or among pyenv's versions."""
    places = [Path(folder) for folder in os.environ["PATH"].split(":")] + sorted(Path.home().glob(".pyenv/versions/*/bin"))
    return {name: str(folder / name) for folder in places for name in OLDER if (folder / name).exists()}
