"""The submit path stays light: what it imports is a fixed list, and it runs on Python 3.9 syntax."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# modules that a plain submission may import; the rest of the hook is for the command line and dispatch
SUBMIT_PATH = (
    "__init__", "errors", "light", "config", "hostlist", "snapshot", "mark", "request", "options", "directives", "match",
    "cluster", "nodeinfo", "feasible", "topology", "placement", "drawing", "spare", "sizing", "case", "decide", "log", "wrapper",
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
    names = _imports(ROOT / "slurm_hook" / f"{module}.py")
    assert names <= set(sys.stdlib_module_names), f"{module} imports a package that a login node does not have"
    assert "dataclasses" not in names, f"{module}: dataclasses costs more than Python's own start; use light.Record"
