"""What users keep to themselves: secrets in each place that a job has are nowhere in what is stored, logged or published."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.wrapped import Wrapped

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
SECRET = "hunter2-s3cr3t"

# a /dev of our own, so that its log is: DIR CMD…
_OWN_DEV = """set -eu
mount --make-rprivate /
mount --rbind /dev "$1"
mount -t tmpfs -o mode=755 tmpfs /dev
for name in null zero random urandom; do touch /dev/$name; mount --bind "$1/$name" /dev/$name; done
ln -s /proc/self/fd /dev/fd
shift
exec "$@"
"""
# OUT CMD…: runs the command and writes what it sent to syslog
_LISTEN = """
import os, socket, subprocess, sys
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.bind("/dev/log")
os.chmod("/dev/log", 0o666)
log.setblocking(False)
code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "ab") as out:
    while True:
        try:
            out.write(log.recv(65536) + b"\\n")
        except BlockingIOError:
            break
sys.exit(code)
"""


class Logged:
    """Runs commands in the sandbox's environment; all that they print or log is in `text`."""

    def __init__(self, sandbox, folder):
        self._sandbox, self._dev, self._out, self.text = sandbox, folder / "dev", folder / "syslog", ""
        self._dev.mkdir()

    def run(self, *argv, env=None):
        """Output of a command that succeeds."""
        self._out.write_bytes(b"")
        words = [str(word) for word in argv]
        inside = [sys.executable, "-c", _LISTEN, str(self._out), *words]
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", _OWN_DEV, "sh", str(self._dev), *inside],
            env={**self._sandbox.env, "PYTHONPATH": str(ROOT), **(env or {})},
            cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        self.text += done.stdout + done.stderr + self._out.read_text(errors="replace")
        return done.stdout


def test_secrets_stay_in_slurm(sandbox, tmp_path):
    wrapped, logged, made = Wrapped(sandbox), Logged(sandbox, tmp_path), tmp_path / "made"
    wrapped.publish("steer", bad=(sandbox.nodes[1],))
    (tmp_path / SECRET).mkdir()
    made.mkdir()
    script = sandbox.write_script(f"#!/bin/bash\n#SBATCH -N2 -t 5\nPASSWORD={SECRET}\nexit 3\n")
    private = [f"--comment={SECRET}", f"--export=ALL,TOKEN={SECRET}", f"--chdir={tmp_path / SECRET}", f"--output={os.devnull}"]
    env = {"API_KEY": SECRET}
    printed = logged.run(
        wrapped.sbatch, "--parsable", "--mem=50", "--job-name=kept-name", *private, script, f"--password={SECRET}", env=env
    )
    assert '"by"' in logged.text, "the decision is logged"
    assert "/bin/sbatch: line" not in logged.text
    job = int(printed)
    sandbox.wait(job)
    since = int(time.time()) - 3600

    def shown():
        return sandbox.run(["sacct", "-nPo", "JobIDRaw,Comment,WorkDir,SubmitLine", "-S", f"uts{since}", "-a"]).stdout

    sandbox.poll(lambda: str(job) in shown(), 60, "the job in a window")
    assert SECRET in shown(), "Slurm itself keeps them"
    config = tmp_path / "w.toml"
    config.write_text(f"[history]\npath = '{made}/h.db'\n[publish]\npath = '{made}'\nmetrics = '{made}'\n")
    workhorse = (sys.executable, "-m", "slurm_hook.cli", "--config", config)
    for words in (
        ("collect", "-S", "now-1hour"), ("score",), ("report", "-o", made / "report.html"), ("metrics",), ("refresh",),
        ("nodes",), ("lemons",), ("db", "vacuum"),
    ):  # fmt: skip
        logged.run(*workhorse, *words)
    names = {path.name for path in made.iterdir()}
    assert {"h.db", "scores.json", "report.html"} <= names and any(name.endswith(".prom") for name in names)
    assert b"kept-name" in b"".join(path.read_bytes() for path in made.glob("h.db*")), "what is kept can be found like this"
    for path in (p for p in made.rglob("*") if p.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path.name
    assert SECRET not in logged.text
