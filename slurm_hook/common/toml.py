"""TOML for the command line, also before Python 3.11. The submit path reads none."""

from __future__ import annotations

from typing import Any


def reader() -> Any:
    """The standard library's tomllib, or tomli where it isn't there yet. Raises ModuleNotFoundError without either."""
    try:
        import tomllib  # noqa: PLC0415
    except ModuleNotFoundError:
        import tomli as tomllib  # type: ignore[import-not-found,no-redef]  # noqa: PLC0415
    return tomllib
