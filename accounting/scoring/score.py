"""One entry for both methods: a history and the settings in, one row per node out. `[scoring] method` chooses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_hook.common.config import Settings

from ..history.columns import MARKED_IGNORE, FloatArray, History
from . import published_method
from .attributed_method import attribute
from .em import Model
from .groups import worse_groups
from .lemons import find_lemons
from .stretches import Stretches
from .suspects import of_history, suspects
from .trust import marked_now

LEAST_FAILURES = 10  # with fewer, whom they struck is chance


@dataclass(frozen=True)
class NodeRow:
    """What the scorer says of one node. None: no value of its own (placement then takes the cluster's median).

    capability: 1/(MiB h) published, h attributed; relative: over the median; low, high: 90 % interval of relative;
    reliability: contribution per MiB published, heavy hours per node-caused failure attributed; breakdown: h published,
    share of the window attributed; hazard: failures per heavy hour; suspect_until: epoch seconds, 0 if not suspect.
    """

    name: str
    capability: float | None = None
    relative: float | None = None
    low: float | None = None
    high: float | None = None
    reliability: float | None = None
    breakdown: float | None = None
    hazard: float | None = None
    tasks: int = 0
    lemon: bool = False
    suspect_until: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class ScoreTable:
    """One scoring run: which method, of which moment, one row per node in the history's order, and what to tell people."""

    method: str
    as_of: float
    rows: tuple[NodeRow, ...]
    heavy_threshold: float
    notes: tuple[str, ...] = ()
    past: Stretches | None = None  # settled stretches for the next run


def options(settings: Settings, carried: float | None = None) -> published_method.Options:
    """The scoring settings as the published method takes them; a heavy_threshold of 0 stands for Otsu's, `carried` for the
    one that an earlier run found."""
    scoring = settings.scoring
    return published_method.Options(
        heavy_threshold=scoring.heavy_threshold or carried,
        overload_threshold=scoring.overload_threshold,
        max_gap_hours=scoring.max_gap_hours,
    )


def model(settings: Settings) -> Model:
    """The attributed method's constants as the settings have them."""
    return Model(half_life_days=settings.scoring.half_life_days)


def score_history(
    history: History, settings: Settings, *, threshold: float | None = None, past: Stretches | None = None
) -> ScoreTable:
    """Score every node of the history by the method that the settings name. Same history, same table.

    threshold: the heavy threshold of an earlier run, which is kept for a while so that a node's groups don't change
    because of other nodes' tasks; a fixed one in the settings comes first. past: settled stretches that an earlier run left
    for the attributed method, with which the table is the same (to rounding) and sooner there.
    """
    chosen = options(settings, threshold)
    if settings.scoring.method == "published":
        return _published(history, chosen)
    return _attributed(history, chosen, model(settings), past, settings.scoring.chassis)


def _attributed(
    history: History, chosen: published_method.Options, constants: Model, past: Stretches | None, chassis: str
) -> ScoreTable:
    scored = attribute(history, chosen, constants, past)
    lemon, until = find_lemons(history, scored), suspects(history, scored.failures)
    ignored = marked_now(history.events, MARKED_IGNORE, len(history.nodes), history.as_of)
    own = (scored.exposure.weighted > 0) & ~ignored
    middle = float(np.median(scored.capability[own])) if own.any() else 1.0
    low, high = (1.0 / scored.hazard_quantile(p) / (1.0 + scored.breakdown) / middle for p in (0.95, 0.05))
    tasks = np.bincount(history.tasks.node, minlength=len(history.nodes))
    rows = tuple(
        NodeRow(
            name=name,
            capability=float(scored.capability[i]) if own[i] else None,
            relative=float(scored.capability[i] / middle) if own[i] else None,
            low=float(low[i]) if own[i] else None,
            high=float(high[i]) if own[i] else None,
            reliability=float(scored.reliability[i]) if own[i] else None,
            breakdown=float(scored.breakdown[i]),
            hazard=float(scored.hazard[i]) if own[i] else None,
            tasks=int(tasks[i]),
            lemon=bool(lemon[i]),
            suspect_until=float(until[i]),
            note="marked to be ignored" if ignored[i] else "" if own[i] else "no work in the window: takes the median",
        )
        for i, name in enumerate(history.nodes.names)
    )
    notes = (
        *history.notes,
        *scored.notes,
        *little(len(scored.failures), float(scored.exposure.heavy.sum())),
        *worse_groups(history, scored, chassis),
    )
    return ScoreTable("attributed", history.as_of, rows, scored.exposure.heavy_threshold, notes, scored.exposure.past)


def little(failures: int, heavy_hours: float) -> tuple[str, ...]:
    """What to say where a history is too short to tell nodes apart: some failures must have been seen at all."""
    if failures >= LEAST_FAILURES:
        return ()
    seen = f"{failures} failures in {heavy_hours:,.0f} heavy hours"
    return (f"too little history to tell nodes apart ({seen}; {LEAST_FAILURES} failures are few): take ranks as noise",)


def _published(history: History, chosen: published_method.Options) -> ScoreTable:
    table, until = published_method.score_history(history, chosen), of_history(history)
    middle = float(np.median(table.capability[np.isfinite(table.capability)])) if _any(table.capability) else 0.0
    rows = tuple(
        NodeRow(
            name=name,
            capability=_value(table.capability[i]),
            relative=_value(table.capability[i] / middle) if middle > 0 else None,
            reliability=_value(table.reliability[i]),
            breakdown=float(table.breakdown[i]),
            tasks=int(table.tasks[i]),
            suspect_until=float(until[i]),
            note="" if np.isfinite(table.capability[i]) else "no heavy work that says anything: takes the median",
        )
        for i, name in enumerate(history.nodes.names)
    )
    return ScoreTable("published", history.as_of, rows, table.heavy_threshold, (*history.notes, *table.notes))


def _any(values: FloatArray) -> bool:
    return bool(np.isfinite(values).any())


def _value(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None
