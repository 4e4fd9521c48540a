"""The report as one HTML file: no script, nothing from the network, private to its owner.

Drawn as inline SVG: at 5,000 nodes the whole file stays smaller than any plotting library alone. All text of users goes
through the template's escaping, and the page's own policy forbids scripts and connections on top.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import jinja2

from slurm_hook import __version__
from slurm_hook.common.errors import WorkhorseError
from slurm_hook.common.terminal import count

from . import contents as reporting
from .story import Failure, Group, Story

# capability over the median: upper bounds of the heat map's classes, and what they are called
CLASSES = (
    (0.25, "under ¼"), (0.5, "¼ – ½"), (0.8, "½ – 0.8"), (1.25, "typical"), (2.0, "1¼ – 2"), (4.0, "2 – 4"), (1e300, "over 4")
)  # fmt: skip
# heat map: side of a cell, gap, cells in a row of a block; smaller where there are more nodes than fit on a screen
ROOMY, DENSE, MANY_NODES = (12, 2, 16), (8, 1, 9), 1200
WIDE, TALL = 880.0, 132.0
LONGEST = 100
ACTIONS = ("steer", "avoid", "observe", "pass", "fail_open", "other")


class Mark(NamedTuple):
    """A shape of a timeline: position and size in pixels, opacity, tooltip."""

    x: float
    width: float
    opacity: float
    text: str
    y: float = 0.0


class Timeline(NamedTuple):
    """A node's story laid out: bands of heavy groups, efficiency lines, failures, events, and the ticks of the time axis."""

    groups: list[Mark]
    lines: list[str]
    failures: list[Mark]
    events: list[Mark]
    ticks: list[tuple[float, str]]


def render(report: reporting.Report) -> str:
    """The whole page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("accounting.reports"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(clean=clean, when=when, short=short, percent=lambda share: f"{share:.0%}")
    span = (report.overview.window_start, report.overview.as_of)
    return environment.get_template("report.html.j2").render(
        report=report, o=report.overview, alike=reporting.ALIKE, colour=colour, describe=describe, standing=standing,
        interval=interval, version=__version__, span=span, wide=WIDE, tall=TALL, classes=CLASSES, actions=ACTIONS,
        blocks=heat_map(report.blocks),
        timelines=[timeline(worst.story, *span) for worst in report.worst], days=_days(report.by_day), counts=histogram(report),
        weeks=_bars([(w.by_nodes, w.by_jobs) for w in report.weeks]), histogram=_bars([(n,) for n in histogram(report)]),
        everyone=sorted((c for b in report.blocks for c in b.cells), key=_worst_first),
    )  # fmt: skip


def write(path: str, text: str) -> None:
    """Write the page whole or not at all, readable by its owner only. Raises WorkhorseError."""
    temporary = f"{path}.{os.getpid()}.part"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as err:
        raise WorkhorseError(f"{path}: can't be written ({err.strerror}); name another file with -o") from err


def clean(text: object, longest: int = LONGEST) -> str:
    """Text of users for people: one line, no control or direction characters, not endless."""
    line = "".join(ch if ch.isprintable() else "·" for ch in str(text))
    return line if len(line) <= longest else line[: longest - 1] + "…"


def when(moment: float) -> str:
    """Local time with its offset."""
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M %z")


def short(number: float | None, digits: int = 3) -> str:
    """A number for people: 1,234,567 or 0.123; a dash for none."""
    if number is None:
        return "–"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.{digits}g}"


def colour(relative: float | None) -> str:
    """CSS class of a capability."""
    return "none" if relative is None else f"c{next(i for i, (bound, _) in enumerate(CLASSES) if relative < bound)}"


def describe(cell: reporting.Cell) -> str:
    """A node in one line."""
    return f"{cell.name}: {standing(cell)}" + (", LEMON" if cell.lemon else "") + (", suspect" if cell.suspect else "")


def standing(cell: reporting.Cell) -> str:
    """How a node stands among the others, without its name."""
    text = f"{cell.relative:.2g} × the median" if cell.relative is not None else cell.note or "no capability of its own"
    if cell.low is not None and cell.high is not None:
        text += f" (90 %: {interval(cell)})"
    return f"{text}, {count(cell.tasks, 'task')}"


def interval(cell: reporting.Cell) -> str:
    """90 % interval; its end is no number where nothing was ever seen to fail."""
    if cell.low is None or cell.high is None:
        return ""
    return f"{short(cell.low, 2)} – {short(cell.high, 2) if cell.high < 100 else 'over 99'}"


class Drawn(NamedTuple):
    """A block of the heat map laid out: width, height, side of a cell, and the cells with their places."""

    name: str
    leaf: bool
    width: int
    height: int
    side: int
    cells: list[tuple[reporting.Cell, int, int]]


def heat_map(blocks: Sequence[reporting.Block]) -> list[Drawn]:
    """The blocks laid out, all in the same grid."""
    side, gap, columns = ROOMY if sum(len(block.cells) for block in blocks) <= MANY_NODES else DENSE
    step, drawn = side + gap, []
    for block in blocks:
        places = [(cell, at % columns * step, at // columns * step) for at, cell in enumerate(block.cells)]
        drawn.append(
            Drawn(block.name, block.leaf, columns * step + 2, (len(places) + columns - 1) // columns * step + 2, side, places)
        )
    return drawn


def _worst_first(cell: reporting.Cell) -> tuple[Any, ...]:
    return (not cell.lemon, cell.relative is None, cell.relative or 0.0, reporting.hostlist_key(cell.name))


def histogram(report: reporting.Report) -> list[int]:
    """Nodes by class of capability."""
    counts = [0] * len(CLASSES)
    for block in report.blocks:
        for cell in block.cells:
            if cell.relative is not None:
                counts[int(colour(cell.relative)[1:])] += 1
    return counts


def _bars(stacks: Sequence[Sequence[float]]) -> list[list[tuple[float, float]]]:
    """Stacked bars: for each its parts' (y, height) from the bottom up, in a box of 100."""
    top = max((sum(stack) for stack in stacks), default=0) or 1.0
    bars = []
    for stack in stacks:
        y, parts = 100.0, []
        for value in stack:
            height = 100.0 * value / top
            y -= height
            parts.append((round(y, 1), round(height, 1)))
        bars.append(parts)
    return bars


