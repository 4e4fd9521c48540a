"""install.sh as root on a host of its own: each role, twice, upgraded with changed settings, and taken away again."""

import json
import re
import time
from pathlib import Path

import pytest

from slurm_hook.cli.group import COMMANDS
from slurm_hook.common.config import Settings
from slurm_hook.published.snapshot import NodeScore, Scores, scores_to_json
from tests import manual, pythons
from tests.bare import BareHost

pytestmark = pytest.mark.integration
LEAVES = [name for name, _ in manual.commands()]
ROOT = Path(__file__).resolve().parents[2]
ACCOUNT_FILES = re.compile(r"/etc/(passwd|group|shadow|gshadow|subuid|subgid|\.pwd\.lock)-?")
ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}


@pytest.fixture
def host(tmp_path):
    with BareHost(tmp_path) as bare:
        # that of a sandbox beside; userdel would refuse while the user has a process there
        bare.run(["sed", "-i", "/^workhorse:/d", "/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow"])
        yield bare


def offline(wheels):
    """No package index: what isn't in the folder can't come."""
    return {
        **ENV,
        "PIP_INDEX_URL": "http://127.0.0.1:9/",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": "/dev/null",
    }


def install(host, *args, wheels=None, check=True):
    more = ["--wheels", wheels] if wheels else []
    return host.run([ROOT / "install.sh", *args, *more], env=offline(wheels) if wheels else ENV, check=check)


def ours(host):
    return {path: about for path, about in host.files().items() if not ACCOUNT_FILES.fullmatch(path)}


def hidden(paths):
    """Those that an upgrade replaces: releases, and what is compiled in them."""
    return [path for path in paths if path.startswith("/opt/workhorse/releases/")]


@pytest.mark.parametrize("role", ["login", "compute"])
def test_login_and_compute_come_and_go(host, wheels, role):
    before = ours(host)
    plan = install(host, "--role", role, "--dry-run", wheels=wheels).stdout
    assert ours(host) == before
    done = install(host, "--role", role, wheels=wheels).stdout
    planned = {line.split()[2] for line in plan.splitlines() if line.startswith("would write")}
    written = {line.split()[1] for line in done.splitlines() if line.startswith("write")}
    assert planned == written, "the dry run announced something else"
    assert host.run(["/usr/local/bin/workhorse", "--version"], env=ENV).stdout.startswith("workhorse, version ")
    missing = host.run(["/opt/workhorse/current/venv/bin/python", "-c", "import numpy"], check=False)
    assert missing.returncode != 0, "a login node needs no numpy"
    after = ours(host)
    assert all(about.split()[1] not in ("777", "666", "775", "664") for about in after.values() if about[0] in "fd")
    again = install(host, "--role", role, wheels=wheels).stdout
    assert "Nothing to do" in again and ours(host) == after
    install(host, "--uninstall")
    assert {p for p, about in ours(host).items() if about[0] == "f"} == {p for p, about in before.items() if about[0] == "f"}
    assert not any("workhorse" in path for path in ours(host))


def test_user_commands_of_a_login_node_need_no_scorer_packages(host, wheels, built):
    host.unpack(built)
    install(host, "--role", "login", wheels=wheels)
    for command in sorted({"plan", "submit", "queue", "explain", "nodes", "hints"} & set(COMMANDS)):
        done = host.run(["/opt/workhorse/bin/workhorse", command, "--help"], env=ENV)
        assert "needs the package" not in done.stdout and "Usage: workhorse " + command in done.stdout
    refused = host.run(["/opt/workhorse/bin/workhorse", "collect"], env=ENV, check=False)
    assert refused.returncode == 1 and "needs the package" in refused.stderr and "Traceback" not in refused.stderr


def test_completion_and_manual_of_a_login_node(host, wheels, built):
    host.unpack(built)
    install(host, "--role", "login", wheels=wheels)
    script = """source /usr/local/share/bash-completion/completions/workhorse
        complete() { COMPREPLY=(); COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _workhorse_completion workhorse
            echo "${COMPREPLY[*]}"; }
        complete workhorse do; complete workhorse nodes --lo"""
    done = host.run(["bash", "-c", script], env=ENV)
    assert done.stdout.split() == ["doctor", "--long"], done
    assert host.run(["grep", "-c", "^.SS workhorse", "/usr/local/share/man/man1/workhorse.1"]).stdout.strip() == str(len(LEAVES))
    for path in ("zsh/site-functions/_workhorse", "fish/vendor_completions.d/workhorse.fish"):
        assert "_WORKHORSE_COMPLETE" in host.run(["cat", f"/usr/local/share/{path}"]).stdout


