"""How long one pass thinks: a thousand waiting stages of many shapes on ten thousand nodes."""

import random
import time

import pytest

from slurm_hook.dispatch import updates
from slurm_hook.published import mark
from slurm_hook.published.mark import Mark
from slurm_hook.slurm.jobs import Details
from tests.unit.jobs_made import NOW, job, node, world

pytestmark = pytest.mark.bench
LIMIT = 2.0  # seconds of this process: what else runs on the machine is no matter


def machine(busy):
    """10,000 nodes of two GPU types in four partitions, a share of them busy, some broken."""
    rng = random.Random(5)
    made = {}
    for i in range(10_000):
        state = "DOWN" if rng.random() < 0.01 else "ALLOCATED" if rng.random() < busy else "IDLE"
        made[f"n{i:05d}"] = node(f"n{i:05d}", state, partitions=(f"part{i % 4}", "all"))
    return made


def stages(count):
    """Stages of 4 partitions, sizes of 1 to 64 nodes, limits of hours and days, some with excludes of their own."""
    rng = random.Random(6)
    found = []
    for i in range(1, count + 1):
        size, part = rng.choice([1, 2, 4, 8, 16, 32, 64]), rng.choice(["part0", "part1", "part2", "part3", "all"])
        own = f"n{rng.randrange(10_000):05d}" if rng.random() < 0.1 else ""
        details = Details(NOW - rng.randrange(100_000), 0, size, size * rng.choice([8, 32]), size * 64000.0, size * 8)
        found.append(job(
            i, nodes=size, partition=part, minutes=rng.choice([60.0, 240.0, 1440.0, 2880.0]), priority=rng.randrange(1, 10_000),
            excludes=own, comment=mark.text(Mark(mode="avoid", excludes=own)), details=details,
        ))  # fmt: skip
    return found


def of_many_sizes(found):
    """No two stages ask for the same memory and CPUs."""
    rng = random.Random(8)
    return [
        job._replace(
            details=job.details._replace(mem=job.nodes * float(rng.randrange(1000, 500_000)), cpus=job.nodes * (i % 31 + 1))
        )
        for i, job in enumerate(found)
    ]


@pytest.mark.parametrize("shaped", [list, of_many_sizes], ids=["few sizes", "each its own size"])
@pytest.mark.parametrize("busy", [1.0, 0.7, 0.0], ids=["full", "busy", "empty"])
def test_a_thousand_stages_on_ten_thousand_nodes_take_under_two_seconds(busy, shaped):
    there = machine(busy)
    lemons = set(random.Random(7).sample(sorted(there), 100))
    made = world(shaped(stages(1000)), there=there, lemons=lemons)
    part = {"nodes": "", "default": False, "max_time": None, "state": "UP"}
    made = made._replace(live=made.live._replace(partitions={name: part for name in ("part0", "part1", "part2", "part3", "all")}))
    begun = time.process_time()
    plan = updates.plan(made, {})
    took = time.process_time() - begun
    assert plan.updates and len(plan.updates) <= 50
    assert took < LIMIT, f"{took:.2f} s"