def _days(by_day: Iterable[tuple[str, Mapping[str, int]]]) -> list[tuple[str, Mapping[str, int], list[tuple[float, float]]]]:
    days = list(by_day)
    bars = _bars([[counts.get(action, 0) for action in ACTIONS] for _, counts in days])
    return [(day, counts, bar) for (day, counts), bar in zip(days, bars)]


def timeline(story: Story, start: float, end: float) -> Timeline:
    """A story laid out over the window, WIDE pixels wide."""
    scale = WIDE / max(end - start, 1.0)

    def x(moment: float) -> float:
        return round(min(max(moment - start, 0.0) * scale, WIDE), 1)

    def band(first: float, last: float) -> tuple[float, float]:
        return x(first), max(round(x(last) - x(first), 1), 1.5)

    groups = [Mark(*band(g.start, g.end), 0.25 + min(g.overload_hours / 48, 0.5), _group_words(g)) for g in story.groups]
    lines = [" ".join(f"{x(t)},{_level(v)}" for t, v in g.points) for g in story.groups if len(g.points) > 1]
    failures = [Mark(x(f.time), 0, 0.15 + 0.85 * f.blame, _failure_words(f)) for f in story.failures]
    events = [
        Mark(*band(e.start, e.end or end), 0.8, f"{when(e.start)}: {e.kind} ({e.reason_class}) {clean(e.reason)}")
        for e in story.events
    ]
    return Timeline(groups, lines, failures, events, _ticks(start, end, x))


def _group_words(group: Group) -> str:
    span = f"{when(group.start)} – {when(group.end)}"
    return f"{span}: {count(group.tasks, 'heavy task')}, {group.overload_hours:.1f} h overload, efficiency {group.change:+.0%}"


def _failure_words(failure: Failure) -> str:
    known = ", known culprit" if failure.known and failure.blame > 0.5 else ""
    job = f"job {failure.job} of {clean(failure.work, 60)} on {count(failure.nodes, 'node')}"
    return f"{when(failure.time)}: {job}; blame on this node {failure.blame:.0%}{known}"


def _level(value: float) -> float:
    """Efficiency over the group's mean, 0 to 2, as y between 48 and 92."""
    return round(92.0 - 22.0 * min(max(value, 0.0), 2.0), 1)


def _ticks(start: float, end: float, x: Any) -> list[tuple[float, str]]:
    """Up to seven dates, evenly spread at midnight, local time."""
    days = max(int((end - start) / 86400), 1)
    step = max(1, round(days / 6))
    first = datetime.fromtimestamp(start).replace(hour=0, minute=0, second=0, microsecond=0).timestamp() + 86400
    dates = [first + i * step * 86400 for i in range(8)]
    return [(x(date), when(date)[5:10]) for date in dates if date <= end]
