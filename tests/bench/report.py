"""Tables from the results of the simulation: means with 95 % intervals, bootstrapped over seeds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Rows = list[dict[str, Any]]
RANDOM, KNOWING, SAME_PLACER = "random", "all-knowing", "same placer, all-knowing"
FAIR = ", sacrifice off"
STEERED, STEERED_FAIR = "attributed (B)", "attributed, sacrifice off"
OBSERVED = (RANDOM, STEERED)  # policies whose runs are looked at for bad nodes
DRAWS = 2000


def auc(score: np.ndarray, bad: np.ndarray) -> float:
    """Probability that a bad node scores above a healthy one, ties halved."""
    order = np.argsort(score, kind="stable")
    ranks = np.empty(len(score))
    ranks[order] = np.arange(1, len(score) + 1)
    where = np.unique(score, return_inverse=True)[1]
    ranks = (np.bincount(where, weights=ranks) / np.bincount(where))[where]
    n = int(bad.sum())
    return float((ranks[bad].sum() - n * (n + 1) / 2) / (n * (len(bad) - n)))


def interval(values: Sequence[Any], statistic: Callable[[np.ndarray], float]) -> tuple[float, float, float]:
    """Statistic of the seeds' rows, and its 95 % interval by resampling whole seeds."""
    table = np.asarray(values, float)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(table), (DRAWS, len(table)))
    spread = [statistic(table[pick]) for pick in picks]
    return (statistic(table), *np.percentile(spread, [2.5, 97.5]).tolist())  # type: ignore[return-value]


def mean(table: np.ndarray) -> float:
    return float(table.mean())


def gain_share(table: np.ndarray) -> float:
    """Share of the all-knowing placer's gain over random: columns policy, random, all-knowing."""
    policy, random, knowing = table.mean(axis=0)
    return float((random - policy) / (random - knowing))


def ratio(table: np.ndarray) -> float:
    """Mean of the first column over that of the second, less 1."""
    first, second = table.mean(axis=0)
    return float(first / second - 1)


def precision(table: np.ndarray) -> float:
    hits, false, _ = table.sum(axis=0)
    return float(hits / max(hits + false, 1))


def recall(table: np.ndarray) -> float:
    hits, _, bad = table.sum(axis=0)
    return float(hits / bad)


def recall_at(curves: Sequence[Any], wanted: float = 0.85) -> tuple[float, float]:
    """(recall, threshold): the largest recall over thresholds at which the pooled precision is at least `wanted`."""
    bad = np.sort(np.concatenate([c[0] for c in curves]))[::-1]
    healthy = np.sort(np.concatenate([c[1] for c in curves]))[::-1]
    best = (0.0, 1.0)
    for hits, threshold in enumerate(bad, 1):
        false = int(np.searchsorted(-healthy, -threshold, side="right"))
        if hits / (hits + false) >= wanted:
            best = (hits / len(bad), float(threshold))
    return best


def recall_interval(curves: Sequence[Any]) -> tuple[float, float, float]:
    """`recall_at` with its interval over seeds."""
    rng = np.random.default_rng(0)
    picks = [rng.integers(0, len(curves), len(curves)) for _ in range(200)]
    spread = [recall_at([curves[i] for i in pick])[0] for pick in picks]
    return (recall_at(curves)[0], *np.percentile(spread, [2.5, 97.5]).tolist())  # type: ignore[return-value]


def text(value: tuple[float, float, float], form: str = ".2f") -> str:
    """`mean [low, high]`."""
    return f"{value[0]:{form}} [{value[1]:{form}}, {value[2]:{form}}]"


Settings = dict[tuple[str, float], dict[str, dict[int, Any]]]


def read(path: str) -> Settings:
    """Rows by (world, load), policy and seed; the plain world at load 0.85 first."""
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    settings: Settings = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        settings[(row["world"], row["load"])][row["policy"]][row["seed"]] = row
    return dict(sorted(settings.items(), key=lambda kv: (kv[0] != ("plain", 0.85), kv[0])))


def show(path: str) -> None:
    """Print all tables of a results file."""
    for (world, load), policies in read(path).items():
        _policies(world, load, policies)
        for name in OBSERVED:
            if name in policies:
                _detection(name, list(policies[name].values()))


