"""Made-up sacct output, as -P prints it with ISO times: jobs on 1 to 8 nodes with three steps each."""

import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import IO

# what slurm2sql asks for, so that both read the same text
COLUMNS = (
    "JobName", "User", "Group", "Account", "SubmitLine", "State", "Timelimit", "Elapsed", "Submit", "Start", "End",
    "Partition", "Priority", "NodeList", "ReqNodes", "NNodes", "AllocNodes", "ReqTRES", "NTasks", "AllocTRES",
    "TRESUsageInTot", "TRESUsageOutTot", "NCPUS", "ReqCPUS", "AllocCPUS", "CPUTime", "UserCPU", "SystemCPU", "MinCPU",
    "MinCPUNode", "MinCPUTask", "ReqMem", "AveRSS", "MaxRSS", "MaxRSSNode", "MaxRSSTask", "MaxPages", "MaxVMSize",
    "AveDiskRead", "AveDiskWrite", "MaxDiskRead", "MaxDiskWrite", "Comment", "ExitCode", "TotalCPU", "JobID", "JobIDRaw",
    "ConsumedEnergyRaw", "TRESUsageInAve", "TRESUsageOutTot",
)  # fmt: skip

_BEGIN = datetime(2026, 3, 1)
_STATES = ("COMPLETED",) * 17 + ("FAILED", "NODE_FAIL", "CANCELLED by 1001")
_STEPS = ("batch", "extern", "0")


def _span(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def rows(jobs: int, columns: Sequence[str] = COLUMNS, seed: int = 1) -> Iterator[list[str]]:
    """Rows of `jobs` jobs in order of submission, each followed by its three steps."""
    draw = random.Random(seed)
    submit = _BEGIN
    for number in range(1, jobs + 1):
        submit += timedelta(seconds=draw.randrange(60))
        job = _job(draw, number, submit)
        yield [job.get(c, "") for c in columns]
        for step in _STEPS:
            one = _step(draw, job, step)
            yield [one.get(c, "") for c in columns]


def _job(draw: random.Random, number: int, submit: datetime) -> dict[str, str]:
    nodes, first = draw.randint(1, 8), draw.randrange(500)
    lasted = draw.randrange(20, 200_000)
    start = submit + timedelta(seconds=draw.randrange(600))
    state = draw.choice(_STATES)
    names = f"gpu[{first:04}-{first + nodes - 1:04}]" if nodes > 1 else f"gpu{first:04}"
    tres = f"billing={nodes * 64},cpu={nodes * 64},gres/gpu:h100={nodes * 8},gres/gpu={nodes * 8},mem={nodes * 900}G,node={nodes}"
    user = f"user{draw.randrange(60)}"
    return {
        "JobIDRaw": str(number), "JobID": str(number), "JobName": f"train-{draw.randrange(400)}", "User": user, "Group": "ml",
        "Account": f"acc{draw.randrange(9)}", "SubmitLine": f"sbatch --nodes={nodes} train.sh", "State": state,
        "Timelimit": "2-00:00:00", "Elapsed": _span(lasted), "ElapsedRaw": str(lasted), "Submit": submit.isoformat(),
        "Start": start.isoformat(), "End": (start + timedelta(seconds=lasted)).isoformat(), "Partition": "llm",
        "Priority": "100", "ExitCode": "0:0" if state == "COMPLETED" else "1:0", "NodeList": names, "ReqNodes": str(nodes),
        "NNodes": str(nodes), "AllocNodes": str(nodes), "ReqTRES": tres, "AllocTRES": tres, "NCPUS": str(nodes * 64),
        "ReqCPUS": str(nodes * 64), "AllocCPUS": str(nodes * 64), "CPUTime": _span(lasted * 64), "UserCPU": _span(lasted * 60),
        "SystemCPU": "01:02.300", "TotalCPU": _span(lasted * 61), "ReqMem": f"{nodes * 900}G", "QOS": "normal",
        "Cluster": "bench",
    }  # fmt: skip


def _step(draw: random.Random, job: dict[str, str], step: str) -> dict[str, str]:
    nodes = 1 if step == "batch" else int(job["NNodes"])
    first = job["NodeList"].replace("[", "").split("-")[0]
    rss = draw.randrange(10_000, 900_000_000)
    kept = ("User", "Account", "State", "Elapsed", "ElapsedRaw", "Submit", "Start", "End", "ExitCode", "CPUTime", "Cluster")
    return {
        **{k: job[k] for k in kept}, "User": "", "JobIDRaw": f"{job['JobIDRaw']}.{step}", "JobID": f"{job['JobID']}.{step}",
        "JobName": "python" if step == "0" else step, "NNodes": str(nodes), "AllocNodes": str(nodes), "NTasks": str(nodes),
        "NodeList": first if step == "batch" else job["NodeList"], "AllocCPUS": str(nodes * 64), "NCPUS": str(nodes * 64),
        "AllocTRES": f"cpu={nodes * 64},gres/gpu={nodes * 8},mem={nodes * 900}G,node={nodes}",
        "MaxRSS": f"{rss}K", "AveRSS": f"{rss // 2}K", "MaxRSSNode": first, "MaxRSSTask": "0", "MinCPU": "00:12:13",
        "MinCPUNode": first, "MinCPUTask": "0", "MaxVMSize": f"{rss}K", "UserCPU": "01:00:00", "SystemCPU": "00:01.100",
        "TotalCPU": "01:00:01", "TRESUsageInTot": f"cpu=01:00:00,energy=0,fs/disk=113,mem={rss}K,pages=0,vmem={rss}K",
        "TRESUsageInAve": f"cpu=01:00:00,mem={rss}K",
    }  # fmt: skip


def write(file: IO[str], jobs: int, delimiter: str, columns: Sequence[str] = COLUMNS) -> None:
    """A dump with a header."""
    file.write(delimiter.join(columns) + "\n")
    for row in rows(jobs, columns):
        file.write(delimiter.join(row) + "\n")
