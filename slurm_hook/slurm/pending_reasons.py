"""Slurm's reasons why a job waits, 22.05 to 26.05: does it hold nodes from others meanwhile or not.

A job holds nodes where Slurm gives it those that become free: nobody of lower priority then starts in its partition, save
by backfill. All others start past a job that waits for a limit, a license, a date or a node that is down, and past one that
can never start. One user could keep such a job waiting for ever, so it must not count.
"""

from __future__ import annotations

import re

HOLDS, LETS_GO = True, False
# Does it hold nodes, and how the reasons begin. squeue may tell of a reason in a sentence of its own.
TABLE: tuple[tuple[bool, tuple[str, ...]], ...] = (
    (HOLDS, ("Resources", "Priority")),  # its turn has come, or comes after others'
    (HOLDS, ("None",)),  # just submitted or changed: Slurm hasn't looked at it yet
    (HOLDS, ("Nodes required for job are DOWN",)),  # "… or reserved": the nodes that are there tell, see heads.Room
    (HOLDS, ("FedJobLock", "MpiPortsBusy", "NvidiaImexChannels", "Prolog")),  # it was about to start and does so in a moment
    (HOLDS, ("BlockMaxError", "BlockFreeAction", "SchedDefer")),  # of machines of old, and of calls that don't wait
    # the end of an attempt: of a job that waits again until Slurm looks at it anew
    (HOLDS, ("NodeDown", "NonZeroExitCode", "RaisedSignal", "TimeLimit", "InactiveLimit", "SystemFailure", "OutOfMemory",
             "JobLaunchFailure")),
    (LETS_GO, ("JobHeld", "JobHoldMaxRequeue", "job requeued in", "launch fail", "user env retrieval failed")),
    (LETS_GO, ("Dependency", "BeginTime", "DeadLine")),
    (LETS_GO, ("JobArrayTaskLimit", "Cleaning")),  # others of its array run; what it left is being cleared away
    (LETS_GO, ("BadConstraints", "Constraints")),  # no node is, or at present none has, what it asks for
    (LETS_GO, ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "MaxMemPerLimit")),  # more than a job may ask for
    (LETS_GO, ("PartitionDown", "PartitionInactive", "FrontEndDown")),  # nobody starts there
    (LETS_GO, ("ReqNodeNotAvail",)),  # nodes it can't do without are down, or reserved for maintenance or others
    (LETS_GO, ("Reservation",)),  # its own hasn't begun or is gone, or others' are in its way
    (LETS_GO, ("Assoc", "QOS", "AccountingPolicy")),  # limits; sites with assoc_limit_stop let some of these hold nodes
    (LETS_GO, ("MaxBB", "MaxBilling", "MaxCpu", "MaxEnergy", "MaxGRES", "MaxJobs", "MaxLicense", "MaxMemory", "MaxNode",
               "MaxSubmitJobs", "MaxUnknown")),  # limits of an account or user
    (LETS_GO, ("InvalidAccount", "InvalidQOS", "AccountNotAllowed", "uid ")),
    (LETS_GO, ("Licenses", "BurstBuffer", "burst_buffer/", "PowerNotAvail", "PowerReserved", "MaxPoweredUpNodes")),  # not nodes
)  # fmt: skip
_LET_GO = tuple(beginning for holds, beginnings in TABLE if not holds for beginning in beginnings)
_NEXT = re.compile(r",(?=[A-Z])")  # between those of an array's tasks


def holds_nodes(reason: str) -> bool:
    """Whether a job that waits for this holds nodes.

    A reason that isn't known holds: others then do without a pool, which costs nobody a minute; the other way round a job
    could be confined to nodes that go to that one.
    """
    return not all(one.startswith(_LET_GO) for one in _NEXT.split(reason))
