"""`sacct --json` of 21.08 to 26.05 → rows of text under sacct's own field names.

The shapes differ: before 23.02 plain numbers and null, later {set, infinite, number} and lists of states and flags.
Exit codes before 23.02 are wrong in JSON (0 for jobs that failed) and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from slurm_hook.common.errors import InputError

from . import records

HEADER = list(records.FIELD_NAMES)
_NO_NUMBER = (0xFFFFFFFE, 0xFFFFFFFF)  # Slurm's NO_VAL and INFINITE, where the shape has no room to say so
_FIRST_WITH_EXIT_CODES = (23, 2)
# words beside the state that decide what became of the attempt
_ENDING_FLAGS = ("REQUEUED", "RESIZING", "PREEMPTED", "SPECIAL_EXIT", "REQUEUE_HOLD")


def load(file: IO[str], name: str) -> Mapping[str, Any]:
    """The parsed file. Raises InputError when it isn't what `sacct --json` prints."""
    try:
        data = json.load(file, parse_int=_whole)
    except (ValueError, RecursionError) as err:
        raise InputError(f"{name}: not valid JSON ({err}); save it anew with `sacct --json`") from None
    if not isinstance(data, dict) or not isinstance(data.get("jobs"), list):
        raise InputError(f"{name}: no list of jobs; save it with `sacct -a -D --json`")
    return data


def rows(data: Mapping[str, Any], reject: Callable[[records.Reject], None]) -> Iterator[list[str]]:
    """One row per job followed by one per step."""
    trusted = version(data) >= _FIRST_WITH_EXIT_CODES
    for job in data["jobs"]:
        try:
            fields = job_fields(job, trusted)
            steps = [step_fields(step, fields, trusted) for step in job.get("steps") or ()]
            for one in (fields, *steps):
                _check_text(one)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as err:
            number = job.get("job_id") if isinstance(job, dict) else None
            why = f"no {err}" if isinstance(err, KeyError) else str(err)
            reject(records.Reject(f"JSON job of another shape: {why}", f"JobIDRaw={str(number)[:40]}"))
            continue
        for one in map(_plain, (fields, *steps)):
            yield [one.get(f, "") for f in HEADER]


def version(data: Mapping[str, Any]) -> tuple[int, int]:
    """Version of the Slurm that wrote it, (0, 0) when it doesn't say."""
    try:
        meta = data.get("meta") or {}
        found = (meta.get("slurm") or meta.get("Slurm") or {}).get("version") or {}
        return int(found.get("major", 0)), int(found.get("minor", 0))
    except (TypeError, ValueError, AttributeError, OverflowError):
        return 0, 0


def _whole(text: str) -> float:
    """A number of JSON; one that Python would refuse to read costs its own job only."""
    return int(text) if len(text) <= 40 else float("inf")


def number(value: Any) -> int | None:
    """A number in either shape; None where it is not set or infinite."""
    if isinstance(value, dict):
        if value.get("infinite") or value.get("set") is False:
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in _NO_NUMBER:
        return None
    return int(value)


def _check_text(fields: Mapping[str, Any]) -> None:
    """Raises ValueError where something else stands in place of a text."""
    for name, value in fields.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} is {str(value)[:60]!r} instead of a text")


def _plain(fields: dict[str, str]) -> dict[str, str]:
    """Halves of surrogate pairs, which JSON can write and no database takes, become U+FFFD: a name costs no job."""
    if all(value.isascii() for value in fields.values()):
        return fields
    return {k: v.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for k, v in fields.items()}


def text(value: Any) -> str:
    """A number as sacct would print it: nothing where there is none."""
    found = number(value)
    return "" if found is None else str(found)


def state(value: Any) -> str:
    """State word of a string or list: what ended the attempt comes before what the job waits for now."""
    words = [value] if isinstance(value, str) else list(value or ())
    if not words or not all(isinstance(word, str) for word in words):
        raise ValueError(f"State is {str(value)[:60]!r} instead of words")
    return next((w for w in _ENDING_FLAGS if w in words), words[0])


def exit_text(value: Any) -> str:
    """code:signal."""
    value = value or {}
    signal = value.get("signal") or {}
    signal_id = number(signal.get("id", signal.get("signal_id"))) or 0
    code = number(value.get("return_code"))
    return "" if code is None and not signal_id else f"{code or 0}:{signal_id}"


