"""Dumps that someone else made: `sacct -p` or `-P` output with any delimiter → rows of text, with repair.

sacct escapes nothing: a job name with a line break spreads a row over lines, one with the delimiter gives it too many
fields. Such a row is put together again by what its columns may hold: dates, numbers, states and ids fit one field only,
free text takes what is left. Where that has no answer, or several that differ, the row is rejected.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from slurm_hook.errors import InputError

from . import records

_MAX_LINES = 200  # no row is spread over more
_MAX_FITS = 50
_FREE = frozenset(
    ("jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir", "extra", "stdin", "stdout", "stderr",
     "container", "constraints", "reservation", "reqreservation", "licenses", "wckey", "mcslabel")
)  # fmt: skip
_TIME = re.compile(r"(?:\d{1,12}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:Z|[+-]\d\d:?\d\d)?|[A-Za-z ]*)")
_ID = re.compile(r"\d+(?:_(?:\d+|\[[\d,:%.-]+\])|\+\d+)?(?:\.[^\n]+)?")
_INTEGER = re.compile(r"\d*")
_SPAN = re.compile(r"(?:\d+-)?[\d:]+(?:\.\d+)?|[A-Za-z_]*")
_SHAPES: dict[str, re.Pattern[str]] = {
    "jobid": _ID, "jobidraw": _ID, "submit": _TIME, "eligible": _TIME, "start": _TIME, "end": _TIME,
    "elapsed": _SPAN, "elapsedraw": _SPAN, "timelimit": _SPAN, "timelimitraw": _SPAN, "cputime": _SPAN, "cputimeraw": _SPAN,
    "totalcpu": _SPAN, "systemcpu": _SPAN, "usercpu": _SPAN, "suspended": _SPAN, "avecpu": _SPAN, "mincpu": _SPAN,
    "state": re.compile(r"[A-Za-z_]+\+?(?: by \S+)?"),
    "exitcode": re.compile(r"(?:\d+:\d+)?"), "derivedexitcode": re.compile(r"(?:\d+:\d+)?"),
    "reqmem": re.compile(r"(?:\d+(?:\.\d+)?[KMGTP]?[nc?]?)?"), "maxrss": re.compile(r"(?:\d+(?:\.\d+)?[KMGTP]?)?"),
    "alloctres": re.compile(r"(?:[\w/:.-]+=[^,\s|]*(?:,|$))*"), "reqtres": re.compile(r"(?:[\w/:.-]+=[^,\s|]*(?:,|$))*"),
    "nodelist": re.compile(r"[\w.,\[\]-]*|None assigned"), "maxrssnode": re.compile(r"[\w.-]*"),
    **dict.fromkeys(("allocnodes", "nnodes", "ncpus", "alloccpus", "reqcpus", "reqnodes", "ntasks", "uid", "gid", "restarts",
                     "dbindex", "associd", "priority", "qosraw", "wckeyid"), _INTEGER),
}  # fmt: skip
_ONE_LINE = re.compile(r"[^\n]*")
_NOTHING = re.compile(r"")


def open_dump(path: str) -> IO[str]:
    """Open a dump ("-": stdin) so that any bytes survive and only a line feed ends a line. Raises InputError."""
    try:
        source = sys.stdin.fileno() if path == "-" else path
        return open(source, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=path != "-")
    except OSError as err:
        raise InputError(f"{path}: can't be read ({err.strerror})") from err


class Dump:
    """One dump: its header and how its rows end."""

    def __init__(self, file: IO[str], delimiter: str = "|", fields: Sequence[str] = ()) -> None:
        """fields: names of the columns where the dump has no header. Raises InputError when there are none."""
        self._file, self._delimiter, self._number = file, delimiter, 0
        self._first: str | None = None
        line = file.readline()
        self._end = "\r\n" if line.endswith("\r\n") else "\n"
        line = line.removesuffix(self._end)
        if fields:
            self.header, self._first = [f.strip() for f in fields], line
            self._trailing = len(line.split(delimiter)) == len(fields) + 1 and line.endswith(delimiter)
        else:
            self._trailing = line.endswith(delimiter)
            self.header = [name.strip() for name in line.removesuffix(delimiter).split(delimiter)]
            self._number = 1
        _check_header(self.header, delimiter)
        names = [name.lower() for name in self.header]
        known = {n.lower() for f in records.FIELDS for n in (f.name, *f.instead)}
        free = [n in _FREE or (n not in known and n not in _SHAPES) for n in names]
        shapes = [_SHAPES.get(n, _ONE_LINE) for n in names]
        if self._trailing:
            free.append(False)
            shapes.append(_NOTHING)
        self._free, self._shapes, self._width = free, shapes, len(shapes)
        self._id_at = next(i for i, n in enumerate(names) if n in ("jobidraw", "jobid"))
        self._kept_at = [i for i, n in enumerate(names) if n in known and n != "jobname"]
        self._shown = next((i for i, n in enumerate(names) if n not in known), len(names))

    def rows(self, reject: Callable[[records.Reject], None]) -> Iterator[list[str]]:
        """The rows, each as wide as the header. What can't be put together goes to `reject`."""
        delimiter, width, id_at = self._delimiter, self._width, self._id_at
        held: list[str] | None = None  # a row waits for the next line: its last field may go on there
        pending: list[str] = []
        for line in self._lines():
            row = line.split(delimiter)
            if len(row) == width and row[id_at][:1].isdigit() and (not pending or self._is_row(row)):
                if pending:
                    held = self._give_up(held, pending, reject)
                    pending = []
                if held is not None:
                    yield self._out(held)
                held = row
                continue
            if (line == "" and not pending and not self._free[-1]) or row[: len(self.header)] == self.header:
                continue
            pending.append(line)
            found = self._fit(pending, reject)
            if found is not None:
                if held is not None:
                    yield self._out(held)
                held, pending = found or None, []
            elif len(pending) > _MAX_LINES:
                held, pending = self._give_up(held, pending, reject), []
        if pending:
            held = self._give_up(held, pending, reject)
        if held is not None:
            yield self._out(held)

    def _lines(self) -> Iterator[str]:
        if self._first is not None:
            self._number = 1
            yield self._first
        end = self._end
        for line in self._file:
            self._number += 1
            yield line.removesuffix(end)

    def _out(self, row: list[str]) -> list[str]:
        return row[:-1] if self._trailing else row

    def _is_row(self, row: Sequence[str]) -> bool:
        return all(shape.fullmatch(text) for shape, text, free in zip(self._shapes, row, self._free) if not free)

    def _give_up(
        self, held: list[str] | None, pending: list[str], reject: Callable[[records.Reject], None]
    ) -> list[str] | None:
        """Lines that don't make a row: the rest of the last row's free text, or a broken row to reject."""
        fields = pending[0].split(self._delimiter)
        starts = len(fields) > self._id_at and _ID.fullmatch(fields[self._id_at])
        if held is not None and self._free[-1] and not starts:
            held[-1] = "\n".join([held[-1], *pending])
            return held
        if any(pending):
            reject(self._reject(f"{len(fields)} fields instead of {self._width}, and no way to put it together", fields))
        return held

    def _reject(self, reason: str, fields: Sequence[str]) -> records.Reject:
        """Only the fields before the first that may not be kept are shown."""
        shown = self._delimiter.join(fields[: self._shown])
        return records.Reject(reason, f"line {self._number}: {shown}")

    def _fit(self, lines: list[str], reject: Callable[[records.Reject], None]) -> list[str] | None:
        """The row that the lines make; None while there is none; empty when it was rejected as ambiguous."""
        fields = "\n".join(lines).split(self._delimiter)
        if len(fields) < self._width:
            return None
        fits = self._fits(fields)
        if not fits:
            return None
        if len({tuple([row[i] for i in self._kept_at]) for row in fits}) > 1:
            reject(self._reject("too many fields, and more than one way to put them together", fields))
            return []
        return fits[0]

    def _fits(self, fields: list[str]) -> list[list[str]]:
        """All ways (at most _MAX_FITS) to give each column one field, or several if it may hold free text."""
        width, count = self._width, len(fields)
        dead: set[tuple[int, int]] = set()
        found: list[list[str]] = []

        def walk(column: int, at: int, row: list[str]) -> bool:
            if column == width:
                if at == count:
                    found.append(row)
                return at == count
            if (column, at) in dead or len(found) >= _MAX_FITS:
                return False
            most = count - at - (width - column - 1) if self._free[column] else 1
            good = False
            for taken in range(1, most + 1):
                text = fields[at] if taken == 1 else self._delimiter.join(fields[at : at + taken])
                if self._free[column] or self._shapes[column].fullmatch(text):
                    good |= walk(column + 1, at + taken, [*row, text])
            if not good:
                dead.add((column, at))
            return good

        walk(0, 0, [])
        return found


def _check_header(header: Sequence[str], delimiter: str) -> None:
    names = {name.lower() for name in header}
    if not names & {"jobid", "jobidraw"}:
        raise InputError(
            f"no field JobIDRaw or JobID at delimiter {delimiter!r} in {delimiter.join(header)[:60]!r};"
            " name the fields with --fields, or the delimiter with --delimiter"
        )
