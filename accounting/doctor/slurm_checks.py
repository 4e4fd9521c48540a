"""Doctor's checks of Slurm itself: does it answer, which version, what may we see, what does it keep."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import sys
from pathlib import Path

from slurm_hook.common import bounded
from slurm_hook.common.errors import SlurmError

from .checks import TIMEOUT, Answer, Check, Host, bad, ok, warn

OLDEST, NEWEST = (20, 11), (26, 5)
PUBLISHED_PYSLURM = ((25, 11),)
SECONDS = {"hour": 3600, "day": 86400, "month": 30 * 86400}
OPERATORS = ("Operator", "Administrator")


def slurmctld(host: Host) -> Answer:
    """Is a controller up?"""
    try:
        said = host.slurm("scontrol", "ping")
    except SlurmError as err:
        return bad(str(err), "start slurmctld, or point SLURM_CONF at the right configuration")
    up = [line for line in said.splitlines() if re.search(r"\bUP\b", line)]
    if not up:
        return bad(said.strip().replace("\n", "; "), "start slurmctld")
    if "DOWN" in said:
        return warn(said.strip().replace("\n", "; "), "start the other slurmctld")
    return ok(up[0].strip())


def version(host: Host) -> Answer:
    """A version that this was tried with?"""
    found = host.slurm_version
    text = f"Slurm {host.slurm_conf['slurm_version']}"
    if found < OLDEST:
        return bad(f"{text} is older than 20.11", "update Slurm: its accounting can't be read safely")
    if found > NEWEST:
        return warn(f"{text} is newer than what this was tried with (26.05)", "stay in mode observe until the tests pass with it")
    return ok(text)


def pyslurm(host: Host) -> Answer:
    """Is pyslurm usable here, and if not, does it matter?"""
    wanted = host.settings.slurm.backend
    series = "{}.{:02}".format(*host.slurm_version)  # as Slurm writes it
    if importlib.util.find_spec("pyslurm") is None:
        fits = host.slurm_version in PUBLISHED_PYSLURM
        text = f"not installed ({'a release for' if fits else 'the package index has none for'} Slurm {series}"
        text += " exists); sacct is used, with the same records" if fits else "); sacct is used, with the same records"
        return bad(text, 'set [slurm] backend = "auto", or build pyslurm') if wanted == "pyslurm" else ok(text)
    why = why_not_pyslurm()
    if why is None:
        return ok(f"fits Slurm {series}" + ("; [slurm] backend says to use sacct" if wanted == "cli" else ""))
    if wanted == "cli":
        return ok(f"{why}; sacct is used, as [slurm] backend says")
    if wanted == "pyslurm":
        return bad(why, 'set [slurm] backend = "auto", or install a release that fits')
    return warn(f"{why}; sacct is used, with the same records", "install a release that fits, or remove it")


_ASK_PYSLURM = "from accounting.history import source; print(source.why_not_pyslurm({}) or '')"


def why_not_pyslurm() -> str | None:
    """Why `auto` reads with sacct; None when it reads with pyslurm. Asked in a process of its own: importing pyslurm ends
    the process where Slurm's configuration is missing."""
    argv = [sys.executable, "-c", _ASK_PYSLURM.format(TIMEOUT)]
    try:
        code, out, _ = bounded.run(argv, 2 * TIMEOUT, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    except (bounded.Expired, OSError):
        return "pyslurm doesn't answer"
    said = out.decode("utf-8", "replace").strip()
    return "pyslurm can't be loaded" if code else said or None


def slurmdbd(host: Host) -> Answer:
    """Does slurmdbd answer, and does it know this cluster?"""
    storage = host.slurm_conf.get("accountingstoragetype", "")
    if not storage.endswith("slurmdbd"):
        mend = "run slurmdbd and set AccountingStorageType=accounting_storage/slurmdbd in slurm.conf"
        return bad(f"jobs aren't kept: AccountingStorageType={storage or 'none'}", mend)
    cluster = host.slurm_conf.get("clustername", "")
    rows = [row.split("|") for row in host.slurm("sacctmgr", "-nP", "list", "cluster", "format=cluster,controlhost").splitlines()]
    known = {row[0]: row[1] for row in rows if len(row) >= 2}
    if cluster.lower() not in {name.lower() for name in known}:
        return bad(f"cluster {cluster} isn't registered (known: {', '.join(known) or 'none'})", f"sacctmgr add cluster {cluster}")
    if not known.get(cluster, "there"):
        return warn(f"slurmctld of {cluster} isn't connected to slurmdbd: records wait in its queue", "see slurmctld's log")
    return ok(f"cluster {cluster} is registered")


def rights(host: Host) -> Answer:
    """May the service user see everybody's jobs, and update pending ones?"""
    level = admin_level(host, host.service_user)
    hidden = {word for conf in (host.slurm_conf, host.dbd_conf) for word in conf.get("privatedata", "").lower().split(",")}
    hidden &= {"jobs", "usage", "events", "nodes", "users"}
    # `add` leaves the level of a user who is there as it is
    add = f"sacctmgr -i add user {host.service_user} account=root adminlevel=Operator"
    add = f"sacctmgr -i modify user {host.service_user} set adminlevel=Operator" if level == "None" else add
    if host.service_user == "root":
        return ok("root sees all jobs and may update pending ones")
    if level in OPERATORS:
        return ok(f"{host.service_user} is {level}: sees all jobs, may update pending ones")
    text = f"{host.service_user} {'has AdminLevel ' + level if level else 'is no user of the accounting'}"
    if hidden & {"jobs", "events", "nodes"}:
        return bad(f"{text} and PrivateData hides {', '.join(sorted(hidden))}: the history would be of its own jobs only", add)
    if host.settings.steer.mode in ("avoid", "steer"):
        return bad(f"{text}: dispatch may not update jobs, so what was steered can't be widened again", add)
    return warn(f"{text}: enough to look, not for dispatch in modes avoid and steer", add)


def admin_level(host: Host, user: str) -> str:
    """AdminLevel of a user in accounting; empty where it isn't known there."""
    said = host.slurm("sacctmgr", "-nP", "show", "user", user, "format=user,adminlevel")
    for row in said.splitlines():
        name, _, level = row.partition("|")
        if name == user:
            return level
    return ""


def kept(host: Host) -> Answer:
    """Does accounting keep what the scores need?"""
    conf = host.slurm_conf
    missing = []
    if "job_comment" not in conf.get("accountingstoreflags", "").lower():
        missing.append("AccountingStoreFlags=job_comment (which jobs we touched is told by their Comment)")
    if conf.get("grestypes", "") and "gpu" in conf["grestypes"] and "gres/gpu" not in conf.get("accountingstoragetres", ""):
        missing.append("AccountingStorageTRES=gres/gpu (demand is counted in GPUs)")
    if conf.get("jobacctgathertype", "").endswith("none"):
        missing.append("JobAcctGatherType=jobacct_gather/cgroup (memory that jobs really used)")
    if missing:
        return warn(f"slurm.conf lacks {'; '.join(missing)}", "add it to slurm.conf and run scontrol reconfigure")
    return ok(f"AccountingStoreFlags={conf.get('accountingstoreflags', '')}, AccountingStorageTRES has what is needed")


def purge(host: Host) -> Answer:
    """Is history deleted, or refused, before it is read?"""
    conf, settings = host.dbd_conf, host.settings
    reach = duration(conf.get("maxquerytimerange", ""))
    if reach and reach < settings.history.window_hours * 3600:
        hours = max(1, int(reach // 3600))
        return bad(f"slurmdbd refuses questions over {conf['maxquerytimerange']}", f"set [history] window_hours = {hours}")
    names = ("PurgeJobAfter", "PurgeStepAfter", "PurgeEventAfter")
    soon = {name: conf.get(name.lower(), "") for name in names if 0 < duration(conf.get(name.lower(), "")) < 7 * 86400}
    if soon:
        text = ", ".join(f"{name}={value}" for name, value in soon.items())
        return warn(f"slurmdbd deletes within a week: {text}", "collect often (the timer does), or raise it in slurmdbd.conf")
    kept_for = ", ".join(f"{name}={conf.get(name.lower(), '') or 'NONE'}" for name in names)
    return ok(f"{kept_for}; what was collected stays here {settings.history.keep_days} days")


def duration(text: str) -> float:
    """Seconds of slurmdbd's `12 months`, `30 days*`, `1440 hours`, or `1-00:00:00`; 0 for NONE, UNLIMITED and what isn't one."""
    match = re.match(r"(\d+)\s*(hour|day|month)", text.lower())
    if match:
        return int(match[1]) * SECONDS[match[2]]
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    return 0


def plugins(host: Host) -> Answer:
    """Are the Lua plugins that slurm.conf names whole? A missing file makes Slurm refuse every submission."""
    conf = host.slurm_conf
    folder = Path(conf.get("slurm_conf", "/etc/slurm/slurm.conf")).parent
    wanted = {"cli_filter.lua": "cli_filter/lua" in conf.get("clifilterplugins", ""),
              "job_submit.lua": "lua" in conf.get("jobsubmitplugins", "").split(",")}  # fmt: skip
    used = [name for name, named in wanted.items() if named]
    if not used:
        return ok("slurm.conf names no Lua plugin (they are optional)")
    notes, lost = [], []
    for name in used:
        path = folder / name
        if name == "job_submit.lua" and not _controller_here(host):
            continue
        if not path.is_file():
            return bad(
                f"slurm.conf names {name} but {path} is missing: Slurm refuses submissions", "copy it back or take the line out"
            )
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.stat().st_mode & 0o444 != 0o444:
            return bad(f"{path} can't be read by everybody: their submissions fail", f"chmod 0644 {path}")
        notes.append(f"{name} {'loads ours' if 'workhorse' in text else 'is the site’s own, without ours'}")
        lost += [ours for ours in _loaded_files(text) if not os.access(ours, os.R_OK)]
    if lost:
        return warn(f"{'; '.join(notes)}, but {', '.join(lost)} can't be read: jobs pass without us", "run install.sh again")
    return ok("; ".join(notes) or "job_submit.lua is looked at on the controller")


def _loaded_files(text: str) -> list[str]:
    """Our Lua files that a plugin names, comments left out."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return re.findall(r"""["'](/[^"']*workhorse[^"']*\.lua)["']""", code)


def _controller_here(host: Host) -> bool:
    names = [value for key, value in host.slurm_conf.items() if key.startswith("slurmctldhost")]
    return any(os.uname().nodename.split(".")[0] == re.split(r"[(.]", name)[0] for name in names)


def clock(host: Host) -> Answer:
    """Do this host and slurmctld agree on the time?"""
    match = re.search(r"sdiag output at .*?\(?(\d{9,})\)?", host.slurm("sdiag"))
    if not match:
        return Answer(3, "sdiag doesn't tell slurmctld's time", "compare `date` on both hosts by hand")
    import time  # noqa: PLC0415 - now, not when doctor began

    off = abs(time.time() - int(match[1]))
    if off > 60:
        return bad(f"slurmctld's clock is {off:.0f} s off: ages and windows are wrong", "run chrony or ntpd on both hosts")
    if off > 5:
        return warn(f"slurmctld's clock is {off:.0f} s off", "run chrony or ntpd on both hosts")
    return ok("within 5 s of slurmctld's")


def topology(host: Host) -> Answer:
    """Is the topology one for which nodes can be chosen by switch?"""
    plugin = host.slurm_conf.get("topologyplugin", "") or "none"
    kind = plugin.rsplit("/", 1)[-1]
    if kind in ("block", "torus", "3d_torus"):
        return warn(f"{plugin}: mode steer acts as avoid here", "nothing to mend; know it before switching to steer")
    return ok(f"{plugin}")


def service_user(host: Host) -> Answer:
    """Does the service user exist, and isn't it root?"""
    if host.role == "checkout":
        return ok(f"none: not installed here, and {host.service_user} runs the commands")
    try:
        entry = pwd.getpwnam(host.service_user)
    except KeyError:
        mend = "run install.sh again; login nodes need it with the controller's uid"
        return bad(f"there is no user {host.service_user}: published files of its own aren't trusted", mend)
    if entry.pw_uid == 0:
        return warn("the service user is root", "use an account of its own: it needs AdminLevel=Operator, never root")
    return ok(f"{host.service_user}, uid {entry.pw_uid}")


CHECKS = (
    Check("slurm", "slurmctld answers", slurmctld),
    Check("version", "this version of Slurm was tried", version),
    Check("clock", "this host and slurmctld agree on the time", clock),
    Check("slurmdbd", "accounting is kept by slurmdbd, which answers", slurmdbd, ("controller", "checkout")),
    Check("service-user", "the account that collects and dispatches exists and isn't root", service_user),
    Check("rights", "the service user sees all jobs and may update pending ones", rights, ("controller", "checkout")),
    Check("kept", "accounting keeps comments, GPUs and memory use", kept, ("controller", "checkout")),
    Check("purge", "slurmdbd neither deletes nor refuses history before it is read", purge, ("controller", "checkout")),
    Check("pyslurm", "accounting is read through pyslurm or sacct", pyslurm, ("controller", "checkout")),
    Check("plugins", "Lua plugins named in slurm.conf are there and whole", plugins),
    Check("topology", "nodes can be chosen by leaf switch", topology),
)
