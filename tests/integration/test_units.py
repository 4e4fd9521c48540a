"""What systemd and cron would run, run as they would: each unit's commands as its user, in its environment and behind its
walls, as far as they can be had without systemd as the first process."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.bare import BareHost

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV = {"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/root"}
PUBLISH = "/home/shared/workhorse"  # where ProtectHome= reaches
SERVICES = ("collect", "refresh", "dispatch", "hints", "dispatch-watch")
# ProtectSystem=full, ProtectHome=read-only, PrivateTmp=yes, ReadWritePaths=: arguments are the folder of the sandbox, which
# stands for a Slurm that isn't below /tmp, and the writable paths, up to --
WALLS = """
set -eu
closed() { mount --rbind "$1" "$1"; findmnt -R -n -l -o TARGET "$1" | while read -r at; do mount -o remount,bind,ro "$at"; done; }
for folder in /usr /boot /etc /home /root; do closed "$folder"; done
slurm=$1; shift
mount -t tmpfs tmpfs /mnt; mkdir /mnt/slurm; mount --rbind "$slurm" /mnt/slurm
for folder in /tmp /var/tmp; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
mkdir -p "$slurm"; mount --rbind /mnt/slurm "$slurm"
while [ "$1" != -- ]; do mount --bind "$1" "$1"; mount -o remount,bind,rw "$1"; shift; done
shift
cd /
exec "$@"
"""
# until the file is written anew, then the end that systemd would bring: SIGTERM to the main process
UNTIL = """
set -eu
file=$1; shift
touch -r "$file" /tmp/before
"$@" & main=$!
for i in $(seq 600); do [ "$file" -nt /tmp/before ] && break; kill -0 $main || break; sleep 0.1; done
[ "$file" -nt /tmp/before ] || exit 99
kill -TERM $main
wait $main
"""


@pytest.fixture(scope="module")
def host(sandbox, built, tmp_path_factory):
    """A controller that is a login node too, with the published files on a file system below /home."""
    folder = tmp_path_factory.mktemp("units")
    for name in ("host", "shared"):
        (folder / name).mkdir(mode=0o755)
    with BareHost(folder / "host", folder / "shared", "/home/shared") as bare:
        bare.unpack(built)
        bare.run(["mkdir", "-p", "/etc/slurm"])
        bare.run(["sh", "-c", f"cp {sandbox.conf.parent}/*.conf /etc/slurm"])
        sandbox.run(["sacctmgr", "-i", "add", "user", "workhorse", "account=root", "adminlevel=Operator"], check=False)
        for role in ("controller", "login"):  # the units of both, as an image gets them
            image = bare.scratch / role
            bare.run(["mkdir", image])
            bare.run(["tar", "-xf", built, "-C", image])
            for more in (["--watch"], ["--timer"])[: 1 + (role == "controller")]:
                argv = [ROOT / "install.sh", "--role", role, "--root", image, "--publish", PUBLISH, *more]
                bare.run(argv, env={**ENV, "SLURM_CONF": "/etc/slurm/slurm.conf"})
                made = f"{image}/etc/systemd/system"
                bare.run(["sh", "-c", f"mkdir -p units; cp {made}/*.service {made}/*.timer units"])
        bare.run([ROOT / "install.sh", "--role", "controller", "--publish", PUBLISH, "--cron"], env=ENV)
        bare.run(["install", "-d", "-o", "workhorse", "-g", "workhorse", "/var/lib/workhorse/hints"])
        edits = 's/^#first_days = .*/first_days = 2/; s/^#period = .*/period = 1/; s/^#mode = .*/mode = "avoid"/'
        bare.run(["sed", "-i", edits, "/etc/workhorse/workhorse.toml"])
        sandbox.wait([sandbox.sbatch("-N2", "--wrap", "sleep 1.1")])
        yield bare


def unit(host, name):
    """Settings of a unit's [Service] part: name → values."""
    text = host.run(["cat", host.scratch / "units" / f"workhorse-{name}.service"]).stdout
    found = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", text.split("[Service]", 1)[1].split("[Install]", 1)[0], re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def walled(host, sandbox, settings, command, until=None):
    """Run a command line as the unit would: (exit code, output)."""
    assert [settings[k] for k in ("ProtectSystem", "ProtectHome", "PrivateTmp", "NoNewPrivileges")] == [
        ["full"], ["read-only"], ["yes"], ["yes"]
    ]  # fmt: skip
    user, group = settings["User"][0], settings["Group"][0]
    writable = [path.lstrip("-") for line in settings["ReadWritePaths"] for path in line.split()]
    own = [f"HOME={host.run(['getent', 'passwd', user]).stdout.split(':')[5]}", f"USER={user}", f"LOGNAME={user}", "LANG=C.UTF-8"]
    env = ["env", "-i", f"PATH={PATH}", *own, *(word for line in settings["Environment"] for word in line.split())]
    masked = ["sh", "-c", 'umask "$1"; shift; exec "$@"', "sh", settings["UMask"][0]]
    who = ["setpriv", f"--reuid={user}", f"--regid={group}", "--init-groups", "--no-new-privs", "--inh-caps=-all"]
    waiting = ["sh", "-c", UNTIL, "sh", until] if until else []
    words = [*who, *env, *masked, *waiting, *shlex.split(command)]
    done = host.run(
        ["unshare", "--mount", "sh", "-c", WALLS, "sh", sandbox.root, *writable, "--", *words], check=False, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def well(settings):
    """Exit codes that are no failure."""
    return {0, *(int(code) for line in settings.get("SuccessExitStatus", []) for code in line.split())}


def published(host, name):
    return host.run(["stat", "-c", "%U %a", f"{PUBLISH}/{name}"]).stdout.strip()


def test_the_walls_are_there(host, sandbox):
    settings = unit(host, "collect")
    for path in ("/etc/workhorse/x", "/home/x", "/opt/workhorse/x", "/usr/local/x"):
        code, said = walled(host, sandbox, settings, f"touch {path}")
        assert code, f"{path} could be written: {said}"
    assert walled(host, sandbox, settings, f"ls -A {Path(host.scratch).parent}")[0], "/tmp is not private"
    assert walled(host, sandbox, settings, f"touch {PUBLISH}/x /var/lib/workhorse/x /tmp/x")[0] == 0


def test_each_service_does_its_work(host, sandbox):
    """In the order of a first day; a second time too, as timers do."""
    for name in ("collect", "collect", "refresh", "dispatch", "dispatch", "hints"):
        settings = unit(host, name)
        for command in settings["ExecStart"] + settings.get("ExecStartPost", []):
            code, said = walled(host, sandbox, settings, command.lstrip("-"))
            assert code in well(settings) and "Traceback" not in said, f"{name}: {command}: {code}\n{said}"
    assert host.run(["stat", "-c", "%U %a", "/var/lib/workhorse/history.db"]).stdout == "workhorse 600\n"
    assert (published(host, "scores.json"), published(host, "live.json")) == ("workhorse 644", "workhorse 644")
    assert "end" in host.run(["cat", "/var/lib/workhorse/hints/hints"]).stdout
    assert host.run(["stat", "-c", "%a", "/var/lib/workhorse/hints/hints"]).stdout == "644\n"


def test_the_watching_dispatcher_passes_and_ends(host, sandbox):
    first, watch = unit(host, "dispatch"), unit(host, "dispatch-watch")
    assert walled(host, sandbox, first, first["ExecStart"][0])[0] == 0
    code, said = walled(host, sandbox, watch, watch["ExecStart"][0], until=f"{PUBLISH}/live.json")
    assert code == 0, (code, said)


def test_cron_lines_do_the_same(host):
    """As cron runs them: /bin/sh, next to no environment. What goes to syslog is looked at here."""
    done = 0
    for name in ("workhorse", "workhorse-hints"):
        text = (ROOT / "etc/cron" / name).read_text()
        for mark, value in (("USER", "workhorse"), ("ENVIRONMENT", f"PATH={PATH}"), ("PREFIX", "/opt/workhorse"),
                            ("STATE", "/var/lib/workhorse")):  # fmt: skip
            text = text.replace(f"@{mark}@", value)
        installed = host.run(["cat", f"/etc/cron.d/{name}"], check=False)
        assert installed.stdout in ("", text), "install.sh writes another one"
        for line in re.findall(r"^[*0-9].*$", text, re.MULTILINE):
            words = line.split(None, 6)
            user, command = words[5], words[6]
            command, piped, _ = command.partition(" 2>&1 | logger")
            argv = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", "-i", "PATH=/usr/bin:/bin"]
            ran = host.run([*argv, "HOME=/nonexistent", f"LOGNAME={user}", "/bin/sh", "-c", command], check=False)
            assert piped and ran.returncode in (0, 3, 75) and "Traceback" not in ran.stderr, f"{line}\n{ran.stdout}{ran.stderr}"
            done += 1
    assert done == 4


@pytest.fixture(scope="module")
def analyze():
    """systemd-analyze, which needs no running systemd; installed where it is missing, as Slurm is for the sandbox."""
    if shutil.which("systemd-analyze") is None:
        for words in ("update", "install -y --no-install-recommends systemd"):
            subprocess.run(["apt-get", "-qq", *words.split()], check=True, timeout=600, capture_output=True)
    return "systemd-analyze"


def test_units_are_ones_that_systemd_takes(host, analyze):
    names = host.run(["sh", "-c", f"ls {host.scratch}/units"]).stdout.split()
    services = {f"workhorse-{name}.service" for name in SERVICES}
    assert set(names) == services | {f"workhorse-{n}.timer" for n in ("collect", "refresh", "dispatch", "hints")}
    done = host.run([analyze, "verify", "--man=no", *(f"{host.scratch}/units/{name}" for name in names)], check=False)
    assert done.returncode == 0 and not [line for line in done.stderr.splitlines() if "workhorse" in line], done.stderr
    for name in names:
        text = host.run(["cat", f"{host.scratch}/units/{name}"]).stdout
        assert "@" not in text, f"{name}: a placeholder was left"
        for moment in re.findall(r"^OnCalendar=(.*)$", text, re.MULTILINE):
            assert "Next elapse" in host.run([analyze, "calendar", moment]).stdout
        if name.endswith(".service"):
            assert "SLURM_CONF=/etc/slurm/slurm.conf" in text and f"PATH={PATH}" in text


def test_commands_of_another_place_are_found_by_timers(host, built):
    """Slurm in a folder of its own, told by PATH and SLURM_CONF of the first run; a later run with neither keeps both."""
    image = host.scratch / "elsewhere"
    host.run(["mkdir", "-p", image, host.scratch / "slurm/bin"])
    host.run(["tar", "-xf", built, "-C", image])
    version = host.run(["sinfo", "--version"], env=ENV).stdout.strip()
    host.run(["tee", host.scratch / "slurm/bin/sinfo"], input=f"#!/bin/sh\necho '{version}'\n")
    host.run(["chmod", "+x", host.scratch / "slurm/bin/sinfo"])
    argv = [ROOT / "install.sh", "--role", "controller", "--root", image, "--wheels", host.scratch]  # nothing is to be built
    told = {**ENV, "PATH": f"{host.scratch}/slurm/bin:{PATH}", "SLURM_CONF": "/opt/slurm/etc/slurm.conf"}
    host.run(argv, env=told)
    unit_path = image / "etc/systemd/system/workhorse-collect.service"
    line = f"LC_ALL=C.UTF-8 PATH={host.scratch}/slurm/bin:{PATH} SLURM_CONF=/opt/slurm/etc/slurm.conf\n"
    assert line in host.run(["cat", unit_path]).stdout
    odd = host.run(argv, env={**told, "SLURM_CONF": "/opt/a b/$(id)"}).stdout
    assert "timers can't be told" in odd and "$(id)" not in host.run(["cat", unit_path]).stdout
