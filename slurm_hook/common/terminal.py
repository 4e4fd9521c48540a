"""Text for terminals: names come from users, sites and files, and may hold escapes, line breaks and broken bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="print JSON")  # every command has it


def printable(text: str) -> str:
    """Text without control characters and broken bytes; line breaks stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(ch if ch.isprintable() or ch == "\n" else _escaped(ord(ch)) for ch in text)


def _escaped(code: int) -> str:
    """A byte that was no UTF-8 (PEP 383) as that byte, any other as its code point."""
    return f"\\x{code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code:02x}"


def one_line(text: str) -> str:
    """The same for a cell of a table or a line of its own: line breaks are shown too."""
    return printable(text).replace("\n", "\\x0a")


def count(n: int, what: str) -> str:
    """A number of things: 1 job, 2,000 jobs."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def say(text: str, *, err: bool = False) -> None:
    """Print text of our own making that holds names of others. Line breaks in it must be ours.

    Raises OSError where stdout can't be written.
    """
    if not err:
        click.echo(printable(text))
        return
    with suppress(OSError):  # what is done is done all the same where nobody can be told
        click.echo(printable(text), err=True)


def tell(words: str, values: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what a command has done: its closing line, or the same values as one JSON object on a line.

    Raises ValueError for a number that JSON has no word for, OSError where stdout can't be written.
    """
    if as_json:
        click.echo(json.dumps(values, allow_nan=False))
    else:
        say(words)
