"""README from its top, as a new admin reads it: every command of it pasted as it stands, in order, on hosts of their own.

A controller, a login node and a laptop without Slurm; one real Slurm is their cluster, found in /etc/slurm as on any site.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.bare import BareHost

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
README, ROLLOUT = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "etc/doc/rollout.md").read_text(encoding="utf-8")
ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}
CHECKOUT = ("install.sh", "README.md", "LICENSE", "pyproject.toml", "etc", "slurm_hook", "accounting")


@dataclass
class Block:
    """A block of commands: the words before it, and its lines."""

    before: str
    text: str
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = [line for line in self.text.splitlines() if line and not line.startswith("#")]


def blocks(text: str, title: str, language: str = "sh") -> list[Block]:
    """Those of one section, each with the paragraph before it."""
    section = text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    return [Block(m[1], m[2]) for m in re.finditer(rf"([^\n]*)\n\n?```{language}\n(.*?)```", section, re.DOTALL)]


def paste(host: BareHost, block: Block, user: str = "root", home: str = "/root", env: dict[str, str] | None = None):
    """The block into one shell, line after line as it stands. Returns [(line, exit code, output)]."""
    script = "".join(f'{line}\necho "@@$?@@"\n' for line in block.lines)
    argv = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "bash", "-c", script]
    done = host.run(argv, env={**ENV, "HOME": home, **(env or {})}, check=False, cwd=f"{home}/slurm-workhorse")
    parts = re.split(r"@@(\d+)@@\n", done.stdout)
    assert len(parts) == 2 * len(block.lines) + 1, f"the shell ended early:\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr
    return [(line, int(code), out) for line, code, out in zip(block.lines, parts[1::2], parts[::2])], done.stderr


def pasted(host, block, *, allowed=(), **how):
    """The same, and every line did its work. allowed: beginnings of lines that may end with 1 (doctor's warnings)."""
    results, err = paste(host, block, **how)
    for line, code, out in results:
        assert code == 0 or (code == 1 and line.startswith(allowed)), f"{line}: exit code {code}\n{out}{err}"
    return {line.split("  ")[0].strip(): out for line, _, out in results}


def happened(sandbox):
    """A few jobs, two of them ended by their node, which is then taken out of service; all of it is in accounting."""
    bad = sandbox.nodes[2]
    sandbox.plant(bad, 1.0)
    jobs = [sandbox.sbatch(f"-w{bad}", script=sandbox.payload(1.1), user=user) for user in ("alice", "bob")]
    jobs += [sandbox.sbatch("-N2", "--wrap", "sleep 1.1") for _ in range(3)]
    sandbox.wait(jobs)
    sandbox.unplant(bad)
    sandbox.run(["scontrol", "update", f"NodeName={bad}", "State=DOWN", "Reason=Xid 79"])
    sandbox.resume(bad)
    asked = ["sacct", "-a", "-X", "-n", "-S", "now-1hour", "-E", "now", "-o", "JobIDRaw"]
    sandbox.poll(lambda: {str(job) for job in jobs} <= set(sandbox.run(asked).stdout.split()), 60, "the jobs in accounting")
    events = ["sacctmgr", "-nP", "list", "event", "start=now-1hour"]
    sandbox.poll(lambda: "Xid 79" in sandbox.run(events).stdout, 60, "the event in accounting")


@pytest.fixture(scope="module")
def site(sandbox, wheels, tmp_path_factory):
    """The three hosts, each with a checkout in the home of who works there; the cluster has run a few jobs."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("controller", "login", "laptop", "shared"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    (folder / "shared").chmod(0o755)
    happened(sandbox)
    sandbox.run(["sacctmgr", "-i", "delete", "user", "workhorse"], check=False)  # which other tests may have added
    with (
        BareHost(folder / "controller", folder / "shared", "/shared") as controller,
        BareHost(folder / "login", folder / "shared", "/shared") as login,
        BareHost(folder / "laptop", wheels, "/shared") as laptop,
    ):
        for host, home in ((controller, "/root"), (login, "/root"), (laptop, "/home/carol")):
            host.run(["mkdir", "-p", f"{home}/slurm-workhorse"])
            host.run(["cp", "-a", "-t", f"{home}/slurm-workhorse", *(ROOT / name for name in CHECKOUT)])
        for host in (controller, login):
            host.run(["mkdir", "-p", "/etc/slurm"])
            host.run(["ln", "-sf", sandbox.conf, "/etc/slurm/slurm.conf"])
        laptop.run(["chown", "-R", "carol:", "/home/carol"])
        yield controller, login, laptop
    sandbox.run(["sacctmgr", "-i", "add", "user", "workhorse", "account=root", "adminlevel=Operator"], check=False)


def offline(folder):
    """What the commands ask the package index for, without asking it."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": "/dev/null"}


