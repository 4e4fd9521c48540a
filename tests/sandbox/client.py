"""What tests do with a running sandbox: run commands as some user, submit, wait, plant bad nodes."""

import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from . import daemons, keeper, plant, procs
from .errors import SandboxError

FINAL = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip
_FIELD = re.compile(r"(?:^| )([A-Za-z][\w/:.]*)=")


class Client:
    """The client's side of a sandbox."""

    root: Path
    conf: Path
    outdir: Path
    env: dict[str, str]
    nodes: list[str]
    cluster: str
    version: tuple[int, int]

    def _attach(self, root: Path) -> None:
        known = json.loads((root / keeper.STATE).read_text())
        self.root = root
        self.conf = root / "etc" / "slurm.conf"
        self.outdir = root / "out"
        self.env = daemons.client_env(root)
        self.nodes = list(known["nodes"])
        self.cluster = known["cluster"]
        major, minor = known["version"]
        self.version = (major, minor)

    def client_env(self, **more: str) -> dict[str, str]:
        """A copy of the clients' environment with additions."""
        return {**self.env, **more}

    def variant(self, *lines: str, files: dict[str, str] | None = None) -> dict[str, str]:
        """Additions to the environment (`run(…, env=…)`) under which clients read a slurm.conf with more lines and files.

        For what clients alone load, such as CliFilterPlugins: the daemons and other clients don't notice.
        """
        folder = Path(tempfile.mkdtemp(prefix="etc-", dir=self.root))
        folder.chmod(0o755)
        for name in ("slurm.conf", "gres.conf", "topology.conf", "cgroup.conf"):
            shutil.copy(self.conf.parent / name, folder)
        with open(folder / "slurm.conf", "a") as conf:
            conf.writelines(f"{line}\n" for line in lines)
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        return {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(
        self,
        argv: Iterable[str | Path],
        user: str | None = None,
        check: bool = True,
        input: str | None = None,
        env: dict[str, str] | None = None,
        cwd: str | Path | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command with the clients' environment (`env` adds to it), as `user` (None: as we are)."""
        words = [str(word) for word in argv]
        prefix, who = self._as_user(user)
        done = subprocess.run(
            [*prefix, *words],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            env={**self.env, **who, **(env or {})},
            cwd=cwd or self.outdir,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise SandboxError(
                f"{' '.join(words)} (as {user or 'ourselves'}) failed ({done.returncode}): {done.stderr}{done.stdout}"
            )
        return done

    def _as_user(self, user: str | None) -> tuple[list[str], dict[str, str]]:
        if user is None:
            return [], {"HOME": os.path.expanduser("~")}
        entry = pwd.getpwnam(user)
        home = self.root / "home" / user
        if not home.exists():
            home.mkdir()
            os.chown(home, entry.pw_uid, entry.pw_gid)
        prefix = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "--"]
        return prefix, {"HOME": str(home), "USER": user, "LOGNAME": user}

    def sbatch(
        self,
        *args: str | Path,
        script: str | None = None,
        user: str | None = "alice",
        binary: str | Path = "sbatch",
        env: dict[str, str] | None = None,
    ) -> int:
        """Submit (with `script`: a file with that text) and return the job id; output goes to `outdir`."""
        argv = [str(binary), "--parsable", f"--output={self.outdir}/%j.out", *(str(arg) for arg in args)]
        if script is not None:
            argv.append(str(self.write_script(script)))
        done = self.run(argv, user=user, env=env)
        match = re.match(r"\d+", done.stdout)
        if match is None:
            raise SandboxError(f"{' '.join(argv)} printed no job id: {done.stdout!r} {done.stderr!r}")
        return int(match[0])

    def write_script(self, text: str) -> Path:
        """A new file with this text, executable for everybody."""
        handle, name = tempfile.mkstemp(prefix="job-", suffix=".sh", dir=self.root / "scripts")
        with open(handle, "w") as file:
            file.write(text)
        os.chmod(name, 0o755)
        return Path(name)

    def poll(self, fn: Callable[[], procs.T], timeout: float, what: str) -> procs.T:
        """Call `fn` until it returns something true and return that; at the deadline raise with the log tails."""
        try:
            return procs.poll(fn, timeout, what, pause=0.05)
        except SandboxError as error:
            raise SandboxError(f"{error}\n{self.logs(15)}") from None

    def wait(self, job_ids: int | Iterable[int], timeout: float = 60, states: Iterable[str] | None = None) -> dict[int, str]:
        """Wait until accounting shows each job in a final state (or in one of `states`); returns id → state.

        An array or heterogeneous job counts as one: its state is that of its worst part.
        """
        ids = [job_ids] if isinstance(job_ids, int) else list(job_ids)
        wanted = set(states) if states is not None else FINAL
        now: dict[int, str] = {}

        def reached() -> bool:
            now.clear()
            shown = self._shown(ids)  # before accounting is asked: what is still open here may have just ended there
            parts = self._parts(ids)
            now.update(_by_job(parts))
            if states is not None:  # accounting doesn't know of jobs that were never eligible
                now.update(_live(shown))
            self._refuse_other_end(now, wanted)
            return len(now) == len(ids) and set(now.values()) <= wanted and (states is not None or _complete(shown, parts))

        try:
            procs.poll(reached, timeout, f"jobs {ids} to be {sorted(wanted)}", pause=0.1)
        except SandboxError as error:
            raise SandboxError(f"{error} They are: {now or _live(self._shown(ids))}.\n{self.logs(15)}") from None
        return now

    def await_windows(self, job_ids: Iterable[int], timeout: float = 60) -> None:
        """Wait until accounting shows these jobs (by raw id) also to who asks for a stretch of time.

        Jobs that ran as soon as they were submitted come some seconds late, see accounting.history.collect.SETTLING.
        """
        wanted = {str(job) for job in job_ids}
        argv = ["sacct", "-a", "-X", "-D", "-n", "-P", "-o", "JobIDRaw", "-S", "now-2hours", "-E", "now"]
        self.poll(lambda: wanted <= set(self.run(argv).stdout.split()), timeout, "windows to show all jobs")

    def _shown(self, ids: list[int]) -> list[dict[str, str]]:
        """Fields of these jobs, and of all their parts, that slurmctld still knows."""
        lines = self.run(["scontrol", "-a", "-o", "show", "jobs"]).stdout.splitlines()
        return [job for job in map(fields, lines) if "JobId" in job and _whole(job) in ids]

    def _refuse_other_end(self, now: dict[int, str], wanted: set[str]) -> None:
        ended = {job: state for job, state in now.items() if state in FINAL - wanted}
        if ended:
            raise SandboxError(f"Jobs ended as {ended} while waiting for {sorted(wanted)}.")

    def states(self, ids: Iterable[int]) -> dict[int, str]:
        """Job id → state as accounting shows it now (only jobs it knows)."""
        return _by_job(self._parts(ids))

    def _parts(self, ids: Iterable[int]) -> list[tuple[int, str]]:
        """Accounting's rows of these jobs: the id of the whole and the state, one for each task or component."""
        names = ",".join(str(job) for job in ids)
        if not names:
            return []
        done = self.run(["sacct", "-a", "-X", "-n", "-P", "-j", names, "-o", "JobID,State"])
        rows = [line.split("|", 1) for line in done.stdout.splitlines()]
        return [(int(re.split(r"\D", name)[0]), state.split()[0]) for name, state in rows]

    def job(self, job_id: int) -> dict[str, str]:
        """Fields of `scontrol -o show job` (of the first part of an array or heterogeneous job)."""
        lines = self.run(["scontrol", "-o", "show", "job", str(job_id)]).stdout.splitlines()
        return fields(lines[0])

    def node(self, name: str) -> dict[str, str]:
        """Fields of `scontrol -o show node`."""
        return fields(self.run(["scontrol", "-o", "show", "node", name]).stdout)

    def nodestate(self, name: str) -> str:
        """State of a node as scontrol shows it, such as IDLE or DOWN+DRAIN."""
        return self.node(name)["State"]

    def plant(self, node: str, probability: float, how: str = "exit") -> None:
        """Let jobs that run the payload on this node die with this probability: by exit code, signal or DOWN node."""
        if node not in self.nodes:
            raise SandboxError(f"There is no node {node!r} to plant: {self.nodes[0]} … {self.nodes[-1]}.")
        plant.write(self.root, node, probability, how)

    def unplant(self, node: str) -> None:
        """Make the node good again."""
        plant.clear(self.root, node)

    def resume(self, node: str, timeout: float = 20) -> None:
        """Bring a DOWN or drained node back and wait until it can take jobs."""
        self.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        usable = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"}
        self.poll(lambda: set(self.nodestate(node).split("+")) <= usable, timeout, f"{node} to be usable")

    def payload(self, seconds: float = 1, work: str = "") -> str:
        """Text of a batch script: runs `work` (shell text) on each node, sleeps, dies on a planted node."""
        return plant.payload(self.root, seconds, work)

    def logs(self, n: int = 40) -> str:
        """The last `n` lines of each daemon's log."""
        return keeper.tails(self.root, n)


def _live(shown: list[dict[str, str]]) -> dict[int, str]:
    """Job id → state as slurmctld shows it."""
    return _by_job((_whole(job), job["JobState"]) for job in shown)


def _complete(shown: list[dict[str, str]], parts: list[tuple[int, str]]) -> bool:
    """Whether accounting has caught up: it learns of an array's tasks one by one, so it may yet lack some."""
    return len(shown) <= len(parts) and all(job["JobState"] in FINAL for job in shown)


def _by_job(parts: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Job id → its parts' worst state."""
    states: dict[int, list[str]] = {}
    for job, state in parts:
        states.setdefault(job, []).append(state)
    return {job: _worst(found) for job, found in states.items()}


def _worst(states: list[str]) -> str:
    """State of a job with parts: a part that isn't final counts first, then one that didn't complete."""
    return min(states, key=lambda state: (state in FINAL, state == "COMPLETED"))


def _whole(job: dict[str, str]) -> int:
    """Id under which a task or component was submitted, from its `scontrol` fields."""
    return int(job.get("ArrayJobId") or job.get("HetJobId") or job["JobId"])


def fields(line: str) -> dict[str, str]:
    """Fields of one line of `scontrol -o`: values may hold blanks and `=`, so a name must follow a blank."""
    places = list(_FIELD.finditer(line))
    if not places:  # the rest of a job name with a line break
        return {}
    ends = [match.start() for match in places[1:]] + [len(line)]
    return {match[1]: line[match.end() : end].strip() for match, end in zip(places, ends, strict=True)}
