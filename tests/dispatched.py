"""Dispatch set up for a sandbox: a published folder with scores, a state file, passes in this process."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from slurm_hook.common import hostlist
from slurm_hook.common.config import Settings
from slurm_hook.dispatch import passes
from slurm_hook.published import mark, snapshot
from slurm_hook.published.mark import Mark
from slurm_hook.slurm import jobs
from slurm_hook.slurm.jobs import Job
from tests.sandbox.client import Client

SLEEP = "#!/bin/sh\nsleep 300\n"


class Dispatched:
    """`one_pass` runs dispatch once against the sandbox; `sbatch` submits jobs that are cancelled in the end."""

    def __init__(self, sandbox: Client, patch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.sandbox = sandbox
        self.root = Path(tempfile.mkdtemp(prefix="dispatch-", dir=sandbox.root))
        self.root.chmod(0o755)
        for name, value in {**sandbox.env, "PYTHONDONTWRITEBYTECODE": "1"}.items():  # nothing of ours into the checkout
            patch.setenv(name, value)
        self.settings = Settings({
            "publish.path": str(self.root), "dispatch.state": str(self.root / "state.json"), "steer.mode": "steer",
            "dispatch.period": 2.0, **{key.replace("__", "."): value for key, value in settings.items()},
        })  # fmt: skip
        self.submitted: list[int] = []
        self.publish()

    def publish(self, bad: Iterable[str] = ()) -> None:
        """Write scores: lemons and good nodes."""
        lemons = set(bad)
        nodes = {
            name: snapshot.NodeScore(
                name, capability=0.02 if name in lemons else 1.0, relative=0.02 if name in lemons else 1.0, lemon=name in lemons,
            )
            for name in self.sandbox.nodes
        }  # fmt: skip
        now = time.time()
        scores = snapshot.Scores(
            id="t1", cluster=self.sandbox.cluster, created=now, as_of=now, method="attributed",
            settings=self.settings.hook_mapping(), nodes=nodes,
        )  # fmt: skip
        snapshot.write_json(str(self.root), snapshot.SCORES_NAME, snapshot.scores_to_json(scores))

    def one_pass(self, **settings: Any) -> passes.Report:
        return passes.one_pass(self.settings.replace(**settings))

    def release(self) -> passes.Report:
        return passes.release(self.settings)

    def live(self) -> snapshot.Live:
        return snapshot.read_live(self.settings["publish.path"], trusted_uids=(os.getuid(),))

    def sbatch(self, *args: str, script: str = SLEEP, mode: str = "avoid", comment: str | None = None, **more: Any) -> int:
        """Submit a job that carries a mark, as the wrapper would have left it."""
        told = mark.text(Mark(mode=mode)) if comment is None else comment
        job = self.sandbox.sbatch(*args, *([f"--comment={told}"] if told else []), script=script, **more)
        self.submitted.append(job)
        return job

    def fill(self) -> int:
        """Occupy all nodes."""
        job = self.sbatch(f"-N{len(self.sandbox.nodes)}", "--exclusive", comment="", user="bob")
        self.sandbox.poll(lambda: self.job(job).state == "RUNNING", 30, "the machine to be full")
        return job

    def job(self, number: int) -> Job:
        return next(job for job in jobs.load() if job.id == number)

    def excludes(self, number: int) -> str:
        return hostlist.fold(jobs.nodes_of(self.job(number).excludes))

    def clean(self) -> None:
        for job in self.submitted:
            self.sandbox.run(["scancel", str(job)], check=False)
        self.sandbox.poll(lambda: not self.sandbox.run(["squeue", "-h"]).stdout.strip(), 40, "the queue to be empty")
