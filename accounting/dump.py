"""Dumps that someone else made: `sacct -p` or `-P` output with any delimiter → rows of text.

Rows that free text has spread over fields or lines are put together again where that has one answer (see `repair`);
the others are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import IO

from slurm_hook.errors import InputError

from . import records
from .repair import ID, Fitter

_MAX_LINES = 200  # no row is spread over more
_BLOCK = 1 << 18
_KNOWN = frozenset(n.lower() for f in records.FIELDS for n in (f.name, *f.instead))


def open_dump(path: str) -> IO[str]:
    """Open a dump ("-": stdin) so that any bytes survive and only a line feed ends a line. A byte order mark is no part of it.

    Raises InputError.
    """
    if not path:
        raise InputError("--file '': an empty path; name a dump, or - for stdin")
    try:
        source = 0 if path == "-" else path
        return open(source, encoding="utf-8-sig", errors="surrogateescape", newline="\n", closefd=path != "-")
    except OSError as err:
        raise InputError(f"{path}: can't be read ({err.strerror}); name a dump that can, or - for stdin") from err


class Dump:
    """One dump: its header and how its rows end."""

    def __init__(self, file: IO[str], delimiter: str = "|", fields: Sequence[str] = ()) -> None:
        """fields: names of the columns where the dump has no header. Raises InputError when there are none."""
        if not delimiter or "\n" in delimiter:
            raise InputError(f"--delimiter {delimiter!r}: must be a character or more, and no line break")
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
        self._fitter = Fitter(names, delimiter, known=_KNOWN, trailing=self._trailing)
        self._id_at = next(i for i, n in enumerate(names) if n in ("jobidraw", "jobid"))
        self._kept_at = [i for i, n in enumerate(names) if n in _KNOWN and n != "jobname"]
        self._shown = next((i for i, n in enumerate(names) if n not in _KNOWN), len(names))

    def rows(self, reject: Callable[[records.Reject], None]) -> Iterator[list[str]]:
        """The rows, each as wide as the header. What can't be put together goes to `reject`."""
        held: list[str] | None = None  # a row waits for the next line: its last field may go on there
        pending: list[str] = []  # lines of a row that is not whole yet
        for lines in self._blocks():
            rows = [line.split(self._delimiter) for line in lines]
            if not pending and self._all_whole(rows):  # nearly always: no look at each line's neighbours
                if held is not None:
                    rows.insert(0, held)
                held = rows.pop()
                yield from map(self._out, rows) if self._trailing else rows
                self._number += len(lines)
                continue
            for line, row in zip(lines, rows):
                self._number += 1
                held, pending, done = self._next(line, row, held, pending, reject)
                if done is not None:
                    yield self._out(done)
        held = self._give_up(held, pending, reject)
        if held is not None:
            yield self._out(held)

    def _whole(self, row: list[str]) -> bool:
        return len(row) == self._fitter.width and row[self._id_at][:1].isdigit() and not (self._trailing and row[-1])

    def _all_whole(self, rows: list[list[str]]) -> bool:
        """The same of many at once."""
        width, at = self._fitter.width, self._id_at
        begins = [row[at][:1] for row in rows if len(row) == width]
        return (
            len(begins) == len(rows) and all(begins) and "".join(begins).isdigit()
            and not (self._trailing and any(row[-1] for row in rows))
        )  # fmt: skip

    def _next(
        self,
        line: str,
        row: list[str],
        held: list[str] | None,
        pending: list[str],
        reject: Callable[[records.Reject], None],
    ) -> tuple[list[str] | None, list[str], list[str] | None]:
        """One more line → the held row, the lines that wait, and a row that is done."""
        if self._whole(row) and (not pending or self._fitter.is_row(row)):
            return row, [], self._give_up(held, pending, reject)
        held, pending, following = self._broken(line, row, held, pending, reject)
        if following is None:
            return held, pending, None
        return following or None, pending, held

    def _broken(
        self,
        line: str,
        row: list[str],
        held: list[str] | None,
        pending: list[str],
        reject: Callable[[records.Reject], None],
    ) -> tuple[list[str] | None, list[str], list[str] | None]:
        """A line that is no row by itself → the held row, the lines that wait, and the row they make if they make one."""
        if self._says_nothing(line, row, pending):
            return held, pending, None
        if pending and self._starts(row) and not self._starts(pending[0].split(self._delimiter)):
            held, pending = self._give_up(held, pending, reject), []
        pending = [*pending, line]
        found = self._fit(pending, reject)
        if found is None and len(pending) > _MAX_LINES:
            return self._give_up(held, pending, reject), [], None
        return held, [] if found is not None else pending, found

    def _says_nothing(self, line: str, row: list[str], pending: list[str]) -> bool:
        """An empty line that no free text can own, or the header again where dumps were joined."""
        if not line:
            return not pending and not self._fitter.free[-1]
        return [row[0].removeprefix("\ufeff"), *row[1 : len(self.header)]] == self.header

    def _blocks(self) -> Iterator[list[str]]:
        """The lines after the header, many at a time."""
        rest = "" if self._first is None else self._first + self._end
        while block := self._file.read(_BLOCK):
            lines = (rest + block).split("\n")
            rest = lines.pop()
            yield [line.removesuffix("\r") for line in lines] if self._end == "\r\n" else lines
        if rest:
            yield rest.split("\n") if rest[-1] != "\n" else [rest.removesuffix(self._end)]

    def _out(self, row: list[str]) -> list[str]:
        return row[:-1] if self._trailing else row

    def _starts(self, fields: Sequence[str]) -> bool:
        """A row begins here, as far as its id tells."""
        return len(fields) > self._id_at and ID.fullmatch(fields[self._id_at]) is not None

    def _give_up(self, held: list[str] | None, pending: list[str], reject: Callable[[records.Reject], None]) -> list[str] | None:
        """Lines that don't make a row: the rest of the last row's free text, or a broken row to reject."""
        if not pending:
            return held
        fields = pending[0].split(self._delimiter)
        if held is not None and self._fitter.free[-1] and not self._starts(fields):
            held[-1] = "\n".join([held[-1], *pending])
            return held
        if any(pending):
            reject(self._reject(f"{len(fields)} fields instead of {self._fitter.width}, and no way to put it together", fields))
        return held

    def _reject(self, reason: str, fields: Sequence[str]) -> records.Reject:
        """Only the fields before the first that may not be kept are shown."""
        shown = self._delimiter.join(fields[: self._shown])
        return records.Reject(reason, f"line {self._number}: {shown}")

    def _fit(self, lines: list[str], reject: Callable[[records.Reject], None]) -> list[str] | None:
        """The row that the lines make; None while there is none; empty when it was rejected as ambiguous."""
        fields = "\n".join(lines).split(self._delimiter)
        if len(fields) < self._fitter.width:
            return None
        fits = self._fitter.fits(fields)
        if not fits:
            return None
        if len({tuple([row[i] for i in self._kept_at]) for row in fits}) > 1:
            reject(self._reject("too many fields, and more than one way to put them together", fields))
            return []
        return fits[0]


def _check_header(header: Sequence[str], delimiter: str) -> None:
    names = {name.lower() for name in header}
    mend = "name the fields with --fields, or the delimiter with --delimiter"
    if not any(header):
        raise InputError(f"empty, or without a header; save it with `sacct -P`, or {mend}")
    if not names & {"jobid", "jobidraw"}:
        raise InputError(f"no field JobIDRaw or JobID at delimiter {delimiter!r} in {delimiter.join(header)[:60]!r}; {mend}")
    missing = [name for name in ("Submit", "State", "NodeList") if name.lower() not in names]
    if missing:
        raise InputError(f"no field {', '.join(missing)}; save it with these among the fields of `sacct -P -o`")
