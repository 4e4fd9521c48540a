"""Dumps that someone else made: `sacct -p` or `-P` output with any delimiter → rows of text.

Rows that free text has spread over fields or lines are put together again where that has one answer (see `repair`);
the others are rejected.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from typing import IO

from slurm_hook.common.errors import InputError
from slurm_hook.common.terminal import one_line

from . import records
from .repair import ID, Fitter

_MAX_LINES = 200  # no row is spread over more
_BLOCK = 1 << 18
_NO_TEXT = (  # how a file begins that some program has to read first
    (b"\x1f\x8b", "compressed; give it through a pipe: `zcat"),
    (b"BZh", "compressed; give it through a pipe: `bzcat"),
    (b"\xfd7zXZ", "compressed; give it through a pipe: `xzcat"),
    (b"\x28\xb5\x2f\xfd", "compressed; give it through a pipe: `zstdcat"),
    (codecs.BOM_UTF16_LE, "UTF-16, as PowerShell writes it; give it through a pipe: `iconv -f UTF-16 -t UTF-8"),
    (codecs.BOM_UTF16_BE, "UTF-16, as PowerShell writes it; give it through a pipe: `iconv -f UTF-16 -t UTF-8"),
)
_KNOWN = frozenset(n.lower() for f in records.FIELDS for n in (f.name, *f.instead))


def open_dump(path: str) -> TextIOWrapper:
    """Open a dump ("-": stdin) so that any bytes survive and only a line feed ends a line. A byte order mark is no part of it.

    Raises InputError.
    """
    if not path:
        raise InputError("--file '': an empty path; name a dump, or - for stdin")
    try:
        source = 0 if path == "-" else path
        file = open(source, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=path != "-")  # noqa: SIM115
        begin = file.buffer.peek(8)  # type: ignore[attr-defined]
        if begin.startswith(codecs.BOM_UTF8):
            file.buffer.read(3)
    except OSError as err:
        raise InputError(f"{path}: can't be read ({err.strerror}); name a dump that can, or - for stdin") from err
    for magic, what in _NO_TEXT:
        if begin.startswith(magic):
            file.close()
            raise InputError(f"{path}: {what} {path} | workhorse … -`")
    return file


class Dump:
    """One dump: its header and how its rows end."""

    def __init__(self, file: IO[str], delimiter: str = "|", fields: Sequence[str] = ()) -> None:
        """fields: names of the columns where the dump has no header. Raises InputError when there are none."""
        if not delimiter or "\n" in delimiter:
            raise InputError(f"--delimiter {delimiter!r}: must be a character or more, and no line break")
        self._file, self.delimiter, self.headless = file, delimiter, bool(fields)
        self._first: str | None = None
        line = file.readline().removeprefix("\ufeff")  # where a pipe gave the byte order mark in pieces
        self._end = "\r\n" if line.endswith("\r\n") else "\n"
        line = line.removesuffix(self._end)
        if fields:
            self.header, self._first = [f.strip() for f in fields], line
            self.trailing = len(line.split(delimiter)) == len(fields) + 1 and line.endswith(delimiter)
        else:
            self.trailing = line.endswith(delimiter)
            self.header = [name.strip() for name in line.removesuffix(delimiter).split(delimiter)]
        _check_header(self.header, delimiter)
        names = [name.lower() for name in self.header]
        self.fitter = Fitter(names, delimiter, known=_KNOWN, trailing=self.trailing)
        self.id_at = next(i for i, n in enumerate(names) if n in ("jobidraw", "jobid"))
        self._kept_at = [i for i, n in enumerate(names) if n in _KNOWN and n != "jobname"]
        self._name_at = names.index("jobname") if "jobname" in names else None
        # free text that may not be kept: where it has spread, its pieces stand in other columns
        self.private = any(free and n not in _KNOWN for free, n in zip(self.fitter.free, names))

    def rows(self, reject: Callable[[records.Reject], None]) -> Iterator[list[str]]:
        """The rows, each as wide as the header. What can't be put together goes to `reject`."""
        joiner = _Joiner(self, reject)
        for lines in self._blocks():
            rows = [line.split(self.delimiter) for line in lines]
            if joiner.idle and self._all_whole(rows):  # nearly always: no look at each line's neighbours
                done = joiner.take_rows(rows)
                yield from map(self._out, done) if self.trailing else done
                continue
            for line, row in zip(lines, rows):
                before = joiner.take(line, row)
                if before is not None:
                    yield self._out(before)
        last = joiner.finish()
        if last is not None:
            yield self._out(last)

    def whole(self, row: list[str]) -> bool:
        """As many fields as the header has, and where the id belongs a number."""
        if len(row) != self.fitter.width or not row[self.id_at][:1].isdigit() or (self.trailing and row[-1]):
            return False
        return not self.private or self.fitter.is_row(row)

    def _all_whole(self, rows: list[list[str]]) -> bool:
        """The same of many at once."""
        if self.private:
            return bool(rows) and self.fitter.tell_rows(rows) and self.fitter.is_row(rows[-1])
        width, at = self.fitter.width, self.id_at
        begins = [row[at][:1] for row in rows if len(row) == width]
        return (
            len(begins) == len(rows) and all(begins) and "".join(begins).isdigit()
            and not (self.trailing and any(row[-1] for row in rows))
        )  # fmt: skip

    def says_nothing(self, line: str, row: list[str]) -> bool:
        """An empty line that no free text can own, or the header again where dumps were joined."""
        if not line:
            return not self.fitter.free[-1]
        return [row[0].removeprefix("\ufeff"), *row[1 : len(self.header)]] == self.header

    def starts(self, fields: Sequence[str]) -> bool:
        """A row begins here, as far as its id tells."""
        return len(fields) > self.id_at and ID.fullmatch(fields[self.id_at]) is not None

    def same(self, fits: Sequence[list[str]]) -> bool:
        """All ways to put a row together say the same in the fields that are kept, names apart."""
        return len({tuple([row[i] for i in self._kept_at]) for row in fits}) == 1

    def chosen(self, fits: Sequence[list[str]], fields: Sequence[str]) -> list[str] | None:
        """The row that these fields make, None where the ways to put it together differ in more than names.

        Beside a field that may not be kept the name is the shortest that it can be: that much is its own.
        """
        if not self.same(fits):
            return None
        short = self.fitter.fits(fields, self._name_at) if self.private and self._name_at is not None else fits
        return short[0] if self.same([short[0], fits[0]]) else fits[0]

    def with_rest(self, row: list[str], lines: Sequence[str]) -> list[str]:
        """A row whose last field goes on over these lines.

        Where they may be of a field that may not be kept, in this row or in the next, the name gets nothing of them.
        """
        if not self.private or self._name_at != len(self.header) - 1:
            return [*row[:-1], "\n".join([row[-1], *lines])]
        if self.fitter.free[0]:
            return row
        fields = "\n".join([self.delimiter.join(row), *lines]).split(self.delimiter)
        fits = self.fitter.fits(fields, self._name_at)
        return fits[0] if fits and self.same([fits[0], row]) else row

    def go_on(self, lines: Sequence[str]) -> bool:
        """These lines are one row, of which the first ones are perhaps what may not be kept, and so no rest of a name."""
        return self.private and bool(self.fitter.fits("\n".join(lines).split(self.delimiter)))

    def shown(self, fields: Sequence[str]) -> str:
        """What a reject may show: nothing where a piece of what may not be kept could be in it."""
        return "" if self.private else self.delimiter.join(fields)

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
        return row[:-1] if self.trailing else row


