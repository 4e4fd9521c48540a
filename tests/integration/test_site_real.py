"""A site as an admin sets it up: a controller and a login host of their own, one real Slurm, from install to uninstall."""

import json
import os
import re
from pathlib import Path

import pytest

from slurm_hook.published import snapshot
from tests.bare import BareHost

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture
def shared(sandbox):
    """A folder that both hosts see, as a shared file system would be."""
    folder = Path(sandbox.root) / "shared"
    folder.mkdir(mode=0o755, exist_ok=True)
    return folder / "public"


@pytest.fixture
def hosts(sandbox, shared, built, tmp_path):
    """Both hosts, installed. The service user is an operator of the sandbox's accounting."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with BareHost(tmp_path / "a") as controller, BareHost(tmp_path / "b") as login:
        for host, role in ((controller, "controller"), (login, "login")):
            host.unpack(built)
            host.env = {**sandbox.env, "PATH": PATH, "HOME": "/root"}
            done = host.run([ROOT / "install.sh", "--role", role, "--publish", shared, "--cron"], env=host.env)
            assert ("Installed in mode observe" if role == "controller" else "is the controller's [steer] mode") in done.stdout
        operator = re.search(r"^ +sacctmgr (.*?) +#", install_output(controller, shared), re.MULTILINE)
        words = operator[1].split() if operator else ["-i", "add", "user", "workhorse", "account=root", "adminlevel=Operator"]
        sandbox.run(["sacctmgr", *words], check=False)
        controller.run(["sed", "-i", 's/^#mode = "observe"/mode = "avoid"/', "/etc/workhorse/workhorse.toml"])
        yield controller, login


def install_output(host, shared):
    return host.run([ROOT / "install.sh", "--role", "controller", "--publish", shared, "--cron"], env=host.env).stdout


def as_user(host, user, *argv, check=True):
    return host.run(["runuser", "-u", user, "--", *argv], env=host.env, check=check)


def test_from_install_to_uninstall(sandbox, hosts, shared):
    controller, login = hosts
    sandbox.wait([sandbox.sbatch("-N2", "--wrap", "true")])
    done = as_user(controller, "workhorse", "/opt/workhorse/bin/workhorse", "refresh")
    assert "16 of 16" in done.stdout or "of 16 nodes" in done.stdout

    # doctor on both hosts: what is installed is fine, what this machine lacks is told
    found = doctor(controller)
    for name in [
        "slurm",
        "slurmdbd",
        "service-user",
        "rights",
        "settings",
        "program",
        "writers",
        "history",
        "collected",
        "timers",
        "disk",
    ]:
        assert found[name]["level"] == "ok", found[name]
    assert found["dispatcher"]["level"] == "warning", "it hasn't made a pass yet"
    as_user(controller, "workhorse", "/opt/workhorse/bin/workhorse", "dispatch")
    assert doctor(controller)["dispatcher"]["level"] == "ok"
    assert doctor(login)["scores"]["level"] in ("ok", "warning")

    # a bad node is published; a user's job on the login host avoids it, without knowing of us
    published = snapshot.scores_from_json(json.loads((shared / "scores.json").read_text()))
    bad = published.nodes["gpu03"]._replace(lemon=True, capability=0.01, relative=0.01)
    changed = published._replace(nodes={**published.nodes, "gpu03": bad})
    (shared / "scores.json").write_text(json.dumps(snapshot.scores_to_json(changed)))
    as_user(login, "workhorse", "/opt/workhorse/bin/workhorse", "hints", "-o", "/var/lib/workhorse/hints")
    assert "mode avoid" in login.run(["cat", "/etc/workhorse/hints"]).stdout
    script = "sbatch --parsable --hold -N4 -o /dev/null --wrap 'sleep 1'"
    job = as_user(login, "alice", "bash", "-c", f"cd /; . /etc/profile.d/workhorse.sh; command -v sbatch >&2; {script}")
    assert "/opt/workhorse/bin/sbatch" in job.stderr
    number = job.stdout.strip()
    assert sandbox.job(int(number))["ExcNodeList"] == "gpu03"
    wrapper = doctor(login, "--check", "wrapper", path=f"/opt/workhorse/bin:{PATH}")["wrapper"]
    assert wrapper["level"] == "ok" and "before" in wrapper["text"]

    # taking it away: the waiting job is as the user gave it, and the history is all that is left
    login.run([ROOT / "install.sh", "--uninstall"], env=login.env)
    controller.run([ROOT / "install.sh", "--uninstall"], env=controller.env)
    assert sandbox.job(int(number))["ExcNodeList"] == "(null)"
    left = [path for path, about in controller.files().items() if "workhorse" in path and about[0] == "f"]
    assert [path for path in left if not path.startswith("/var/lib/workhorse/history.db")] == [] and left
    assert not [path for path in login.files() if "workhorse" in path]
    assert not shared.exists() or not os.listdir(shared)
    sandbox.run(["scancel", number])


def doctor(host, *args, path=PATH):
    done = host.run(["/opt/workhorse/bin/workhorse", "doctor", "--json", *args], env={**host.env, "PATH": path}, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return {check["check"]: check for check in json.loads(done.stdout)["checks"]}