def test_a_dump_on_the_laptop(site):
    controller, _, laptop = site
    on_cluster, on_laptop = blocks(README, "Try it on a dump")
    assert "On the cluster" in on_cluster.before and "On the laptop" in on_laptop.before
    pasted(controller, on_cluster)
    laptop.run(["mkdir", "/home/carol/workhorse-try"])
    for name in ("dump.psv", "events.psv", "nodes.txt"):
        text = controller.run(["cat", f"/root/workhorse-try/{name}"]).stdout
        assert text.count("\n") >= {"dump.psv": 5, "nodes.txt": 16}.get(name, 1), f"{name} holds next to nothing"
        laptop.run(["tee", f"/home/carol/workhorse-try/{name}"], input=text)
    laptop.run(["chown", "-R", "carol:", "/home/carol"])
    # no Slurm there: what is not asked for from the files can't be had
    said = pasted(laptop, on_laptop, user="carol", home="/home/carol", env={**offline("/shared"), "SLURM_CONF": "/nonexistent"})
    assert " of 16 nodes scored" in said["workhorse score"] and "gpu03" in said["workhorse nodes"]
    page = laptop.run(["cat", "/home/carol/workhorse-try/report.html"]).stdout
    assert page.startswith("<!DOCTYPE html>") and "gpu16" in page
    long = Block("", "~/workhorse/bin/workhorse --config ~/workhorse-try/try.toml nodes -w gpu03 --long")
    ((_, code, told),), _ = paste(laptop, long, user="carol", home="/home/carol")
    assert code == 0 and told.count("known to be this node's doing") >= 2, told  # the events were read


def doctor(host, *args, path=ENV["PATH"]):
    """What is not fine, by check: (level, text)."""
    done = host.run(["/usr/local/bin/workhorse", "doctor", "--json", *args], env={**ENV, "PATH": path}, check=False)
    return {c["check"]: (c["level"], c["text"]) for c in json.loads(done.stdout)["checks"] if c["level"] != "ok"}


def test_a_site_from_install_to_purge(site, sandbox, wheels):
    controller, login, _ = site
    on_controller, on_login, off, away = blocks(README, "Install on a site")
    said = pasted(controller, on_controller, allowed=("workhorse doctor",), env=offline(wheels))
    first, second = (said[f"./install.sh --role controller {how}"] for how in ("--dry-run", "--publish /shared/workhorse"))
    assert "Nothing was changed" in first and "Installed in mode observe" in second
    assert " of 16 nodes scored" in said["runuser -u workhorse -- workhorse refresh"]
    # what this machine lacks (a syslog) is told, and nothing else
    wrong = doctor(controller)
    assert set(wrong) <= {"log", "routes"}, wrong

    said = pasted(login, on_login, allowed=("workhorse doctor",), env=offline(wheels))
    assert "the controller's [steer] mode" in said["./install.sh --role login --publish /shared/workhorse"]
    anew = f"/opt/workhorse/bin:{ENV['PATH']}"  # as at the next log-in
    assert set(doctor(login)) <= {"log", "routes", "wrapper"}
    wrong = doctor(login, path=anew)
    assert set(wrong) <= {"log", "routes"}, wrong

    roll_out(site, sandbox)

    said = pasted(controller, off)
    assert "disable" in said["workhorse disable"] and "mode steer counts again" in said["workhorse enable"]
    for host in (login, controller):
        pasted(host, away)
        left = [path for path, about in host.files().items() if "workhorse" in path and "slurm-workhorse" not in path]
        assert [path for path in left if not path.startswith("/root/")] == [], left
    assert not (Path(sandbox.root) / "shared" / "workhorse").exists()


