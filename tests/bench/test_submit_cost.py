# ruff: noqa: E501
"""What a submission costs through the wrapper and the cli_filter, side by side with plain sbatch in one run.

`pytest tests/bench/test_submit_cost.py -s` prints the table. Calls of all kinds are made in turn, so that a busy moment
hits them alike. What is held against the bounds is the median over the rounds of each call's time over that of the plain one
made beside it: a short call finds a quiet moment on a busy machine, a long one never does, so that the fastest of each can't
be compared.
"""

from __future__ import annotations

import compileall
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_hook.common import hostlist
from tests.sandbox import Sandbox
from tests.wrapped import PYTHON, REAL, Wrapped

pytestmark = [pytest.mark.bench, pytest.mark.integration]
ROUNDS = 40
SMALL = "#!/bin/bash\n#SBATCH -N1 -J small -t 5 -o /dev/null\n#SBATCH --mem=1000\nexport A=1\ntrue\n"
LARGE = "#!/bin/bash\n#SBATCH -N4 -J large -t 5 -o /dev/null\n#SBATCH --mem=1000\nexport A=1\ntrue\n"
EMPTY = "".join(f"function {name}() return slurm.SUCCESS end\n" for name in (
    "slurm_cli_setup_defaults", "slurm_cli_pre_submit", "slurm_cli_post_submit"))  # fmt: skip


class Caller:
    """Makes held submissions and takes their time."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.small, self.large = sandbox.write_script(SMALL), sandbox.write_script(LARGE)

    def submit(self, *argv: str | Path, env: dict[str, str] | None = None) -> float:
        started = time.perf_counter()
        done = subprocess.run([str(w) for w in argv], env={**self.sandbox.env, "SHLVL": "1", "PWD": "/tmp", **(env or {})}, cwd="/tmp",
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)  # fmt: skip
        spent = time.perf_counter() - started
        number = re.findall(r"\d+", done.stdout)
        if number:
            subprocess.run(["scancel", number[-1]], env=self.sandbox.env, check=False, capture_output=True)
        return spent * 1000


def timed(ways: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Milliseconds of each way in each round; called in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            times[name].append(call())
    return times


def table(title: str, found: dict[str, list[float]], base: str) -> dict[str, float]:
    """Prints, and gives for each way, how many times the plain call beside it takes: the median over the rounds."""
    print(f"\n{title:<46} {'fastest':>7} {'median':>10}   times the plain one")
    times = {name: statistics.median(ms / plain for ms, plain in zip(took, found[base])) for name, took in found.items()}
    for name, took in found.items():
        print(f"  {name:<44} {min(took):7.1f} {statistics.median(took):7.1f} ms  {times[name]:5.2f}x")
    return times


@pytest.fixture(scope="module")
def caller(sandbox: Sandbox) -> Caller:
    return Caller(sandbox)


@pytest.fixture(scope="module")
def wrapped(sandbox: Sandbox) -> Wrapped:
    made = Wrapped(sandbox, with_hints=True)
    made.publish("steer", bad=("gpu02",), method="attributed")
    return made


def test_cost_beside_plain_sbatch(caller: Caller, wrapped: Wrapped) -> None:
    hold = ("--hold",)
    found = timed({
        "sbatch": lambda: caller.submit(REAL, *hold, caller.small),
        "shim, not ours": lambda: caller.submit(wrapped.sbatch, *hold, caller.small),
        "sbatch, 4 nodes": lambda: caller.submit(REAL, *hold, caller.large),
        "shim, steered": lambda: caller.submit(wrapped.sbatch, *hold, caller.large),
    })  # fmt: skip
    times = table("16 nodes", found, "sbatch")
    shares(caller, wrapped, min(found["shim, steered"]))
    assert times["shim, not ours"] <= 1.5
    assert times["shim, steered"] <= 9


def shares(caller: Caller, wrapped: Wrapped, whole: float) -> None:
    """Where a steered submission spends its time: each step alone, as far as it can be had alone."""
    entry = "import sys\nsys.path.insert(0, sys.argv[1])\n"
    modules = "from slurm_hook.submit import wrapper; from slurm_hook.slurm import sbatch_options as options, cluster, request; from slurm_hook.published import snapshot, mark; from slurm_hook.decision import directives, match, decide; from slurm_hook.common import hostlist"
    python = (PYTHON, "-I", "-S", "-c")
    read = f"{modules}\nsnapshot.read_scores(sys.argv[2])\nsnapshot.read_live(sys.argv[2])"
    steps = timed({
        "python -I -S": lambda: caller.submit(*python, "pass"),
        "  + our imports": lambda: caller.submit(*python, entry + modules, str(wrapped.lib)),
        "  + published files": lambda: caller.submit(*python, entry + read, str(wrapped.lib), str(wrapped.public)),
        "scontrol -o show node (not used)": lambda: caller.submit("scontrol", "-o", "show", "node"),
        "/bin/bash -p": lambda: caller.submit("/bin/bash", "-p", "-c", "exec /bin/true"),
    }, 15)  # fmt: skip
    print("  steps alone:")
    for name, took in steps.items():
        print(f"    {name:<42} {min(took):7.1f} ms  {100 * min(took) / whole:3.0f} % of steered")


def test_cost_of_the_cli_filter(caller: Caller, wrapped: Wrapped) -> None:
    empty, ours = wrapped.cli_filter(EMPTY), wrapped.cli_filter()
    found = timed({
        "sbatch, empty cli_filter": lambda: caller.submit(REAL, "--hold", caller.small, env=empty),
        "sbatch, our cli_filter, not ours": lambda: caller.submit(REAL, "--hold", caller.small, env=ours),
        "sbatch, our cli_filter, steered": lambda: caller.submit(REAL, "--hold", caller.large, env=ours),
    })  # fmt: skip
    times = table("cli_filter", found, "sbatch, empty cli_filter")
    assert times["sbatch, our cli_filter, not ours"] <= 1.05


def test_rpcs_counted_by_slurmctld(sandbox: Sandbox, caller: Caller, wrapped: Wrapped) -> None:
    """None extra for a job that isn't ours, one for a steered one."""

    def cost(*argv: str | Path) -> int:
        counts = []
        for _ in range(5):
            sandbox.run(["sdiag", "--reset"])
            before = client_rpcs(sandbox)
            subprocess.run(
                [str(w) for w in argv], env=sandbox.env, cwd="/tmp", stdin=subprocess.DEVNULL, capture_output=True, check=True
            )
            counts.append(client_rpcs(sandbox) - before)
        return min(counts)

    plain = cost(REAL, "--hold", caller.small)
    assert cost(wrapped.sbatch, "--hold", caller.small) == plain
    assert cost(wrapped.sbatch, "--hold", caller.large) == plain + 1
    sandbox.run(["scancel", "-u", "root"], check=False)


