"""The submit path stays light: what it imports is a fixed list, and it runs on Python 3.9 syntax."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pythons

ROOT = Path(__file__).resolve().parents[2]
# modules that a plain submission may import; the rest of the hook is for the command line and dispatch
SUBMIT_PATH = (
    "__init__", "common.errors", "common.record", "common.config", "common.hostlist", "published.snapshot", "published.mark",
    "published.decision_log", "slurm.request", "slurm.sbatch_options", "slurm.cluster", "slurm.node_rpc", "decision.directives",
    "decision.match", "decision.feasibility", "decision.switches", "decision.wheel", "decision.placement", "decision.drawing",
    "decision.spare", "decision.safe_excludes", "decision.sizing", "decision.case", "decision.candidates", "decision.decide",
    "submit.batch_script", "submit.wrapper",
)  # fmt: skip


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("module", SUBMIT_PATH)
def test_submit_path_is_standard_library_and_light(module):
    names = _imports(ROOT / "slurm_hook" / f"{module.replace('.', '/')}.py")
    assert names <= set(sys.stdlib_module_names), f"{module} imports a package that a login node does not have"
    assert "dataclasses" not in names, f"{module}: dataclasses costs more than Python's own start; use light.Record"


# imports all of it, publishes scores with one lemon, reads them back as a submission would, and prints the lemon
READS = """
import sys, time
sys.path.insert(0, sys.argv[1])
import importlib
for name in sys.argv[2].split(","):
    importlib.import_module("slurm_hook." + name)
from slurm_hook.published import decision_log, snapshot
from slurm_hook.common.config import Settings
node = lambda name, value: snapshot.NodeScore(name, capability=value, relative=value, lemon=value < 0.1, tasks=5)
nodes = {f"n{i}": node(f"n{i}", 0.01 if i == 3 else 1.0) for i in range(1, 9)}
made = snapshot.Scores("s", "c", time.time(), time.time(), "attributed", Settings().hook_mapping(), nodes)
snapshot.write_json(sys.argv[3], "scores.json", snapshot.scores_to_json(made))
read = snapshot.read_scores(sys.argv[3], trusted_uids=[__import__("os").geteuid()])
print(sys.version_info[:2], sorted(n for n, s in read.nodes.items() if s.lemon), decision_log.failure("wrapper", "slurm", "x"))
"""


def test_it_does_without_the_costly_ones():
    """Each costs a millisecond or more of every steered submission."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfor n in sys.argv[2].split(','): __import__('slurm_hook.' + n)\n"
        "print(*sorted({'os', 'random', 're', 'enum', 'json', 'typing', 'subprocess', 'hashlib'} & set(sys.modules)))"
    )
    names = ",".join(name for name in SUBMIT_PATH if name != "__init__")
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-S", "-c", code, str(ROOT), names], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_no_isolated_child_of_a_test_writes_into_the_checkout():
    """-I ignores PYTHONPYCACHEPREFIX, which keeps a checkout clean of compiled modules; those of a copy are its own."""
    isolated = re.compile(r'\W"-I",')
    files = [path for part in ("", "unit", "integration") for path in (ROOT / "tests" / part).glob("*.py")]
    lines = [f"{path.name}: {line.strip()}" for path in files for line in path.read_text().splitlines() if isolated.search(line)]
    assert [line for line in lines if '"-B"' not in line and "compileall" not in line] == []
    assert len(lines) > 1, "the pattern finds nothing any more"


@pytest.mark.parametrize("version", pythons.OLDER)
def test_submit_path_runs_on_an_older_python(version, tmp_path):
    """Every module of it is imported, published files are written and read, a log line is made; warnings are errors."""
    python = pythons.older().get(version)
    if python is None:
        pytest.skip(f"there is no {version} here")
    names = ",".join(name for name in SUBMIT_PATH if name != "__init__")
    argv = [python, "-I", "-B", "-W", "error", "-c", READS, str(ROOT), names, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    minor = int(version.rpartition(".")[2])
    assert done.returncode == 0 and done.stdout.startswith(f"(3, {minor}) ['n3'] " + "{"), done.stderr