def roll_out(site, sandbox):
    """The guide's commands and settings, step by step, and what they do to a user's job on the login node."""
    controller, login, _ = site
    (again,) = blocks(ROLLOUT, "1. Observe")
    there = {line.split("  ")[0].strip() for block in blocks(README, "Install on a site") for line in block.lines}
    assert {line.split("  ")[0].strip() for line in again.lines} <= there, "the guide installs another way than README"
    assert submitted(site, sandbox)[1] == "(null)", "mode observe changed a job"

    for command in ("report -o /root/report.html", "lemons", "mark gpu03 repaired", "queue"):
        controller.run(["workhorse", *command.split()], env=ENV)
    (backtest,) = blocks(ROLLOUT, "2. Backtest")
    ((line, code, _),), err = paste(controller, backtest)
    assert code in (0, 1) and (code == 0 or "no work" in err), f"{line}: {err}"

    (avoid,) = blocks(ROLLOUT, "3. Avoid", "toml")
    set_lines(controller, avoid)
    published = ["runuser", "-u", "workhorse", "--", "workhorse"]
    controller.run([*published, "collect"], env=ENV)
    scores = json.loads(controller.run(["cat", "/shared/workhorse/scores.json"]).stdout)
    assert scores["settings"]["steer.mode"] == "avoid" and scores["settings"]["steer.control_share"] == 0.1
    (steer,) = blocks(ROLLOUT, "4. Steer", "toml")
    set_lines(controller, steer)
    set_lines(controller, Block("", "[steer]\ncontrol_share = 0\n"))
    controller.run([*published, "collect"], env=ENV)
    controller.run([*published, "dispatch"], env=ENV)
    login.run([*published, "hints", "-o", "/var/lib/workhorse/hints"], env=ENV)
    job, excluded = submitted(site, sandbox)
    assert excluded != "(null)", "mode steer left a job that could start at once alone"
    told = login.run(["runuser", "-u", "alice", "--", "workhorse", "explain", str(job)], env=ENV).stdout
    assert "drawn by probability" in told and "Left out by us" in told


def set_lines(host, block):
    """An admin's edit: each setting of the block in its section of the settings file."""
    section = re.match(r"(?:#.*\n)*\[(\w+)\]\n", block.text)[1]
    for line in block.lines[1:]:
        name = line.split(" = ")[0]
        script = rf"/^\[{section}\]/,/^\[/ s|^#\?{name} = .*|{line.split('  ')[0]}|"
        host.run(["sed", "-i", script, "/etc/workhorse/workhorse.toml"])
        assert host.run(["grep", "-c", f"^{name} = ", "/etc/workhorse/workhorse.toml"]).stdout == "1\n"


def submitted(site, sandbox):
    """A user logs in and submits: (job, its excluded nodes)."""
    script = "cd /; . /etc/profile.d/workhorse.sh; sbatch --parsable -N2 -o /dev/null --wrap 'sleep 30'"
    done = site[1].run(["runuser", "-u", "alice", "--", "bash", "-c", script], env={**ENV, "HOME": "/nonexistent"})
    job = int(done.stdout)
    excluded = sandbox.job(job)["ExcNodeList"]
    return job, excluded
