"""Putting a broken dump row together again: which fields of too many belong to which column.

sacct escapes nothing, so free text that holds the delimiter or a line break spreads over fields and lines. Dates,
numbers, states and ids fit one field only; free text takes what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_MAX_FITS = 50
_NEVER = float("inf")

FREE = frozenset(
    ("jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir", "extra", "stdin", "stdout", "stderr",
     "container", "constraints", "reservation", "reqreservation", "licenses", "wckey", "mcslabel")
)  # fmt: skip
ID = re.compile(r"\d+(?:_(?:\d+|\[[\d,:%.-]+\])|\+\d+)?(?:\.[^\n]+)?")
_TIME = re.compile(r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:Z|[+-]\d\d:?\d\d)?|\d{1,12}|Unknown|None|)")
_INTEGER = re.compile(r"\d*")
_SPAN = re.compile(r"(?:\d+-)?[\d:]+(?:\.\d+)?|UNLIMITED|Partition_Limit|Unknown|INVALID|")
_AMOUNT = re.compile(r"(?:-?\d+(?:\.\d+)?[KMGTP]?[nc?]?)?")
_EXIT = re.compile(r"(?:\d+:\d+)?")
_TRES = re.compile(r"(?:[\w/:.-]+=[^,\s|]*(?:,|$))*")
_HOSTS = re.compile(r"[\w.,\[\]-]*|None assigned")
_WORD = re.compile(r"\S*")  # the others hold no blank: accounts, flags, partitions
_WORDS = re.compile(r"[^\n]*")  # but users of other directories do now and then
_NOTHING = re.compile(r"")
_KINDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (ID, "jobid jobidraw"),
    (_TIME, "submit eligible start end"),
    (_SPAN, "elapsed elapsedraw timelimit timelimitraw cputime cputimeraw totalcpu systemcpu usercpu suspended avecpu mincpu"
            " planned plannedcpu plannedcpuraw reserved resvcpu resvcpuraw"),
    (re.compile(r"[A-Za-z_]+\+?(?: by \S+)?"), "state"),
    (_EXIT, "exitcode derivedexitcode"),
    (_AMOUNT, "reqmem maxrss averss avevmsize maxvmsize maxpages avepages maxdiskread maxdiskwrite avediskread avediskwrite"
              " maxrsstask maxvmsizetask maxpagestask maxdiskreadtask maxdiskwritetask mincputask consumedenergy"
              " consumedenergyraw avecpufreq"),
    (_TRES, "alloctres reqtres tresusageinave tresusageinmax tresusageinmin tresusageintot tresusageoutave tresusageoutmax"
            " tresusageoutmin tresusageouttot tresusageinmaxnode tresusageinmaxtask tresusageinminnode tresusageinmintask"
            " tresusageoutmaxnode tresusageoutmaxtask tresusageoutminnode tresusageoutmintask"),
    (re.compile(r"(?:C?(?:Block|Cyclic)|Plane|Arbitrary|Unknown)?"), "layout"),
    (_WORD, "flags group reason blockid reqcpufreq reqcpufreqgov reqcpufreqmax reqcpufreqmin reservationid sluid qosreq"),
    (_HOSTS, "nodelist maxrssnode failednode maxvmsizenode maxpagesnode mincpunode maxdiskreadnode maxdiskwritenode"),
    (_INTEGER, "allocnodes nnodes ncpus alloccpus reqcpus reqnodes ntasks uid gid restarts dbindex associd priority qosraw"
               " wckeyid"),
)  # fmt: skip
_NEVER_EMPTY = ("jobidraw", "state", "submit")  # in no row of any Slurm
_SHAPES = {name: shape for shape, names in _KINDS for name in names.split()}


def _unlike(shape: re.Pattern[str]) -> re.Pattern[str]:
    """What is found in lines that aren't all of a shape."""
    return re.compile(f"^(?!(?:{shape.pattern})$)", re.MULTILINE)


