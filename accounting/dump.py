"""Dumps that someone else made: `sacct -p` or `-P` output with any delimiter → rows of text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from slurm_hook.errors import InputError

from . import records


def open_dump(path: str) -> IO[str]:
    """Open a dump ("-": stdin) so that any bytes survive and only a line feed ends a line. Raises InputError."""
    try:
        source = sys.stdin.fileno() if path == "-" else path
        return open(source, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=path != "-")
    except OSError as err:
        raise InputError(f"{path}: can't be read ({err.strerror})") from err


def read_header(file: IO[str], delimiter: str) -> list[str]:
    """Field names of the first line. Raises InputError when it doesn't look like sacct's."""
    line = file.readline().rstrip("\r\n").removesuffix(delimiter)
    header = line.split(delimiter)
    known = {n.lower() for f in records.FIELDS for n in (f.name, *f.instead)}
    if not any(name.strip().lower() in known for name in header):
        raise InputError(
            f"the first line {line[:60]!r} has no sacct field names at delimiter {delimiter!r};"
            " name the fields with --fields, or the delimiter with --delimiter"
        )
    return header


def rows(file: IO[str], header: Sequence[str], delimiter: str, reject: Callable[[records.Reject], None]) -> Iterator[list[str]]:
    """Rows of a dump; a row with another number of fields than the header is rejected."""
    width = len(header)
    for number, line in enumerate(file, 2):
        row = line.removesuffix("\n").split(delimiter)
        if len(row) == width + 1 and row[-1] == "":
            row.pop()
        if len(row) == width:
            yield row
        elif line.strip():
            reject(records.Reject(f"{len(row)} fields instead of {width}", f"line {number}"))
