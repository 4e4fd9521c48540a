"""install.sh's site part, as far as it goes without building anything: options, the plan it prints, what it refuses."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]


def install(*args, cwd="/"):
    return subprocess.run([ROOT / "install.sh", *args], capture_output=True, text=True, cwd=cwd, timeout=60, check=False)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--role", "laptop"], "must be controller, login or compute"),
        (["--role"], "--role needs a value"),
        (["--dry-run"], "--role is missing"),
        (["--role=login", "--purge"], "--purge goes with --uninstall"),
        (["--role=login", "--frobnicate"], "--frobnicate: unknown"),
        (["--frobnicate"], "--frobnicate: unknown"),
        (["--wheels", "/", "--cron", "--role=laptop"], "must be controller, login or compute"),
        (["--role=login", "--prefix", "relative"], "must begin with /"),
        (["--role=login", "--prefix", "/opt/a b"], "only letters"),
        (["--role=login", "--prefix", "/opt/$(id)"], "only letters"),
        (["--role=login", "--prefix", "/usr"], "a folder of its own"),
        (["--role=login", "--user", "Ev;il"], "not a user name"),
    ],
)
def test_wrong_options_are_refused_with_the_mend(args, words):
    done = install(*args)
    assert done.returncode == 2 and words in done.stderr and "--role help" in done.stderr, done


@pytest.mark.parametrize("role", ["controller", "login", "compute"])
def test_dry_run_prints_every_action_and_does_none(role, tmp_path):
    done = install("--role", role, "--dry-run", "--root", str(tmp_path), "--prefix", "/opt/wh")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [], "a dry run wrote something"
    actions = [line for line in done.stdout.splitlines() if line.startswith("would ")]
    text = "\n".join(actions)
    assert f"{tmp_path}/opt/wh/bin/workhorse" in text and f"{tmp_path}/etc/workhorse/workhorse.toml" in text
    assert ("workhorse-dispatch.timer" in text) == (role == "controller")
    assert ("/etc/profile.d/workhorse.sh" in text) == (role != "controller")


def test_a_controller_where_people_submit_has_the_wrapper_in_their_path(tmp_path):
    text = install("--role", "controller", "--submit", "--user", "nobody", "--dry-run", "--root", str(tmp_path)).stdout
    assert "/etc/profile.d/workhorse.sh" in text and "workhorse-hints" in text and "workhorse-dispatch.timer" in text
    assert "first in PATH" in text
    config = tmp_path / "opt/workhorse/install.conf"
    config.parent.mkdir(parents=True)
    config.write_text("role=controller\nsubmit=yes\n")
    for args, there in [((), True), (("--no-path",), False)]:
        text = install("--role", "controller", *args, "--dry-run", "--root", str(tmp_path)).stdout
        assert ("/etc/profile.d/workhorse.sh" in text) == there, "an upgrade remembers"


@pytest.mark.parametrize("role", ["login", "compute"])
def test_a_controller_is_not_made_another_host_by_the_way(tmp_path, role):
    """Its timers would go, and nobody would hear of it."""
    config = tmp_path / "opt/workhorse/install.conf"
    config.parent.mkdir(parents=True)
    config.write_text("role=controller\n")
    done = install("--role", role, "--dry-run", "--root", str(tmp_path))
    assert done.returncode == 1 and "--role controller --submit" in done.stderr and "would" not in done.stdout, done
    config.write_text(f"role={role}\n")
    assert install("--role", "controller", "--dry-run", "--root", str(tmp_path)).returncode == 0
    assert install("--role", "login", "--submit", "--dry-run").returncode == 2


@pytest.mark.parametrize(
    ("line", "words"), [('mode = "steer"', "mode steer. Next:"), ('#mode = "observe"', "Installed in mode observe")]
)
def test_an_upgrade_does_not_claim_a_mode_that_is_not_set(tmp_path, line, words):
    (tmp_path / "etc/workhorse").mkdir(parents=True)
    (tmp_path / "etc/workhorse/workhorse.toml").write_text(f"[steer]\n{line}\n")
    said = install("--role", "controller", "--dry-run", "--root", str(tmp_path)).stdout
    assert words in said and "Nothing was changed (--dry-run)" in said, said


def test_a_dry_run_says_why_cron_who_runs_it_and_what_comes_next():
    done = install("--role", "controller", "--dry-run", "--cron").stdout
    assert "Regular runs: cron, as --cron asks" in done and "Run it without that" in done and "mode observe" in done
    assert "sacctmgr -i add user workhorse" in done and "workhorse doctor" in done
    if not Path("/run/systemd/system").exists():
        assert "cron, as systemd doesn't run here" in install("--role", "login", "--dry-run").stdout
    assert "Regular runs" not in install("--role", "compute", "--dry-run").stdout


def installed(root, **options):
    """What an earlier run leaves, as far as the script looks at it."""
    prefix = options.pop("prefix", "/opt/workhorse")
    (root / "usr/local/bin").mkdir(parents=True)
    (root / "usr/local/bin/workhorse").symlink_to(f"{prefix}/bin/workhorse")
    (root / prefix[1:]).mkdir(parents=True)
    note = {"role": "controller", "user": "workhorse", "publish": "/var/lib/workhorse/public", **options}
    (root / prefix[1:] / "install.conf").write_text("".join(f"{name}={value}\n" for name, value in note.items()))


def test_options_of_an_earlier_run_count_and_a_second_prefix_is_refused(tmp_path):
    installed(tmp_path, prefix="/srv/wh", user="svc", publish="/shared/wh", role="login")
    done = install("--role=login", "--dry-run", "--root", str(tmp_path))
    assert f"{tmp_path}/srv/wh/bin/sbatch" in done.stdout and "/opt/workhorse" not in done.stdout
    done = install("--role=login", "--dry-run", "--root", str(tmp_path), "--prefix", "/opt/other")
    assert done.returncode == 1 and f"installed in {tmp_path}/srv/wh already" in done.stderr and "--uninstall" in done.stderr
    assert "nothing is installed" not in install("--uninstall", "--dry-run", "--root", str(tmp_path)).stdout


def test_python_that_is_too_old_is_named_with_what_is_needed(tmp_path):
    for role, least in (("controller", "3.11"), ("login", "3.9")):
        done = install("--role", role, "--dry-run", "--root", str(tmp_path), "--python", "/bin/false")
        assert done.returncode == 1 and f"needs Python {least} or later" in done.stderr and "false is not" in done.stderr


@pytest.mark.parametrize(
    ("slurm", "words"),
    [
        ("slurm 25.11.2", "pyslurm==25.11.2 fits Slurm 25.11"),
        ("slurm-wlm 22.05.8", "pyslurm: no release for Slurm 22.05 among the pinned ones (25.11.2)"),
        ("slurm 24.11.5", "accounting is read through sacct, which gives the same records"),
        ("", "Slurm's commands aren't in PATH here"),
    ],
)
def test_pyslurm_is_chosen_by_the_version_of_slurm(tmp_path, slurm, words):
    for name in ("sinfo", "slurmctld", "slurmd"):
        (tmp_path / name).write_text(f"#!/bin/sh\n[ -n '{slurm}' ] && echo '{slurm}'\n")
        (tmp_path / name).chmod(0o755)
    argv = [ROOT / "install.sh", "--role=controller", "--dry-run", "--root", str(tmp_path)]
    env = {"PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 0 and words in done.stdout, done


def test_wheels_folder_must_exist():
    done = install("--role=login", "--dry-run", "--wheels", "/nonexistent/wheels")
    assert done.returncode == 1 and "/nonexistent/wheels: no such folder" in done.stderr


def pinned(name):
    """Package name → version of a list; every entry must carry sums."""
    text = (ROOT / "etc/install" / f"requirements-{name}.txt").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r"([a-z0-9._-]+)==([0-9.]+)(?: ; [^\\]*?)?((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", line)
        assert match, f"{name}: not pinned by version and sum: {line[:80]}"
        found[match[1]] = match[2]
    return found


@pytest.mark.parametrize(("name", "extras"), [("login", ()), ("controller", ("accounting",))])
def test_pinned_lists_hold_what_pyproject_asks_for(name, extras):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [r for e in extras for r in project["optional-dependencies"][e]]
    have = pinned(name)
    for requirement in wanted:
        package, least, marker = re.fullmatch(r"([A-Za-z0-9._-]+)>=([0-9.]+)(;.*)?", requirement).groups()
        if marker and name == "controller":
            continue  # for older Pythons than the scorer's
        version = have.get(package.lower())
        assert version, f"{package} is missing in requirements-{name}.txt; run etc/install/lock.sh"
        assert tuple(map(int, version.split(".")))[:2] >= tuple(map(int, least.split("."))), requirement


def test_builders_and_pyslurm_are_pinned_too():
    assert set(pinned("build")) == {"setuptools"}
    assert set(pinned("pyslurm")) == {"pyslurm"}


def test_shell_parts_parse():
    for path in [ROOT / "install.sh", *(ROOT / "etc/install").glob("*.sh")]:
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0, path


def test_units_run_what_exists_as_the_service_user():
    for unit in (ROOT / "etc/systemd").glob("*.service"):
        text = unit.read_text()
        commands = re.findall(r"^ExecStart\w*=-?(\S+) (\w+)", text, re.MULTILINE)
        assert commands and "User=@USER@" in text, unit
        for program, command in commands:
            assert program == "@PREFIX@/bin/workhorse" and command, unit
        # either a timer starts it, or it goes on by itself and comes back
        assert unit.with_suffix(".timer").exists() != ("Restart=always" in text and "WantedBy=multi-user.target" in text), unit


@pytest.mark.parametrize(("form", "there", "absent"), [
    ([], "workhorse-dispatch.timer", "workhorse-dispatch-watch.service"),
    (["--watch"], "workhorse-dispatch-watch.service", "workhorse-dispatch.timer"),
    (["--watch", "--timer"], "workhorse-dispatch.timer", "workhorse-dispatch-watch.service"),
])  # fmt: skip
def test_dispatch_runs_by_a_timer_or_goes_on_by_itself(tmp_path, form, there, absent):
    done = install("--role", "controller", "--dry-run", "--root", str(tmp_path), *form)
    assert done.returncode == 0, done.stderr
    assert f"systemd/system/{there}" in done.stdout and absent not in done.stdout
    assert "workhorse-collect.timer" in done.stdout and "workhorse-refresh.timer" in done.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_units(tmp_path):
    for unit in (ROOT / "etc/systemd").iterdir():
        text = unit.read_text()
        for mark, value in (("@PREFIX@/bin/workhorse", "/bin/true"), ("@USER@", "root"), ("@STATE@", "/tmp"),
                            ("@PUBLISH@", "/tmp"), ("@MORE@", " -/home/x"), ("@ENVIRONMENT@", "PATH=/bin")):  # fmt: skip
            text = text.replace(mark, value)
        (tmp_path / unit.name).write_text(text)
    argv = ["systemd-analyze", "--man=no", "verify", *(str(path) for path in sorted(tmp_path.iterdir()))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    ours = [line for line in done.stderr.splitlines() if "workhorse" in line]
    assert ours == []
