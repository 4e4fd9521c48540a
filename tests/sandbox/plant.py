"""Planted bad nodes: a file per node, which the payload of the test jobs consults, and requests to set a node DOWN."""

import shlex
from pathlib import Path

from .errors import SandboxError

WAYS = ("exit", "signal", "down")
DOWN_REASON = "sandbox: planted"
RANGE = 1 << 32  # the payload draws four random bytes

# What each node of a job runs. It draws from the kernel's randomness: clocks would give equal draws to equal starts.
# After asking for its node's end it waits to be killed; the sleep's end means that nobody served the request.
_NODE_PART = """\
half={half}
set -C
trap 'code=$?; [ $code -eq 0 ] || echo $code > "$END"' EXIT
{work}
sleep $half
plant={root}/plant/$SLURMD_NODENAME
if [ -r "$plant" ] && read -r limit how < "$plant"; then
    draw=$(od -An -N4 -tu4 /dev/urandom)
    if [ "$draw" -lt "$limit" ]; then
        case $how in
        signal) echo 137 > "$END"; kill -KILL $$ ;;
        down) : >| {root}/requests/"$SLURMD_NODENAME"; sleep 60; exit 1 ;;
        *) exit 1 ;;
        esac
    fi
fi
sleep $half
"""

# A one-node job runs that in the batch shell, others through srun on each node. srun's own exit code then comes from the
# tasks it terminated, so the node that dies first writes its code down (set -C: the first only). A code above 128 is a
# signal, and the batch shell dies of it too. So jobs of one node and of many look alike in accounting.
_BATCH_PART = """\
#!/bin/sh
node={node}
if [ "${{SLURM_JOB_NUM_NODES:-1}}" -eq 1 ]; then
    END=/dev/null
    eval "$node"
    exit 0
fi
export END={root}/out/.end-$SLURM_JOB_ID
n=$SLURM_JOB_NUM_NODES
srun --nodes="$n" --ntasks="$n" --ntasks-per-node=1 --kill-on-bad-exit=1 sh -c "$node"
code=$?
[ ! -s "$END" ] || read -r code < "$END"
rm -f "$END"
[ "$code" -le 128 ] || kill -s $((code - 128)) $$
exit "$code"
"""


def payload(root: Path, seconds: float, work: str) -> str:
    """Text of a batch script that runs `work` and sleeps `seconds` on each node, and dies halfway on a planted one."""
    node = _NODE_PART.format(half=f"{seconds / 2:g}", work=work or ":", root=root)
    return _BATCH_PART.format(node=shlex.quote(node), root=root)


def write(root: Path, node: str, probability: float, how: str) -> None:
    """Plant: jobs that run on the node die with this probability."""
    if how not in WAYS:
        raise SandboxError(f"A planted node can end jobs by {', '.join(WAYS)}, not by {how!r}.")
    if not 0 <= probability <= 1:
        raise SandboxError(f"The probability {probability!r} for {node} isn't between 0 and 1.")
    path = root / "plant" / node
    fresh = root / "plant" / f".{node}"
    fresh.write_text(f"{round(probability * RANGE)} {how}\n")
    fresh.chmod(0o644)
    fresh.rename(path)


def clear(root: Path, node: str) -> None:
    """Take the plant off a node."""
    (root / "plant" / node).unlink(missing_ok=True)


def take_requests(root: Path) -> list[str]:
    """Nodes whose payload asked to be set DOWN; each request is given once, and only if the node is planted so."""
    found = []
    for request in (root / "requests").iterdir():
        try:
            request.unlink()
            planted = (root / "plant" / request.name).read_text()
        except OSError:  # every user may write here: no file, or no planted node of that name
            continue
        if planted.split()[1:] == ["down"]:
            found.append(request.name)
    return found