def client_rpcs(sandbox: Sandbox) -> int:
    shown = sandbox.run(["sdiag"]).stdout.split("by message type")[1].split("by user")[0]
    names = re.findall(r"(\w+) +\( *\d+\) count:(\d+)", shown)
    return sum(int(n) for name, n in names if name in ("REQUEST_SUBMIT_BATCH_JOB", "REQUEST_NODE_INFO", "REQUEST_NODE_INFO_SINGLE",
        "REQUEST_PARTITION_INFO", "REQUEST_JOB_INFO", "REQUEST_JOB_INFO_SINGLE", "REQUEST_JOB_WILL_RUN", "REQUEST_BUILD_INFO",
        "REQUEST_RESERVATION_INFO", "REQUEST_TOPO_INFO", "REQUEST_HET_JOB_ALLOC_INFO", "REQUEST_SUBMIT_BATCH_HET_JOB", "REQUEST_PING"))  # fmt: skip


# --- 5,000 nodes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def five_thousand() -> Iterator[Sandbox]:
    """slurmctld of a small sandbox, told of 5,000 more nodes in the cloud, which can be chosen but never run."""
    lines = ["PrivateData=cloud", "SuspendTime=INFINITE", "SuspendProgram=/bin/true", "ResumeProgram=/bin/true", "TreeWidth=5000",
             "NodeName=cloud[00001-05000] CPUs=64 RealMemory=1000000 Gres=gpu:8 State=CLOUD",
             "PartitionName=cloud Nodes=cloud[00001-05000] Default=YES MaxTime=INFINITE State=UP"]  # fmt: skip
    with Sandbox(nodes=4, extra_conf=lines) as running:
        yield running


def count_as_open(wrapped: Wrapped) -> None:
    """Nodes in the cloud are powered down here, so none could start a job now; for this measurement they count as up."""
    module = wrapped.lib / "slurm_hook" / "slurm" / "cluster.py"
    text = module.read_text()
    assert '"POWERED_DOWN", ' in text
    module.write_text(text.replace('"POWERED_DOWN", ', ""))
    compileall.compile_dir(str(wrapped.lib), quiet=1)


def test_cost_at_five_thousand_nodes(five_thousand: Sandbox) -> None:
    caller, wrapped = Caller(five_thousand), Wrapped(five_thousand, with_hints=True)
    count_as_open(wrapped)
    partitions = {"cloud": {"nodes": "", "default": True, "max_time": None, "state": "UP"}}
    wrapped.publish("steer", bad=("cloud00007",), method="attributed", live_fields={"partitions": partitions})
    script = five_thousand.write_script(LARGE.replace("-N4", "-N64 -p cloud"))
    before = caller.submit(wrapped.sbatch, "--hold", script)
    shown = subprocess.run(
        [str(wrapped.sbatch), "--hold", str(script)], env=five_thousand.env, capture_output=True, text=True, check=True
    )
    job = five_thousand.job(int(shown.stdout.split()[-1]))
    assert len(hostlist.expand(job["ExcNodeList"])) == 4936, f"not confined to 64 nodes (first call took {before:.0f} ms)"
    found = timed({
        "sbatch": lambda: caller.submit(REAL, "--hold", script),
        "shim, steered": lambda: caller.submit(wrapped.sbatch, "--hold", script),
        "scontrol -o show node": lambda: caller.submit("scontrol", "-o", "show", "node"),
    }, 15)  # fmt: skip
    times = table("5,000 nodes", found, "sbatch")
    shares(caller, wrapped, min(found["shim, steered"]))
    assert times["shim, steered"] <= 35
