"""The texts of the sandbox's configuration files, as pure functions of one `Layout` and the Slurm version."""

from dataclasses import dataclass
from pathlib import Path

Version = tuple[int, int]

# Megabytes of RealMemory, given to the nodes in turn: a leaf switch of four nodes has one of each.
MEMORY_SIZES = (256_000, 384_000, 512_000, 768_000)
GPUS_PER_NODE = 8
CPUS_PER_NODE = 32
LEAVES = 4
# The client commands' Unix socket paths (slurmstepd's are the longest) must fit in the kernel's 108 bytes.
MAX_ROOT_LENGTH = 60


@dataclass(frozen=True)
class Layout:
    """All that the configuration files depend on."""

    root: Path
    cluster: str
    host: str
    nodes: tuple[str, ...]
    ports: tuple[int, ...]  # slurmctld, slurmdbd, then one per node
    version: Version
    extra_conf: tuple[str, ...] = ()

    @property
    def etc(self) -> Path:
        """The folder of slurm.conf and what Slurm looks for beside it."""
        return self.root / "etc"

    @property
    def munge_socket(self) -> Path:
        """The socket of the sandbox's own munged."""
        return self.root / "munge" / "socket"

    @property
    def mysql_socket(self) -> Path:
        """The socket of the sandbox's own MariaDB."""
        return self.root / "db" / "socket"


def node_names(count: int) -> tuple[str, ...]:
    """gpu01, gpu02, …: at least two digits, as many as the count needs."""
    width = max(2, len(str(count)))
    return tuple(f"gpu{number:0{width}}" for number in range(1, count + 1))


def leaves(nodes: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """Neighbouring nodes shared out over the leaf switches; fewer switches when there are fewer nodes."""
    count = min(LEAVES, len(nodes))
    bounds = [len(nodes) * part // count for part in range(count + 1)]
    return [(f"leaf{part + 1}", nodes[bounds[part] : bounds[part + 1]]) for part in range(count)]


def small_part(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes of partition `small`: the last quarter (at least one)."""
    return nodes[-max(1, len(nodes) // 4) :]


def slurm_conf(lay: Layout) -> str:
    """slurm.conf; the caller's own lines come last, so that they win."""
    return "\n".join([_general(lay), _accounting(lay), *_nodes(lay), *_partitions(lay), *lay.extra_conf, ""])


def _general(lay: Layout) -> str:
    root = lay.root
    return f"""\
ClusterName={lay.cluster}
SlurmctldHost={lay.host}(127.0.0.1)
SlurmctldPort={lay.ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={lay.munge_socket}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
PriorityType=priority/multifactor
TopologyPlugin=topology/tree
ReturnToService=1
GresTypes=gpu
SlurmdParameters=config_overrides
KillWait=2
InactiveLimit=0
SlurmdTimeout=300"""


def _accounting(lay: Layout) -> str:
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={lay.ports[1]}
AccountingStoragePass={lay.munge_socket}
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment"""


def _nodes(lay: Layout) -> list[str]:
    lines = [f"NodeName=DEFAULT CPUs={CPUS_PER_NODE} Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"]
    for place, (name, port) in enumerate(zip(lay.nodes, lay.ports[2:], strict=True)):
        memory = MEMORY_SIZES[place % len(MEMORY_SIZES)]
        lines.append(f"NodeName={name} NodeHostname={lay.host} NodeAddr=127.0.0.1 Port={port} RealMemory={memory}")
    return lines


def _partitions(lay: Layout) -> list[str]:
    return [
        "PartitionName=DEFAULT MaxTime=INFINITE DefaultTime=60 State=UP",
        f"PartitionName=llm Nodes={','.join(lay.nodes)} Default=YES",
        f"PartitionName=small Nodes={','.join(small_part(lay.nodes))}",
    ]


def slurmdbd_conf(lay: Layout) -> str:
    """slurmdbd.conf; slurmdbd refuses it unless it is mode 0600."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={lay.munge_socket}
DbdHost={lay.host}
DbdAddr=127.0.0.1
DbdPort={lay.ports[1]}
SlurmUser=root
LogFile={lay.root}/log/slurmdbd.log
PidFile={lay.root}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""


def gres_conf(lay: Layout) -> str:
    """gres.conf: GPUs need a File= (without one the node goes INVAL); plain files will do."""
    return f"Name=gpu File={lay.root}/dev/gpu[0-{GPUS_PER_NODE - 1}]\n"


def topology_conf(lay: Layout) -> str:
    """topology.conf: leaf switches under one spine."""
    lines = [f"SwitchName={name} Nodes={','.join(nodes)}" for name, nodes in leaves(lay.nodes)]
    names = ",".join(name for name, _ in leaves(lay.nodes))
    return "\n".join([*lines, f"SwitchName=spine Switches={names}", ""])


def cgroup_conf(lay: Layout) -> str:
    """cgroup.conf: nothing here uses cgroups; 22.05 dies of `disabled`, later versions want it."""
    return f"CgroupPlugin={'cgroup/v1' if lay.version < (23, 2) else 'disabled'}\n"


def accounts(cluster: str, account: str, users: tuple[str, ...], operator: str) -> str:
    """A file for `sacctmgr load`: one connection for all, where single commands take half a second each on 22.05."""
    lines = [
        f"Cluster - '{cluster}'",
        "Parent - 'root'",
        "User - 'root':DefaultAccount='root':AdminLevel='Administrator'",
        f"Account - '{account}'",
        f"Parent - '{account}'",
        *(f"User - '{user}':DefaultAccount='{account}'" for user in users),
        f"User - '{operator}':DefaultAccount='{account}':AdminLevel='Operator'",
    ]
    return "\n".join([*lines, ""])


def init_sql() -> str:
    """What MariaDB runs before it takes connections: the database and slurmdbd's account."""
    return (
        "CREATE DATABASE slurm_acct_db CHARACTER SET utf8mb4;\n"
        "CREATE USER slurm@localhost IDENTIFIED BY 'slurm';\n"
        "GRANT ALL ON slurm_acct_db.* TO slurm@localhost;\n"
    )