class _Joiner:
    """Puts the lines of one dump together: a row waits for what may be the rest of its last field, lines wait for the rest of
    their row."""

    def __init__(self, dump: Dump, reject: Callable[[records.Reject], None]) -> None:
        self._dump, self._reject = dump, reject
        self._held: list[str] | None = None  # the row that waits
        self._pending: list[str] = []  # lines of a row that is not whole yet
        self._number = 0 if dump.headless else 1  # lines read
        self._since = 0  # line at which the pending ones begin

    @property
    def idle(self) -> bool:
        """No line waits for the rest of its row."""
        return not self._pending

    def take_rows(self, rows: list[list[str]]) -> list[list[str]]:
        """Whole rows, at least one; returns those that are done."""
        self._number += len(rows)
        if self._held is not None:
            rows.insert(0, self._held)
        self._held = rows.pop()
        return rows

    def take(self, line: str, row: list[str]) -> list[str] | None:
        """One more line, as it is and split; returns the row before it when that is done."""
        self._number += 1
        dump, pending = self._dump, self._pending
        if dump.whole(row) and (not pending or dump.fitter.is_row(row)):
            self._give_up()
            return self._swap(row)
        if (line or not pending) and dump.says_nothing(line, row):
            return None
        begins = pending and dump.starts(row) and not dump.starts(pending[0].split(dump.delimiter))
        if begins and not dump.go_on([*pending, line]):
            self._give_up()
        return self._add(line, row)

    def _add(self, line: str, row: list[str]) -> list[str] | None:
        """A line that is no row by itself, as far as one can see."""
        if not self._pending:
            self._since = self._number
        self._pending.append(line)
        fields = "\n".join(self._pending).split(self._dump.delimiter)
        fits = self._dump.fitter.fits(fields)
        if fits:
            self._pending = []
            chosen = self._dump.chosen(fits, fields)
            if chosen is None:
                self._refuse("too many fields, and more than one way to put them together", fields)
            return self._swap(chosen)
        if len(self._pending) > 1 and self._dump.whole(row):  # odd as it is, it is no part of what came before
            self._pending.pop()
            self._give_up()
            return self._swap(row)
        if len(self._pending) > _MAX_LINES:
            self._give_up()
        return None

    def finish(self) -> list[str] | None:
        """The end: the last row."""
        self._give_up()
        return self._held

    def _swap(self, row: list[str] | None) -> list[str] | None:
        done, self._held = self._held, row
        return done

    def _give_up(self) -> None:
        """Lines that don't make a row: the rest of the last row's free text, or a broken row to reject."""
        lines, self._pending = self._pending, []
        if not lines:
            return
        dump, fields = self._dump, lines[0].split(self._dump.delimiter)
        if self._held is not None and dump.fitter.free[-1] and not dump.starts(fields):
            self._held = dump.with_rest(self._held, lines)
        elif any(lines):
            self._refuse(f"{len(fields)} fields instead of {dump.fitter.width}, and no way to put it together", fields)

    def _refuse(self, reason: str, fields: Sequence[str]) -> None:
        self._reject(records.Reject(reason, f"line {self._since}: {self._dump.shown(fields)}".rstrip()))


