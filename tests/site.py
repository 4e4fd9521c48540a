"""The product installed into a sandbox's folder, as a site would have it: shim, library, settings, published files.

By hand, where `python3 -m tests.sandbox up` has left one running: `eval "$(python3 -m tests.site)"`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from slurm_hook.common.hostlist import expand
from tests.sandbox import SandboxError
from tests.sandbox.__main__ import chosen
from tests.sandbox.client import Client
from tests.sandbox.cluster import attach

REPO = Path(__file__).resolve().parents[1]
CHILD_PYTHON = "/usr/bin/python3"


class Site:
    """An installation below `sandbox.root/<name>`: `sbatch` is the shim, `workhorse()` runs the command with its settings.

    settings: TOML lines by section, beside the paths that are set here.
    """

    def __init__(
        self, sandbox: Client, mode: str = "steer", settings: dict[str, Iterable[str]] | None = None, name: str = "site"
    ) -> None:
        self.sandbox = sandbox
        self.root = Path(sandbox.root) / name
        self.mode = mode
        self.settings = {section: list(lines) for section, lines in (settings or {}).items()}
        self.config = self.root / "workhorse.toml"
        self.public = self.root / "public"
        self.lib = self.root / "lib"
        self.local = self.root / "local"
        self.sbatch = self.root / "bin" / "sbatch"
        self._dispatch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Site:
        self.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop_dispatch()

    def install(self) -> None:
        """Lay the files out; harmless when it was done before (settings are written anew)."""
        for folder in (self.root, self.public, self.local, self.sbatch.parent):
            folder.mkdir(mode=0o755, exist_ok=True)
        shutil.copytree(
            REPO / "slurm_hook", self.lib / "slurm_hook", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        for path in (self.lib, *self.lib.rglob("*")):  # a checkout that only root may read has such modes
            path.chmod(0o755 if path.is_dir() else 0o644)
        subprocess.run([CHILD_PYTHON, "-I", "-m", "compileall", "-q", str(self.lib)], check=True, timeout=60)
        self.sbatch.write_text(self._shim())
        self.sbatch.chmod(0o755)
        self.configure()

    def _shim(self) -> str:
        values = {"REAL": shutil.which("sbatch", path=self.sandbox.env["PATH"]), "PYTHON": CHILD_PYTHON, "LIB": self.lib,
                  "PUBLISH": self.public, "LOCAL": self.local, "UID": os.getuid()}  # fmt: skip
        text = (REPO / "etc" / "sbatch").read_text()
        for key, value in values.items():
            text, count = re.subn(
                rf"^_wh_{key}=.*$", lambda _, k=key, v=value: f"_wh_{k}={shlex.quote(str(v))}", text, flags=re.M
            )
            assert count == 1, f"etc/sbatch has no line _wh_{key}="
        return text

    def configure(self, mode: str | None = None, **sections: Iterable[str]) -> None:
        """Write the settings file (mode and further lines by section as given, else as before)."""
        self.mode = mode or self.mode
        self.settings.update({section: list(lines) for section, lines in sections.items()})
        own = {
            "history": [f'path = "{self.root}/history.db"'],
            "publish": [f'path = "{self.public}"'],
            "dispatch": [f'state = "{self.root}/dispatch.json"', "period = 2"],
            "steer": [f'mode = "{self.mode}"'],
        }
        if any(line.startswith("period") for line in self.settings.get("dispatch", ())):
            own["dispatch"].remove("period = 2")
        names = [*own, *(s for s in self.settings if s not in own)]
        lines = [line for s in names for line in (f"[{s}]", *own.get(s, ()), *self.settings.get(s, ()), "")]
        self.config.write_text("\n".join(lines))
        self.config.chmod(0o644)

    def workhorse(
        self, *args: str | Path, user: str | None = None, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line with this interpreter and the site's settings."""
        entry = "from slurm_hook.cli import main; main()"
        env = {"PYTHONPATH": str(REPO), "WORKHORSE_CONFIG": str(self.config), "COLUMNS": "160", "PYTHONDONTWRITEBYTECODE": "1"}
        return self.sandbox.run([sys.executable, "-c", entry, *map(str, args)], user=user, check=check, env=env, timeout=timeout)

    def start_dispatch(self) -> None:
        """Run `workhorse dispatch --watch` beside, until `stop_dispatch`; returns when its first live.json is there."""
        own = {"PYTHONPATH": str(REPO), "WORKHORSE_CONFIG": str(self.config), "PYTHONDONTWRITEBYTECODE": "1"}
        env = {**self.sandbox.env, **own}
        argv = [sys.executable, "-c", "from slurm_hook.cli import main; main()", "dispatch", "--watch"]
        with open(self.root / "dispatch.log", "ab") as log:
            self._dispatch = subprocess.Popen(argv, env=env, cwd=self.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.sandbox.poll(lambda: (self.public / "live.json").exists() or self._died(), 20, "dispatch's first live.json")

    def _died(self) -> bool:
        if self._dispatch is not None and self._dispatch.poll() is not None:
            log = (self.root / "dispatch.log").read_text()[-2000:]
            raise AssertionError(f"dispatch ended with {self._dispatch.returncode}: {log}")
        return False

    def stop_dispatch(self) -> None:
        """End the dispatcher if it runs."""
        process, self._dispatch = self._dispatch, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=10)

    def expand(self, node_list: str) -> list[str]:
        """Names of a node list as Slurm prints it; none for (null)."""
        return [] if node_list in ("", "(null)") else expand(node_list)


def exports(site: Site) -> list[str]:
    """Lines for a shell in which `sbatch` is the shim and `workhorse` has the settings of this site."""
    path = f"{site.sbatch.parent}:{REPO}/.venv/bin"
    return [
        f"export SLURM_CONF={shlex.quote(site.sandbox.env['SLURM_CONF'])} WORKHORSE_CONFIG={shlex.quote(str(site.config))}",
        f"export PATH={shlex.quote(path)}:$PATH",
    ]


def main(argv: list[str] | None = None) -> int:
    """Install into a sandbox that runs and print export lines; errors become one message and exit code 1."""
    words = "Install into a running sandbox; print export lines."
    parser = argparse.ArgumentParser(prog="python3 -m tests.site", description=words)
    parser.add_argument("--dir", metavar="D", help="the sandbox's directory (default: the one of this checkout)")
    parser.add_argument("--mode", choices=("off", "observe", "avoid", "steer"), default="steer", help="(default: %(default)s)")
    options = parser.parse_args(argv)
    try:
        site = Site(attach(chosen(options.dir)), options.mode)
    except SandboxError as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    os.umask(0o022)  # users submit through it, whatever root's habit is
    site.install()
    print("\n".join(exports(site)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
