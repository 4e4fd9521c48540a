"""The node table, for `nodes` and `score`: rich where it is installed, plain columns elsewhere, JSON for programs."""

from __future__ import annotations

import json
import shutil
import sys
import time

import click

from ..common.record import TYPE_CHECKING
from ..common.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .snapshot import NodeScore


def _number(value: float | None, form: str = ".3g") -> str:
    if value is not None and 1000 <= abs(value) < 1e9:  # hours as people write them, no powers of ten
        form = ".0f"
    return "-" if value is None else format(value, form)


def _interval(node: NodeScore) -> str:
    if node.low is None or node.high is None:
        return "-"
    return f"{node.low:.2f}-" + (f"{node.high:.2f}" if node.high < 100 else ">99")  # nothing was ever seen to fail


def _state(node: NodeScore) -> str:
    if node.lemon:
        return "lemon"
    if node.suspect_until > time.time():
        return "suspect"
    return "" if node.capability is not None else "no score"


COLUMNS: tuple[tuple[str, Callable[[NodeScore], str]], ...] = (
    ("NODE", lambda n: n.name),
    ("CAPABILITY", lambda n: _number(n.capability)),
    ("RELATIVE", lambda n: _number(n.relative, ".2f")),
    ("90%", _interval),
    ("RELIABILITY", lambda n: _number(n.reliability)),
    ("BREAKDOWN", lambda n: _number(n.breakdown)),
    ("HAZARD", lambda n: _number(n.hazard)),
    ("TASKS", lambda n: str(n.tasks)),
    ("GPUS", lambda n: f"{n.gpus} {n.gpu_type}".strip()),
    ("MEM_MIB", lambda n: str(n.mem)),
    ("SWITCH", lambda n: n.switch or "-"),
    ("STATE", _state),
)


# what goes first where a terminal is too narrow; numbers and names are never cut
_DISPENSABLE = ("MEM_MIB", "BREAKDOWN", "SWITCH", "GPUS", "HAZARD", "RELIABILITY", "TASKS", "90%", "CAPABILITY")
UNITS = {
    "attributed": (
        (("CAPABILITY", "RELIABILITY"), "heavy hours per node-caused failure"),
        (("HAZARD",), "failures per heavy hour"),
        (("RELATIVE", "90%"), "of the median"),
    ),
    "published": (
        (("CAPABILITY",), "reliability (contribution per MiB, below 0 where failures prevail) over breakdown (hours)"),
    ),
}


def ordered(nodes: Sequence[NodeScore]) -> list[NodeScore]:
    """Best first; nodes without a score of their own after those with one, then by name."""
    return sorted(nodes, key=lambda n: (n.capability is None, -(n.capability or 0.0), n.name))


def print_nodes(
    nodes: Sequence[NodeScore], *, as_json: bool = False, parsable: bool = False, header: bool = True,
    columns: Sequence[str] = (), method: str = "",
) -> None:  # fmt: skip
    """Print nodes best first, on stdout. `columns`: some of COLUMNS by name, in that order; `method`: tells the units."""
    rows = ordered(nodes)
    if as_json:
        click.echo(json.dumps([n._asdict() for n in rows], indent=1))
        return
    chosen = [c for name in (columns or [c[0] for c in COLUMNS]) for c in COLUMNS if c[0] == name]
    cells = [[one_line(text(n)) for _, text in chosen] for n in rows]
    titles = [name for name, _ in chosen]
    if parsable:
        for line in ([titles] if header else []) + cells:
            click.echo("|".join(cell.replace("|", "\\x7c") for cell in line))
        return
    if not columns and sys.stdout.isatty():
        titles, cells = fitting(titles, cells, shutil.get_terminal_size().columns)
    if not _rich(titles, cells, header):
        _plain(titles, cells, header)
    if header and method in UNITS and not columns:
        click.echo(footnote(titles, method))


def footnote(titles: Sequence[str], method: str) -> str:
    """What the columns shown are measured in, and which are not shown."""
    told = [([c.lower() for c in of if c in titles], unit) for of, unit in UNITS[method]]
    absent = [name.lower() for name, _ in COLUMNS if name not in titles]
    lines = ["; ".join(f"{', '.join(names)}: {unit}" for names, unit in told if names)]
    if absent:
        lines.append(f"too wide for this terminal: {', '.join(absent)} (-o names columns, -P shows all)")
    return "\n".join(lines)


def fitting(titles: list[str], cells: list[list[str]], width: int) -> tuple[list[str], list[list[str]]]:
    """The table without the columns that it can do without, until it fits the width."""
    for title in _DISPENSABLE:
        if sum(_widths(titles, cells)) + 2 * (len(titles) - 1) <= width:
            break
        at = titles.index(title)
        titles, cells = titles[:at] + titles[at + 1 :], [row[:at] + row[at + 1 :] for row in cells]
    return titles, cells


def _widths(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> list[int]:
    return [max((len(line[i]) for line in (titles, *lines)), default=0) for i in range(len(titles))]


def _rich(titles: Sequence[str], cells: Sequence[Sequence[str]], header: bool) -> bool:
    if not sys.stdout.isatty():
        return False
    try:
        from rich.console import Console  # noqa: PLC0415 - a login node need not have it
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ModuleNotFoundError:
        return False
    table = Table(show_header=header, box=None, pad_edge=False)
    for title, width in zip(titles, _widths(titles, cells)):
        left = title in ("NODE", "SWITCH", "STATE")
        table.add_column(title, no_wrap=True, min_width=width, justify="left" if left else "right")
    for row in cells:
        style = {"lemon": "bold red", "suspect": "yellow"}.get(row[-1], "")
        table.add_row(*(Text(cell, style=style) for cell in row))
    # as wide as it needs to be: a terminal that is narrower still wraps, but nothing is cut
    Console(width=max(shutil.get_terminal_size().columns, sum(_widths(titles, cells)) + 3 * len(titles))).print(table)
    return True


def _plain(titles: Sequence[str], cells: Sequence[Sequence[str]], header: bool) -> None:
    lines = ([titles] if header else []) + list(cells)
    widths = _widths(titles if header else [""] * len(titles), cells)
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