def show_short(path: str) -> None:
    """Print what matters most: policies in the plain world, each other setting in a line, and how bad nodes are found."""
    settings = read(path)
    policies = settings[("plain", 0.85)]
    print("| policy | seeds | large jobs (8+ nodes) lost to nodes after day 20 | share of the all-knowing gain | lost node-hours "
          "| wait over random's | wear (CV) |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for name, runs in policies.items():
        mine = list(runs.values())
        cells = [str(len(mine)), text(interval([r["failures_late"] for r in mine], mean), ".1f"), _share(policies, name, KNOWING)]
        cells += [
            text(interval([r["lost"] for r in mine], mean), ".0f"),
            _wait(policies, name),
            f"{np.mean([r['wear'] for r in mine]):.3f}",
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\n| world, load | seeds | share of the all-knowing gain, `sacrifice` on | off | wait over random's, on | off | AUC | "
          "precision | recall |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for (world, load), found in settings.items():
        if {RANDOM, KNOWING, STEERED, STEERED_FAIR} <= set(found):
            print(f"| {world}, {load:g} | {len(found[STEERED])} | " + " | ".join(_line(found)) + " |")
    for name in OBSERVED:
        _detection(name, list(policies[name].values()))


def _line(policies: dict[str, dict[int, Any]]) -> list[str]:
    found = [r["detection"] for r in policies[RANDOM].values()]
    table = [f["rule"] for f in found]
    return [
        *(_share(policies, name, KNOWING) for name in (STEERED, STEERED_FAIR)),
        *(_wait(policies, name) for name in (STEERED, STEERED_FAIR)),
        text(interval([f["auc"] for f in found], mean), ".3f"),
        text(interval(table, precision)), text(interval(table, recall)),
    ]  # fmt: skip


def _wait(policies: dict[str, dict[int, Any]], name: str) -> str:
    """Mean wait over random's on the seeds that both have, and how many these are."""
    pairs = [[r["wait"], policies[RANDOM][s]["wait"]] for s, r in policies[name].items() if s in policies[RANDOM]]
    return "" if name == RANDOM else text(interval(pairs, ratio), "+.1%")


def _policies(world: str, load: float, policies: dict[str, dict[int, Any]]) -> None:
    print(f"\n## world {world}, load {load}\n")
    print("| policy | seeds | failures of large jobs | after day 20 | share of the all-knowing gain, after day 20 | "
          "of the same placer's, all-knowing | lost node-hours | wait (h) | wait over random's | wear (CV) |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, runs in policies.items():
        mine = list(runs.values())
        cells = [str(len(mine)), *(text(interval([r[key] for r in mine], mean), ".1f") for key in ("failures", "failures_late"))]
        cells += [_share(policies, name, best) for best in (KNOWING, SAME_PLACER + FAIR if name.endswith(FAIR) else SAME_PLACER)]
        cells += [text(interval([r["lost"] for r in mine], mean), ".0f"), text(interval([r["wait"] for r in mine], mean), ".2f")]
        cells += [_wait(policies, name), f"{np.mean([r['wear'] for r in mine]):.3f}"]
        print(f"| {name} | " + " | ".join(cells) + " |")


def _share(policies: dict[str, dict[int, Any]], name: str, best: str) -> str:
    """Share of a knowing placer's gain over random in failed large jobs after the warm-up, on the seeds that all have."""
    runs, random, knowing = policies[name], policies[RANDOM], policies.get(best, {})
    seeds = [s for s in runs if s in random and s in knowing]
    if name in (RANDOM, best) or not seeds:
        return ""
    return text(interval([[p[s]["failures_late"] for p in (runs, random, knowing)] for s in seeds], gain_share), ".0%")


def _detection(policy: str, runs: Rows) -> None:
    found = [r["detection"] for r in runs]
    print(f"\nBad nodes after 60 days, from the history that '{policy}' leaves ({len(runs)} seeds, {4 * len(runs)} bad nodes):\n")
    for key, what in (("auc", "attributed (B)"), ("auc_known", "B, every culprit known"), ("auc_published", "published (A)"),
                      ("auc_counts", "failed attempts counted")):  # fmt: skip
        print(f"- AUC {what}: {text(interval([f[key] for f in found], mean), '.3f')}")
    for key, what in (("rule", "rule of `workhorse lemons`"), ("rule_known", "the same, every culprit known")):
        table = [f[key] for f in found]
        print(f"- {what}: precision {text(interval(table, precision))}, recall {text(interval(table, recall))}")
    for key, what in (("curve", "B"), ("curve_known", "every culprit known")):
        curves = [f[key] for f in found]
        print(f"- best recall at precision 0.85, {what}: {text(recall_interval(curves))} (at P > {recall_at(curves)[1]:.2f})")
