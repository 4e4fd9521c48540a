"""pyslurm as a second source: `pyslurm.db` jobs → rows of text under sacct's field names.

Its two limits are sidestepped: one het job in the answer makes its load fail, and of a requeued job it shows only the last
attempt. A window with either is read with sacct instead; so are all where this pyslurm can't tell that a job was requeued.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from . import records, sacct


class UnfitError(Exception):
    """pyslurm can't be used, here or for this window; the text says why."""


def fitting(timeout: float) -> Any:
    """The pyslurm module, if it is installed, made for the Slurm that runs here, and can tell requeues. Raises UnfitError."""
    try:
        # without a Slurm configuration its import ends the process: callers have talked to Slurm before
        import pyslurm  # noqa: PLC0415
    except (ImportError, RuntimeError, OSError) as err:
        raise UnfitError(f"pyslurm can't be loaded ({str(err).splitlines()[0][:200] if str(err) else err!r})") from None
    made_for, runs = _release(pyslurm.__version__), _release(sacct.run(["sacct", "--version"], timeout))
    if made_for != runs:
        raise UnfitError(f"pyslurm is made for Slurm {made_for[0]}.{made_for[1]:02}, here runs {runs[0]}.{runs[1]:02}")
    return pyslurm


def _release(text: str) -> tuple[int, int]:
    match = re.search(r"(\d+)\.(\d+)", text)
    if not match:
        raise UnfitError(f"no version in {text[:60]!r}")
    return int(match[1]), int(match[2])


def tells_requeues(pyslurm: Any) -> bool:
    """True when a job of this pyslurm says how often it was requeued."""
    return hasattr(pyslurm.db.Job, "requeue_count")


def load(pyslurm: Any, start: int, end: int, cluster: str = "") -> list[Any]:
    """The jobs of a window. Raises UnfitError where they are not all of what sacct would show."""
    more = {"clusters": [cluster]} if cluster else {}
    try:
        jobs = list(pyslurm.db.Jobs.load(pyslurm.db.JobFilter(start_time=start, end_time=end, **more)).values())
    except IndexError:
        raise UnfitError("pyslurm can't load windows with het jobs") from None
    except Exception as err:
        if type(err).__name__ not in ("RPCError", "PyslurmError"):
            raise
        raise UnfitError(f"pyslurm: {err}") from None
    if any(getattr(job, "requeue_count", 0) for job in jobs):
        raise UnfitError("pyslurm shows only the last attempt of requeued jobs")
    return jobs


def rows(jobs: list[Any], names: Mapping[str, str]) -> Iterator[list[str]]:
    """One row per job, followed by one per step. names: TRES id → name, for releases that show ids."""
    for job in jobs:
        fields = job_fields(job, names)
        for one in (fields, *[step_fields(step, fields) for step in job.steps.values()]):
            yield [one.get(name, "") for name in records.FIELD_NAMES]


def tres_names(pyslurm: Any) -> dict[str, str]:
    """TRES id → name as sacct shows it."""
    found = pyslurm.db.TrackableResources.load()
    items = found.values() if hasattr(found, "values") else ()
    return {str(t.id): f"{t.type}/{t.name}" if t.name else str(t.type) for t in items}


def tres_text(value: Any, names: Mapping[str, str]) -> str:
    """A TRES object of either shape as sacct prints it: ids with counts, or names with objects."""
    if value is None:
        return ""
    raw = getattr(value, "raw_str", None)
    if raw is not None:
        pairs = [item.split("=", 1) for item in str(raw).split(",") if "=" in item]
        counts = {names.get(key, ""): amount for key, amount in pairs}
    else:
        flat = value.to_dict() if hasattr(value, "to_dict") else dict(value)
        counts = {key: str(getattr(amount, "count", amount)) for key, amount in flat.items() if amount is not None}
    return ",".join(f"{k}={v}{'M' if k == 'mem' and v.isdigit() else ''}" for k, v in counts.items() if k)


def job_fields(job: Any, names: Mapping[str, str]) -> dict[str, str]:
    """Field → text of a job."""
    allocated = getattr(job, "allocated_tres", None) or getattr(job, "tres_allocated", None)
    nodes = job.nodelist or ""
    return {
        "JobIDRaw": str(job.id), "JobID": _label(job),
        "Cluster": job.cluster or "", "Submit": _text(job.submit_time), "Eligible": _text(job.eligible_time),
        "Start": _text(job.start_time), "End": _text(job.end_time), "ElapsedRaw": _text(job.elapsed_time),
        "State": _state(job.state), "ExitCode": _exit(job.exit_code, job.exit_code_signal),
        "DerivedExitCode": _exit(job.derived_exit_code, job.derived_exit_code_signal),
        "AllocNodes": _text(job.num_nodes) if nodes else "0", "AllocCPUS": _text(job.cpus),
        "AllocTRES": tres_text(allocated, names), "ReqMem": f"{job.memory}M" if job.memory else "",
        "TimelimitRaw": _text(job.time_limit), "Partition": job.partition or "", "Account": job.account or "",
        "QOS": job.qos or "", "User": job.user_name or "", "NodeList": nodes,
        "FailedNode": getattr(job, "failed_node", None) or "", "Restarts": _text(getattr(job, "requeue_count", None)),
        "JobName": job.name or "",
    }  # fmt: skip


def step_fields(step: Any, job: Mapping[str, str]) -> dict[str, str]:
    """Field → text of a step of a job."""
    stats = getattr(step, "stats", None)
    largest = getattr(stats, "max_resident_memory", None)
    tres = {"cpu": step.cpus, "mem": f"{step.memory}M" if step.memory else None, "node": step.num_nodes}
    return {
        "JobIDRaw": f"{job['JobIDRaw']}.{step.id}", "JobID": f"{job['JobID']}.{step.id}", "Cluster": job["Cluster"],
        "Submit": _text(step.start_time), "Start": _text(step.start_time), "End": _text(step.end_time),
        "State": _state(step.state), "ExitCode": _exit(step.exit_code, step.exit_code_signal), "NTasks": _text(step.ntasks),
        "AllocTRES": ",".join(f"{k}={v}" for k, v in tres.items() if v is not None) if step.id == "batch" else "",
        "NodeList": step.nodelist or "", "JobName": step.name or "", "MaxRSS": _text(largest),
        "MaxRSSNode": (getattr(stats, "max_resident_memory_node", None) or "") if largest else "",
    }  # fmt: skip


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _label(job: Any) -> str:
    """JobID as sacct shows it."""
    if _known(job.array_id, job.array_task_id):
        return f"{job.array_id}_{job.array_task_id}"
    het = getattr(job, "heterogeneous_id", None)
    return f"{het}+{getattr(job, 'heterogeneous_offset', None) or 0}" if het else str(job.id)


def _known(*values: Any) -> bool:
    return all(value is not None for value in values) and values[0] != 0


def _state(value: Any) -> str:
    return str(value or "").split(" ")[0] or "UNKNOWN"


def _exit(code: Any, signal: Any) -> str:
    return "" if code is None and signal is None else f"{code or 0}:{signal or 0}"
