"""`workhorse effect` on made histories whose true effect the maker knows: dump → history → groups → interval."""

import random

import numpy as np
import pytest
from click.testing import CliRunner

from accounting.evaluation import effect, treatment
from accounting.history.store import connect_to_read
from slurm_hook.cli import workhorse
from slurm_hook.common import config
from tests import history_made as made

COUNT, BAD, DAYS, END = 96, 4, 56, 1_800_000_000.0
P_BAD, P_GOOD, OWN = 0.25, 0.004, 0.05  # chance that a node ends a job, and that a job dies of its own error


def history(seed, jobs=700):
    """A dump, each job's mode, and the true difference of node-caused failures per 100 jobs."""
    draw, begin = random.Random(seed), END - DAYS * 86400
    lines, modes, chances, free = [made.DELIMITER.join(made.FIELDS)], {}, {"avoid": [], "control": []}, [begin] * COUNT
    for number in range(1, jobs + 1):
        mode = draw.choices(("avoid", "control"), (0.7, 0.3))[0]
        nodes = sorted(draw.sample(range(BAD if mode == "avoid" else 0, COUNT), draw.choice((2, 2, 4, 4, 8))))
        start = max(*(free[n] for n in nodes), begin + number / jobs * DAYS * 86400 * 0.97)
        chance = {n: P_BAD if n < BAD else P_GOOD for n in nodes}
        broken, own = any([draw.random() < chance[n] for n in nodes]), draw.random() < OWN
        hours = draw.uniform(4, 20) * draw.random() if broken else 0.05 if own else draw.uniform(4, 20)
        if start + hours * 3600 > END:
            continue
        free = [start + hours * 3600 if n in chance else t for n, t in enumerate(free)]
        state = "NODE_FAIL" if broken and draw.random() < 0.5 else "FAILED" if broken or own else "COMPLETED"
        modes[number] = mode
        chances[mode].append(1 - np.prod([1 - p for p in chance.values()]))
        lines.append(_line(number, f"user{draw.randrange(8)}", state, start, hours, nodes))
    # an own error counts only where no node was faster
    true = {mode: np.mean(x) + OWN * (1 - np.mean(x)) for mode, x in chances.items()}
    return "\n".join(lines) + "\n", modes, 100 * (true["avoid"] - true["control"])


def _line(number, user, state, start, hours, nodes):
    size = len(nodes)
    tres = f"cpu={64 * size},mem={900 * size}G,gres/gpu={8 * size},gres/gpu:a100={8 * size},node={size}"
    times = made.iso(start - 60), made.iso(start), made.iso(start + hours * 3600)
    code, listed = "1:0" if state == "FAILED" else "0:0", f"n[{','.join(made.name(n)[1:] for n in nodes)}]"
    return made.DELIMITER.join(map(str, (number, number, user, "ml", "llm", state, code, *times, size, tres, listed, "train")))


def compared(folder, seed):
    text, modes, true = history(seed)
    (folder / "d.psv").write_text(text)
    (folder / "nodes.txt").write_text(made.nodes_text(COUNT))
    (folder / "w.toml").write_text(f"[history]\npath='{folder}/h.db'\n[publish]\npath='{folder}'\n")
    how = ["--delimiter", made.DELIMITER, "--nodes", str(folder / "nodes.txt"), "--timezone", "UTC", "-M", "alpha"]
    done = CliRunner().invoke(workhorse, ["--config", str(folder / "w.toml"), "collect", "--file", str(folder / "d.psv"), *how])
    assert done.exit_code == 0, done.output
    settings = config.load(str(folder / "w.toml"))
    groups = treatment.groups(connect_to_read(str(folder / "h.db")), "alpha", modes, (END - DAYS * 86400, END), settings)
    assert sum(len(group) for group in groups) == len(modes)
    return effect.compare(*groups, weeks=8), true


def test_the_known_effect_is_found_without_bias_and_lies_in_its_interval(tmp_path):
    """Half of the node failures look like the jobs' own: blaming each by a guess would find a fraction of the effect."""
    rows = []
    for seed in range(14):
        (tmp_path / str(seed)).mkdir()
        (failed, lost, *_), true = compared(tmp_path / str(seed), seed)
        rows.append((failed.difference - true, failed.low <= true <= failed.high, lost.difference))
    miss, held, lost = (np.array(column) for column in zip(*rows, strict=True))
    assert held.sum() >= 12, held
    assert abs(miss.mean()) < 3 * miss.std(ddof=1) / np.sqrt(len(miss)) and abs(miss.mean()) < 2.0
    assert lost.mean() < 0, "and they lose fewer node-hours"


@pytest.mark.parametrize(("p", "q"), [(0.03, 0.06), (0.03, 0.05), (0.05, 0.07), (0.10, 0.06)])
def test_after_the_weeks_that_it_names_it_is_sure(p, q):
    """Should the rates stay as they are: the interval then just leaves zero out."""

    def found(weeks):
        n, m = round(100 * weeks), round(50 * weeks)
        a, b = (np.r_[np.ones(round(rate * k)), np.zeros(k - round(rate * k))] for rate, k in ((p, n), (q, m)))
        return effect.compare(effect.Group(a, a, a * np.nan), effect.Group(b, b, b * np.nan), weeks=weeks)[0]

    first = found(4)
    assert first.low < 0 < first.high and first.more_weeks > 0
    then = found(4 + first.more_weeks)
    nearest = then.high if p < q else -then.low
    assert abs(nearest) < 0.2 * abs(then.difference), (first, then)
    assert found((4 + first.more_weeks) * 1.6).more_weeks == 0.0
