"""The shim's hints: what of the `[match]` rules it can see with shell builtins alone, in a small local file.

Written by the install and by whoever distributes settings to the login nodes; the shim only reads it. Where it is missing
or cut short, the shim looks closely at every call. A hint that is out of date makes it pass by a job, nothing worse.
"""

from __future__ import annotations

import os

from ..common.errors import ConfigError
from ..common.record import TYPE_CHECKING

if TYPE_CHECKING:
    from ..common.config import Settings

NAME = "hints"


def values(settings: Settings) -> dict[str, object]:
    """What the file tells, by key. Raises ConfigError for a value that doesn't fit on a line."""
    rows = {
        "mode": settings["steer.mode"],
        "min_nodes": settings["match.min_nodes"],
        "min_gpus": settings["match.min_gpus"],
        "name": settings["match.name"],
        "comment_prefix": settings["match.comment_prefix"],
        "directives": int(settings["match.directives"]),
    }
    for key, value in rows.items():
        if not str(value).isprintable():
            raise ConfigError(f"match.{key} = {value!r}: can't hold control characters")
    return {key: value for key, value in rows.items() if value != ""}


def text(settings: Settings) -> str:
    """The file's content: one `key value` a line, `end` last. Raises as `values`."""
    return "".join(f"{key} {value}\n" for key, value in values(settings).items()) + "end\n"


def write(folder: str, settings: Settings) -> str:
    """Write the hints, whole or not at all; returns the path."""
    path, temporary = os.path.join(folder, NAME), os.path.join(folder, f".{NAME}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text(settings))
        os.fchmod(file.fileno(), 0o644)
    os.replace(temporary, path)
    return path
