"""A made-up history of any size as sacct would print it, with bad nodes that the maker knows and names that attack."""

import random
import time
from pathlib import Path

DELIMITER = "\x1f"
COLUMNS = "JobIDRaw JobID User Account Partition State ExitCode Submit Start End NNodes AllocTRES NodeList JobName"
FIELDS = COLUMNS.split(" ")
OWN = "document.title='owned'"
HOSTILE = (
    f"<script>{OWN}</script>", f'"><img src=x onerror="{OWN}">', "{{ 7 * 7 }}{% raw %}", "'; DROP TABLE attempts; --",
    "\x1b[31mred\x1b[0m\x07", "\u202egnp.exe", f'</title></svg><svg onload="{OWN}">', "&lt;b&gt;", "a" * 3000, "]]>--><!--",
)  # fmt: skip


def iso(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))


def nodes_text(count: int, per_switch: int = 32) -> str:
    """`scontrol -o show node` of nodes n0001 …; switches come from features, as no topology is in it."""
    return "".join(
        f"NodeName={name(i)} Arch=x86_64 CPUAlloc=0 CPUTot=64 Gres=gpu:a100:8 RealMemory=1024000 State=IDLE Partitions=llm\n"
        for i in range(count)
    )


def name(number: int) -> str:
    return f"n{number + 1:04}"


def dump(count: int, jobs: int, bad: set[int], *, end: float, days: float = 60, seed: int = 1) -> str:
    """Jobs of 1 to 16 nodes; on a bad node a job fails nine times out of ten, elsewhere one in thirty fails by itself."""
    draw = random.Random(seed)
    free = [end - days * 86400] * count
    lines = [DELIMITER.join(FIELDS)]
    for number in range(1, jobs + 1):
        size = draw.choice((1, 1, 2, 4, 8, 16))
        nodes = sorted(draw.sample(range(count), size))
        start = max(*(free[n] for n in nodes), end - days * 86400 + number / jobs * days * 86400 * 0.97)
        hours = draw.uniform(1, 20)
        broken = [n for n in nodes if n in bad and draw.random() < 0.9]
        own = draw.random() < 0.03
        hours = hours * draw.random() if broken else hours * 0.02 if own else hours
        stop = min(start + hours * 3600, end - 60)
        if stop <= start:
            continue
        for n in nodes:
            free[n] = stop
        state, code = ("FAILED", "1:0") if broken or own else ("COMPLETED", "0:0")
        job_name = draw.choice(HOSTILE) if draw.random() < 0.2 else f"train-{draw.randrange(9)}"
        listed = f"n[{','.join(name(n)[1:] for n in nodes)}]" if len(nodes) > 1 else name(nodes[0])
        gpus = 8 * len(nodes)
        tres = f"cpu={gpus * 8},mem={900 * len(nodes)}G,gres/gpu={gpus},gres/gpu:a100={gpus},node={len(nodes)}"
        times = (iso(start - 60), iso(start), iso(stop))
        values = (
            number,
            number,
            f"user{draw.randrange(6)}",
            "lab",
            "llm",
            state,
            code,
            *times,
            len(nodes),
            tres,
            listed,
            job_name,
        )
        lines.append(DELIMITER.join(str(value) for value in values))
    return "\n".join(lines) + "\n"


def write(folder: Path, count: int, jobs: int, bad: set[int], **how) -> tuple[Path, Path]:
    """The dump and the inventory as files."""
    how.setdefault("end", time.time())
    made, nodes = folder / "jobs.dump", folder / "nodes.txt"
    made.write_text(dump(count, jobs, bad, **how), encoding="utf-8")
    nodes.write_text(nodes_text(count))
    return made, nodes
