"""Progress of commands that may take longer than two seconds: on stderr, for terminals only, gone when done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
Step = Callable[[str], None]
EVERY = 2000  # rows between two updates


def silent(_: Any) -> None:
    """Stands for a progress that nobody sees."""


@contextmanager
def _drawn(text: str, total: float | None) -> Iterator[Callable[..., None] | None]:
    """A line that is drawn while the block runs, with a clock that ticks on its own, so that a long step shows that it lives.
    Yields what moves it on; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    # here, not above: most runs are timers' or scripts', which need no 80 ms of imports for nothing
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    bar = (BarColumn(30),) if total is not None else ()
    columns = (SpinnerColumn(), TextColumn(text, markup=False), *bar, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("", total=total)
        yield lambda completed, words="": drawn.update(task, completed=completed, description=words, refresh=True)


@contextmanager
def steps(label: str, total: int) -> Iterator[Step]:
    """A bar of `total` steps; call what is yielded with the name of each step as it begins."""
    with _drawn(f"{label}: {{task.description}}", total) as move:
        begun = [0]

        def step(name: str) -> None:
            if move is not None:
                move(begun[0], name)
            begun[0] += 1

        yield step


@contextmanager
def stretch(label: str, total: float) -> Iterator[Callable[[float], None]]:
    """A bar over a length; call what is yielded with how far it is done."""
    with _drawn(label, total) as move:
        yield move or silent


def counted(label: str, rows: Iterable[T]) -> Iterator[T]:
    """The same rows, counted aloud. Their number isn't known before, so there is no bar."""
    with _drawn(f"{label}: {{task.completed:,.0f}} rows", None) as move:
        for number, row in enumerate(rows, 1):
            if move is not None and number % EVERY == 0:
                move(number)
            yield row
