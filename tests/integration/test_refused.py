"""Slurm never refuses a job for our excludes: partitions of several kinds of nodes, and the wrapper beside plain sbatch."""

import re
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.sandbox import Sandbox
from tests.wrapped import REAL, Wrapped

pytestmark = pytest.mark.integration
# of the 16 nodes 4 are small; gpu13 to gpu16 are in both partitions
SMALL = "gpu[01-02,15-16]"
COUNTS = (
    "-N2", "-N3", "-N4", "-N9", "-N12", "-N13", "-N16", "-N17", "-N2-13", "-n40", "-n90", "--gpus=100", "--gpus=112",
)  # fmt: skip
MORE = (
    "", "-c9", "--mem=200000", "--gpus-per-node=8", "-p small", "-p llm,small", "-C big", "-C small|big", "--hint=nomultithread",
)  # fmt: skip
CALLS = [f"{count} {more}".split() for count in COUNTS for more in MORE if not ("--gpus=" in count and "gpus-per" in more)]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """One that refuses at once what no node can hold."""
    with Sandbox(nodes=16, extra_conf=["EnforcePartLimits=ALL"]) as running:
        running.run(["scontrol", "update", "NodeName=gpu[03-14]", "AvailableFeatures=big", "ActiveFeatures=big"])
        running.run(["scontrol", "update", f"NodeName={SMALL}", "AvailableFeatures=small", "ActiveFeatures=small"])
        running.run(["scontrol", "update", "PartitionName=small", "MaxNodes=4"])
        yield running


@pytest.mark.parametrize("mode", ["avoid", "steer"])
def test_what_slurm_takes_it_takes_with_our_excludes(sandbox, mode):
    wrapped = Wrapped(sandbox)
    wrapped.publish(mode, bad=("gpu02", "gpu04", "gpu05", "gpu15"), match__min_nodes=1, steer__max_excluded=0.4)
    taken, ours = 0, 0
    for call in CALLS:
        made = []
        for sbatch in (REAL, wrapped.sbatch):
            done = sandbox.run([sbatch, "-H", "-t5", "-o", "/dev/null", *call, "--wrap=true"], check=False)
            made.append((done.returncode, re.sub(r"\d+", "N", done.stdout), done.stderr))
            if done.returncode == 0:
                number = done.stdout.split()[-1]
                ours += sandbox.job(int(number))["ExcNodeList"] != "(null)"
                sandbox.run(["scancel", number])
        assert made[0][0] == made[1][0] and made[0][1] == made[1][1], (call, made)
        taken += made[0][0] == 0
    assert taken > 40 and ours > 20 and taken < len(CALLS)


def test_wrong_options_end_it_before_stdin_is_closed(sandbox):
    """Nobody waits for a script that nobody will look at."""
    wrapped = Wrapped(sandbox)
    wrapped.publish("steer")
    for argv in (["--nosuch"], ["-N4", "--mem=x"]):
        with subprocess.Popen(["sleep", "20"], stdout=subprocess.PIPE) as writer:
            started = time.monotonic()
            done = subprocess.run(
                [wrapped.sbatch, *argv], stdin=writer.stdout, env=sandbox.env, capture_output=True, timeout=30, check=False
            )
            assert done.returncode != 0 and time.monotonic() - started < 3
            writer.kill()