@pytest.mark.parametrize("version", pythons.OLDER)
def test_login_node_with_an_older_python(host, tmp_path, version):
    """Settings, scores and doctor on a Python that knows neither tomllib nor the scorer's packages."""
    python = pythons.older().get(version)
    if python is None:
        pytest.skip(f"there is no {version} here")
    install(host, "--role", "login", "--python", python)
    public, config = tmp_path / "public", tmp_path / "w.toml"
    nodes = {"n1": NodeScore("n1", capability=2.0, relative=1.0, reliability=9.0, tasks=3)}
    host.run(["mkdir", public])
    scores = Scores("id", "alpha", time.time(), time.time(), "attributed", Settings().hook_mapping(), nodes)
    host.run(["tee", public / "scores.json"], input=json.dumps(scores_to_json(scores)))
    host.run(["tee", config], input=f"[publish]\npath = '{public}'\n[history]\npath = '/nonexistent'\n")
    workhorse = ["/opt/workhorse/bin/workhorse", "--config", config]
    assert "n1" in host.run([*workhorse, "nodes"], env=ENV).stdout
    assert "1 times the median" in host.run([*workhorse, "nodes", "-w", "n1", "--long"], env=ENV).stdout
    assert host.run([*workhorse, "hints"], env=ENV).stdout.endswith("end\n")
    checked = host.run([*workhorse, "doctor", "--json", "--check", "settings", "--check", "writers"], env=ENV, check=False)
    assert [check["check"] for check in json.loads(checked.stdout)["checks"]] == ["settings", "writers"], checked.stderr


def test_controller_upgrade_keeps_settings_and_uninstall_keeps_the_history(host, wheels, built):
    host.unpack(built)
    install(host, "--role", "controller", wheels=wheels)
    files = ours(host)
    assert files["/etc/workhorse/workhorse.toml"].startswith("f 644 root")
    assert files["/var/lib/workhorse"].startswith("d 755 workhorse")
    assert files["/var/lib/workhorse/public"].startswith("d 755 workhorse")
    assert "/etc/cron.d/workhorse" in files or "/etc/systemd/system/workhorse-collect.timer" in files
    assert "/usr/local/share/man/man1/workhorse.1" in files
    text = host.run(["cat", "/etc/cron.d/workhorse"], check=False).stdout
    assert "@" not in text, "a placeholder was left"
    host.run(
        ["/opt/workhorse/current/venv/bin/python", "-c", "import numpy, scipy, sqlite_utils, hostlist, prometheus_client, jinja2"]
    )

    # the admin changes a setting; then a newer version comes
    host.run(["sed", "-i", 's/^#mode = .*/mode = "avoid"/', "/etc/workhorse/workhorse.toml"])
    for words in (["--dry-run"], []):
        assert "Nothing to do" in install(host, "--role", "controller", *words, wheels=wheels).stdout
    newer = host.scratch / "newer"
    host.run(["mkdir", newer])
    parts = ("install.sh", "etc", "slurm_hook", "accounting", "pyproject.toml")
    host.run(["cp", "-a", "-t", newer, *(ROOT / name for name in parts)])
    host.run(["sh", "-c", f"echo '#more = 1' >>{newer}/etc/workhorse.toml; echo '# newer' >>{newer}/slurm_hook/common/errors.py"])
    done = host.run([newer / "install.sh", "--role", "controller", "--wheels", wheels], env=offline(wheels)).stdout
    assert "kept: /etc/workhorse/workhorse.toml" in done
    assert "your settings stay (mode avoid)" in done and "mode observe" not in done and "sacctmgr" not in done
    assert 'mode = "avoid"' in host.run(["cat", "/etc/workhorse/workhorse.toml"]).stdout
    assert "#more = 1" in host.run(["cat", "/etc/workhorse/workhorse.toml.new"]).stdout
    assert host.run(["tail", "-1", "/opt/workhorse/current/lib/slurm_hook/common/errors.py"]).stdout == "# newer\n"

    # people submit there, too: nothing of the controller goes
    files = set(ours(host))
    assert install(host, "--role", "login", check=False).returncode == 1
    install(host, "--role", "controller", "--submit", wheels=wheels)
    assert files <= {*ours(host), *hidden(files)}
    assert "/etc/profile.d/workhorse.sh" in ours(host)
    checked = host.run(["/usr/local/bin/workhorse", "doctor", "--json", "--check", "program", "--check", "wrapper"], check=False)
    program, wrapper = json.loads(checked.stdout)["checks"]
    assert "controller, where people submit, too, at /opt/workhorse" in program["text"] and wrapper["level"] == "warning", (
        checked.stdout
    )

    host.run(["sh", "-c", "echo history >/var/lib/workhorse/history.db; echo '{}' >/var/lib/workhorse/public/scores.json"])
    refused = install(host, "--uninstall", check=False)
    assert refused.returncode == 1 and "--force" in refused.stderr, "there is no Slurm: excludes can't be taken off"
    done = install(host, "--uninstall", "--force").stdout
    left = {p for p, about in ours(host).items() if about[0] == "f" and "workhorse" in p}
    assert left == {"/var/lib/workhorse/history.db"} and "--uninstall --purge takes it away too" in done
    plan = install(host, "--uninstall", "--purge", "--dry-run").stdout
    assert "would run: rm -rf /var/lib/workhorse/history.db" in plan and "would run: userdel workhorse" in plan
    assert "Nothing to do" not in plan and "Gone." in install(host, "--uninstall", "--purge").stdout
    assert not any("workhorse" in p for p in ours(host))
    assert host.run(["getent", "passwd", "workhorse"], check=False).returncode != 0