# fields without which a history means less; one of those named together is enough
_WANTED: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("JobID",),
        "tasks of arrays and parts of het jobs count as jobs of their own, and again where a dump has their JobID alone",
    ),
    (("Start",), "no job is known to have run, and nothing counts"),
    (("End", "Elapsed"), "what has ended counts as running"),
    (("User",), "all jobs count as one user's, so that no node stands out by failures of unknown cause"),
    (("JobName",), "all work of a user counts as of one kind"),
    (("AllocTRES", "ReqMem"), "demand for memory isn't known, nor how full nodes were"),
    (("AllocTRES",), "GPUs of jobs aren't known"),
    (("NNodes", "AllocTRES"), "how many nodes a job had isn't known, nor what its failure costs"),
)


def lacking(header: Sequence[str]) -> dict[str, str]:
    """What of a history a dump with this header can't give: names of fields → what it means that they are missing."""
    at = records.column_positions(header)
    same = {name: field.name for field in records.FIELDS for name in (field.name, *field.instead)}
    return {" or ".join(names): why for names, why in _WANTED if all(at[same[name]] < 0 for name in names)}


def _check_header(header: Sequence[str], delimiter: str) -> None:
    names = {name.lower() for name in header}
    mend = "name the fields with --fields, or the delimiter with --delimiter"
    if not any(header):
        raise InputError(f"empty, or without a header; save it with `sacct -P`, or {mend}")
    if not names & {"jobid", "jobidraw"}:
        begin = one_line(delimiter.join(header)[:60])
        raise InputError(f"no field JobIDRaw or JobID at delimiter {delimiter!r} in '{begin}'; {mend}")
    missing = [name for name in ("Submit", "State", "NodeList") if name.lower() not in names]
    if missing:
        raise InputError(f"no field {', '.join(missing)}; save it with these among the fields of `sacct -P -o`")
