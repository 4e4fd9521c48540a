"""The `sbatch` shim set up in a folder of its own for a sandbox: what tests (and a reader) need to see it at work."""

from __future__ import annotations

import compileall
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slurm_hook.common.config import Settings
from slurm_hook.published import snapshot
from slurm_hook.slurm import cluster
from slurm_hook.submit import hints
from tests.sandbox import Sandbox
from tests.sandbox.client import Client

ROOT = Path(__file__).resolve().parents[1]
REAL = "/usr/bin/sbatch"
# ordinary users must be able to run it, which a venv in somebody's home may not allow
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable


def write_shim(target: Path, **values: str | Path) -> Path:
    """A copy of etc/sbatch with its settings (REAL, PYTHON, LIB, PUBLISH, LOCAL, UID, WAIT) set as the install sets them."""
    text = (ROOT / "etc" / "sbatch").read_text()
    for name, value in values.items():
        quoted = "'" + str(value).replace("'", "'\\''") + "'"
        text, count = re.subn(rf"(?m)^_wh_{name}=.*$", lambda _, q=quoted, n=name: f"_wh_{n}={q}", text, count=1)
        if count != 1:
            raise AssertionError(f"etc/sbatch has no line _wh_{name}=")
    target.write_text(text)
    target.chmod(0o755)
    return target


def lua_text(name: str, **values: str | Path) -> str:
    """A Lua plugin of etc/lua with its settings (REAL, PYTHON, LIB, PUBLISH, LOCAL, SERVICE_UID, WAIT, TABLE) set."""
    text = (ROOT / "etc" / "lua" / name).read_text()
    for key, value in values.items():
        text, count = re.subn(rf'(?m)^local {key} = "[^"]*"', f'local {key} = "{value}"', text, count=1)
        if count != 1:
            raise AssertionError(f"etc/lua/{name} has no line local {key} =")
    return text


class Wrapped:
    """A shim with its own library copy and published folder. `sbatch` is its path."""

    def __init__(
        self, sandbox: Sandbox | Client, *, real: str = REAL, python: str = PYTHON, with_hints: bool = False, wait: float = 15
    ) -> None:
        self.sandbox = sandbox
        self.root = Path(tempfile.mkdtemp(prefix="wh-", dir=sandbox.root))
        self.root.chmod(0o755)
        self.lib, self.public, self.local = (self.root / name for name in ("lib", "public", "local"))
        for folder in (self.lib, self.public, self.local, self.root / "bin"):
            folder.mkdir(mode=0o755)
        shutil.copytree(ROOT / "slurm_hook", self.lib / "slurm_hook", ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(str(self.lib), quiet=1)
        self.with_hints, self.wait = with_hints, wait
        self.sbatch = write_shim(
            self.root / "bin" / "sbatch",
            REAL=real,
            PYTHON=python,
            LIB=self.lib,
            PUBLISH=self.public,
            LOCAL=self.local,
            WAIT=wait,  # machines that run tests are busy
        )

    def publish(
        self,
        mode: str = "steer",
        *,
        bad: Iterable[str] = (),
        capability: Mapping[str, float] | None = None,
        method: str = "published",
        live: bool = True,
        age: float = 0.0,
        live_fields: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> snapshot.Scores:
        """Write scores.json (capability 1 where not given; `bad` are lemons) and live.json for the nodes as they are."""
        now = time.time()
        nodes = cluster.parse_nodes(self.sandbox.run(["scontrol", "-o", "show", "node"]).stdout)
        known = Settings().replace(steer__mode=mode, **settings)
        scores = snapshot.Scores(
            id=f"test-{int(now * 1000)}", cluster="sandbox", created=now - age, as_of=now - age, method=method,
            settings=known.hook_mapping(), nodes={n: self._score(node, set(bad), capability or {}) for n, node in nodes.items()},
        )  # fmt: skip
        snapshot.write_json(str(self.public), snapshot.SCORES_NAME, snapshot.scores_to_json(scores))
        (self.public / snapshot.LIVE_NAME).unlink(missing_ok=True)
        if live:
            partitions = {
                "llm": {"nodes": "", "default": True, "max_time": None, "state": "UP"},
                "small": {"nodes": "", "default": False, "max_time": None, "state": "UP"},
            }
            found = snapshot.Live(cluster="sandbox", created=now, partitions=partitions)._replace(**(live_fields or {}))
            snapshot.write_json(str(self.public), snapshot.LIVE_NAME, snapshot.live_to_json(found))
        if self.with_hints:
            hints.write(str(self.local), known)
        return scores

    def write_filter(self, folder: Path, **values: str | Path) -> Path:
        """What our cli_filter.lua loads, set as the install sets it; values: others of its settings."""
        ask = folder / "workhorse_cli_filter_ask.lua"
        ask.write_text(lua_text(ask.name, **{"PYTHON": PYTHON, "LIB": self.lib, "PUBLISH": self.public, **values}))
        real = folder / "workhorse_cli_filter.lua"
        real.write_text(lua_text(real.name, ASK=ask, LOCAL=self.local))
        return real

    def cli_filter(self, loader: str | None = None) -> dict[str, str]:
        """The environment of clients that load our cli_filter (`loader` is its text; the real file lies in `root`)."""
        real = self.root / "workhorse_cli_filter.lua"
        if not real.exists():
            self.write_filter(self.root, WAIT=str(self.wait))
        text = loader if loader is not None else lua_text("cli_filter.lua", REAL=real)
        return self.sandbox.variant("CliFilterPlugins=cli_filter/lua", files={"cli_filter.lua": text})

    def _score(self, node: cluster.Node, bad: set[str], capability: Mapping[str, float]) -> snapshot.NodeScore:
        own = capability.get(node.name, 0.02 if node.name in bad else 1.0)
        place = self.sandbox.nodes.index(node.name) if node.name in self.sandbox.nodes else 0
        return snapshot.NodeScore(
            node.name, capability=own, relative=own, tasks=30, lemon=node.name in bad, capacity=node.mem, mem=int(node.mem),
            cpus=node.cpus, gpus=node.gpus, gpu_type=node.gpu_type, partitions=node.partitions,
            switch=f"leaf{place * 4 // max(1, len(self.sandbox.nodes)) + 1}",
        )  # fmt: skip