class Fitter:
    """How the columns of one header may be filled."""

    def __init__(self, names: Sequence[str], delimiter: str, *, known: frozenset[str], trailing: bool) -> None:
        """names: lower case. known: fields that sacct has; any other may hold free text. trailing: rows end in a delimiter."""
        self.free = [n in FREE or (n not in known and n not in _SHAPES) for n in names]
        self._shapes = [_SHAPES.get(n, _WORD) for n in names]
        if trailing:
            self.free.append(False)
            self._shapes.append(_NOTHING)
        self._loose = [_WORDS if shape is _WORD else shape for shape in self._shapes]
        id_at = next((i for i, n in enumerate(names) if n in ("jobidraw", "jobid")), None)
        telling = [i for i, n in enumerate(names) if n in _NEVER_EMPTY or i == id_at] + [len(names)] * trailing
        self._telling = [(at, _unlike(self._shapes[at])) for at in telling]
        self.width, self._delimiter = len(self.free), delimiter

    def is_row(self, fields: Sequence[str]) -> bool:
        """True when each field fits its column as it stands."""
        takes = zip(self.free, self._loose, fields)
        return len(fields) == self.width and all(free or shape.fullmatch(text) for free, shape, text in takes)

    def tell_rows(self, rows: Sequence[Sequence[str]]) -> bool:
        """True when each of these lines, taken apart, has a field for each column and those that are never empty fit.

        Text that spreads over lines leaves its pieces in the columns behind it on its first line and in those before it on
        its last, so that each column looked at here has one on one of the two. The last of `rows` may be such a first line
        whose end isn't among them: it needs a look by `is_row`.
        """
        if {*map(len, rows)} != {self.width}:
            return False
        return not any(odd.search("\n".join({row[at] for row in rows})) for at, odd in self._telling)

    def fits(self, fields: Sequence[str], short: int | None = None) -> list[list[str]]:
        """The best ways (at most _MAX_FITS) to give each column one field, or several if it may hold free text.

        Best is what takes the fewest empty fields into free text: a name of nothing but delimiters is unlikely. Blanks in
        users, accounts and the like are looked at only where there is no way without. short: a column that is to take as few
        fields as it can, before all else.
        """
        if len(fields) < self.width:
            return []
        for shapes in (self._shapes, self._loose):
            search = _Search(self, shapes, fields, short)
            if search.cost(0, 0) < _NEVER:
                return list(search.ways(0, 0))
        return []

    def join(self, fields: Sequence[str]) -> str:
        """The text that was split into these fields."""
        return fields[0] if len(fields) == 1 else self._delimiter.join(fields)


class _Search:
    """Cheapest assignment of fields to columns, by column and position; each is solved once."""

    def __init__(self, fitter: Fitter, shapes: Sequence[re.Pattern[str]], fields: Sequence[str], short: int | None) -> None:
        self._fitter, self._shapes, self._fields, self._short = fitter, shapes, fields, short
        self._costs: dict[tuple[int, int], float] = {}
        self._left = _MAX_FITS

    def choices(self, column: int, at: int) -> Iterator[tuple[int, float]]:
        """How many fields this column may take, and what that and all after it costs."""
        fitter, rest = self._fitter, len(self._fields) - at
        if fitter.free[column]:
            for taken in range(1, rest - (fitter.width - column - 1) + 1):
                own = sum(not text for text in self._fields[at : at + taken]) if taken > 1 else 0
                own += (taken - 1) * len(self._fields) * (column == self._short)
                yield taken, own + self.cost(column + 1, at + taken)
        elif self._shapes[column].fullmatch(self._fields[at]):
            yield 1, self.cost(column + 1, at + 1)

    def cost(self, column: int, at: int) -> float:
        """The least that the columns from here on cost; infinite when there is no way."""
        rest = len(self._fields) - at
        if column == self._fitter.width:
            return 0.0 if rest == 0 else _NEVER
        if rest < self._fitter.width - column:
            return _NEVER
        if (column, at) not in self._costs:
            self._costs[column, at] = min((price for _, price in self.choices(column, at)), default=_NEVER)
        return self._costs[column, at]

    def ways(self, column: int, at: int) -> Iterator[list[str]]:
        """All assignments of that cost, as rows."""
        if column == self._fitter.width:
            self._left -= 1
            yield []
            return
        best = self.cost(column, at)
        for taken, price in self.choices(column, at):
            if price == best and self._left > 0:
                text = self._fitter.join(self._fields[at : at + taken])
                for rest in self.ways(column + 1, at + taken):
                    yield [text, *rest]