def tres(items: Any) -> str:
    """A list of TRES objects as sacct prints it."""
    parts = []
    for item in items or ():
        count = number(item.get("count"))
        if count is None or count < 0:
            continue
        kind, name = item.get("type", ""), item.get("name") or ""
        parts.append(f"{kind}/{name}={count}" if name else f"{kind}={count}{'M' if kind == 'mem' else ''}")
    return ",".join(parts)


def _tres_count(items: Any, kind: str) -> str:
    return next((text(i.get("count")) for i in items or () if i.get("type") == kind and not i.get("name")), "")


def job_fields(job: Mapping[str, Any], trusted: bool) -> dict[str, str]:
    """Field → text of a job. Raises KeyError and others where the shape is not sacct's."""
    when, allocated = job["time"], (job.get("tres") or {}).get("allocated")
    current = job["state"]["current"] if isinstance(job["state"], dict) else job["state"]
    return {
        "JobIDRaw": str(int(job["job_id"])), "JobID": label(job), "Cluster": job.get("cluster") or "",
        "Submit": text(when["submission"]), "Eligible": text(when.get("eligible")), "Start": text(when.get("start")),
        "End": text(when.get("end")), "ElapsedRaw": text(when.get("elapsed")), "State": state(current),
        "ExitCode": exit_text(job.get("exit_code")) if trusted else "",
        "DerivedExitCode": exit_text(job.get("derived_exit_code")) if trusted else "",
        "AllocNodes": text(job.get("allocation_nodes")), "AllocCPUS": _tres_count(allocated, "cpu") or "0",
        "AllocTRES": tres(allocated), "ReqMem": asked_memory(job.get("required") or {}),
        "TimelimitRaw": text(when.get("limit")), "Partition": job.get("partition") or "", "Account": job.get("account") or "",
        "QOS": job.get("qos") or "", "User": job.get("user") or (job.get("association") or {}).get("user") or "",
        "NodeList": job.get("nodes") or "", "FailedNode": job.get("failed_node") or "",
        "Restarts": text(job.get("restart_cnt")), "JobName": job.get("name") or "",
    }  # fmt: skip


def label(job: Mapping[str, Any]) -> str:
    """JobID as sacct shows it, of arrays and het jobs too."""
    array, het = job.get("array") or {}, job.get("het") or {}
    parent, task = number(array.get("job_id")), number(array.get("task_id"))
    if parent and task is not None:
        return f"{parent}_{task}"
    if parent and array.get("task"):
        return f"{parent}_[{array['task']}]"
    if number(het.get("job_id")):
        return f"{number(het['job_id'])}+{number(het.get('job_offset')) or 0}"
    return str(int(job["job_id"]))


def asked_memory(required: Mapping[str, Any]) -> str:
    """ReqMem: per CPU or per node."""
    for name, suffix in (("memory_per_cpu", "Mc"), ("memory_per_node", "Mn")):
        found = number(required.get(name))
        if found is not None:
            return f"{found}{suffix}"
    return ""


def step_fields(step: Mapping[str, Any], job: Mapping[str, str], trusted: bool) -> dict[str, str]:
    """Field → text of a step of a job."""
    when, usage = step["time"], step.get("tres") or {}
    largest = [i for i in (usage.get("requested") or {}).get("max") or () if i.get("type") == "mem"]
    nodes = step.get("nodes") or {}
    found = nodes.get("range") or ",".join(nodes.get("list") or ()) if isinstance(nodes, dict) else str(nodes)
    return {
        **{k: job[k] for k in ("Cluster", "Account")}, "JobIDRaw": f"{job['JobIDRaw']}.{step_name(step)}",
        "JobID": f"{job['JobID']}.{step_name(step)}", "Submit": text(when.get("start")), "Start": text(when.get("start")),
        "End": text(when.get("end")), "ElapsedRaw": text(when.get("elapsed")), "State": state(step.get("state")),
        "ExitCode": exit_text(step.get("exit_code")) if trusted else "", "AllocTRES": tres(usage.get("allocated")),
        "NodeList": found or "", "NTasks": text((step.get("tasks") or {}).get("count")),
        "JobName": (step.get("step") or {}).get("name") or "",
        "MaxRSS": text(largest[0].get("count")) if largest else "",
        "MaxRSSNode": str(largest[0].get("node") or "") if largest else "",
    }  # fmt: skip


def step_name(step: Mapping[str, Any]) -> str:
    """The part after the job's number: batch, 0, …"""
    found = (step.get("step") or {}).get("id")
    if isinstance(found, dict):
        found = found.get("step_id", found.get("id"))
    name = str(found)
    head, dot, tail = name.partition(".")
    return tail if dot and head.split("+")[0].split("_")[0].isdigit() else name