OTHERS = ("/var/lib/workhorse/notes.txt", "/var/lib/workhorse/public/other.json", "/etc/workhorse/site.conf")


def test_purge_takes_only_what_is_ours(host, wheels, built):
    """A user and folders that were there before, and files of others in ours, stay; so does nothing else."""
    host.unpack(built)
    host.run(["useradd", "--system", "--comment", "of the site", "workhorse"])
    host.run(["mkdir", "-p", "/etc/workhorse", "/var/lib/workhorse/public"])
    host.run(["touch", *OTHERS])
    install(host, "--role", "controller", wheels=wheels)
    host.run(["mkdir", "/var/lib/workhorse/public/snapshots"])
    made = ("history.db", "history.db-wal", "history.db.lock", "dispatch.json", "dispatch.json.pass.lock", "public/scores.json")
    host.run(["touch", *(f"/var/lib/workhorse/{name}" for name in (*made, "public/snapshots/x.json"))])
    plan = install(host, "--uninstall", "--purge", "--force", "--dry-run").stdout
    done = install(host, "--uninstall", "--purge", "--force").stdout
    gone = re.compile(r"run: (?:rm -rf|rm -f) (\S+)")
    assert sorted(gone.findall(plan)) == sorted(gone.findall(done)), "the dry run announced something else"
    assert {p for p, about in ours(host).items() if about[0] == "f" and "workhorse" in p} == set(OTHERS)
    assert "kept: the user workhorse" in done and "kept: /var/lib/workhorse holds what isn't ours" in done
    assert host.run(["getent", "passwd", "workhorse"]).stdout.split(":")[4] == "of the site"


def test_purge_where_nothing_is(host):
    for words in (["--dry-run"], []):
        done = install(host, "--uninstall", "--purge", *words).stdout
        assert "nothing is installed there" in done and "Nothing to do" in done and "run:" not in done


def test_a_changed_wheel_is_refused_and_nothing_is_half_installed(host, wheels, tmp_path):
    bad = tmp_path / "bad"
    host.run(["cp", "-r", wheels, bad])
    name = host.run(["sh", "-c", f"ls {bad} | grep '^click-8.1'"]).stdout.strip()
    host.run(["sh", "-c", f"printf x >>{bad}/{name}"])
    done = install(host, "--role", "login", wheels=bad, check=False)
    assert done.returncode == 1 and "could not be installed" in done.stderr and "HASH" in done.stderr.upper()
    assert not any(about[0] == "f" for path, about in ours(host).items() if "workhorse" in path)
