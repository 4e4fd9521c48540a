"""Jobs that wait for all sorts of reasons on a real Slurm: only those that get the next free nodes turn steering off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from slurm_hook.common import hostlist
from slurm_hook.dispatch import passes
from slurm_hook.published import mark
from tests.dispatched import Dispatched
from tests.sandbox import Sandbox
from tests.wrapped import Wrapped

pytestmark = pytest.mark.integration
LINES = (
    "AccountingStorageEnforce=associations,limits,qos", "Licenses=matlab:1",
    "PartitionName=short Nodes=ALL MaxTime=1", "PartitionName=few Nodes=ALL MaxNodes=1", "PartitionName=off Nodes=ALL State=DOWN",
    "PartitionName=lean Nodes=ALL MaxMemPerNode=100",
)  # fmt: skip


@pytest.fixture(scope="module")
def slurm() -> Iterator[Sandbox]:
    """A Slurm of eight nodes that enforces limits."""
    with Sandbox(nodes=8, extra_conf=LINES) as running:
        running.run(["sacctmgr", "-i", "add", "qos", "one", "MaxJobsPerUser=1"])
        running.run(["sacctmgr", "-i", "modify", "user", "alice", "set", "qos+=one"])
        yield running


@pytest.fixture(scope="module")
def wrapped(slurm: Sandbox) -> Wrapped:
    return Wrapped(slurm)


@pytest.fixture
def site(slurm: Sandbox, wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatched]:
    wrapped.publish("steer", live=False)
    monkeypatch.setattr(passes, "POOL_AGE", 0.0)  # the tests before gave pools to theirs
    made = Dispatched(slurm, monkeypatch, publish__path=str(wrapped.public))
    yield made
    made.clean()


@contextlib.contextmanager
def nothing(site: Dispatched) -> Iterator[None]:
    yield


@contextlib.contextmanager
def down(site: Dispatched) -> Iterator[None]:
    site.sandbox.run(["scontrol", "update", "NodeName=gpu08", "State=DOWN", "Reason=test"])
    try:
        yield
    finally:
        site.sandbox.resume("gpu08")


def reserved(nodes: str, users: str) -> Callable[[Dispatched], contextlib.AbstractContextManager[None]]:
    """A reservation of these nodes in two hours."""

    @contextlib.contextmanager
    def before(site: Dispatched) -> Iterator[None]:
        words = ["reservation=later", "starttime=now+2hours", "duration=60", f"nodes={nodes}", f"users={users}"]
        site.sandbox.run(["scontrol", "create", *words])
        try:
            yield
        finally:
            site.clean()
            site.sandbox.run(["scontrol", "delete", "reservation=later"])

    return before


def runs(*args: str) -> Callable[[Dispatched], contextlib.AbstractContextManager[None]]:
    """Another job of alice's runs."""

    @contextlib.contextmanager
    def before(site: Dispatched) -> Iterator[None]:
        job = site.sbatch(*args, comment="")
        site.sandbox.poll(lambda: site.job(job).state == "RUNNING", 20, "a job to run")
        yield

    return before


def both(*befores: Callable[[Dispatched], contextlib.AbstractContextManager[None]]):
    @contextlib.contextmanager
    def before(site: Dispatched) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in befores:
                stack.enter_context(one(site))
            yield

    return before


@pytest.mark.parametrize(
    ("args", "before", "reason"),
    [
        (("-N9",), nothing, "PartitionConfig"),
        (("-N1", "-w", "gpu08"), down, "ReqNodeNotAvail"),
        (("-N1", "-x", "gpu[01-07]"), down, "ReqNodeNotAvail"),
        (("-N8",), down, "Nodes required for job are DOWN"),
        (("-N1", "-w", "gpu01"), runs("-N1", "-w", "gpu01", "--exclusive"), "Resources"),
        (("-N1", "--begin=now+1hour"), nothing, "BeginTime"),
        (("-N1", "--hold"), nothing, "JobHeldUser"),
        (("-N1", "--dependency=singleton", "-J", "x"), runs("-N1", "-J", "x"), "Dependency"),
        (("-N1", "-L", "matlab:1"), runs("-N1", "-L", "matlab:1"), "Licenses"),
        (("-N1", "--reservation=later"), reserved("gpu01", "alice,bob"), "Reservation"),
        (("-N2", "-t", "600"), both(reserved("gpu[01-07]", "root"), runs("-N1", "-w", "gpu08", "--exclusive")), "Resources"),
        (("-N2", "-t", "600"), reserved("gpu[01-07]", "root"), "ReqNodeNotAvail, May be reserved for other job"),
        (("-N2", "-t", "600"), reserved("ALL", "root"), "ReqNodeNotAvail, Reserved for maintenance"),
        (("-N1", "-q", "one"), runs("-N1", "-q", "one"), "QOSMaxJobsPerUserLimit"),
        (("-N1", "--array=1-3%1"), nothing, "JobArrayTaskLimit"),
        (("-N1", "-p", "short", "-t", "60"), nothing, "PartitionTimeLimit"),
        (("-N2", "-p", "few"), nothing, "PartitionNodeLimit"),
        (("-N1", "-p", "off"), nothing, "PartitionDown"),
        (("-N1", "-p", "lean", "--mem=500"), nothing, "MaxMemPerLimit"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_who_waits_for_something_else_than_free_nodes_does_not_turn_steering_off(site, wrapped, args, before, reason):
    with before(site):
        waits = site.sbatch(*args, comment="")
        site.sandbox.poll(lambda: any(seen.startswith(reason) for seen in reasons_of(site, waits)), 30, f"reason {reason}")
        site.one_pass()
        assert site.live().queue_head == {}
        job = site.sbatch("-N2", "-t", "30", comment="", user="bob", binary=wrapped.sbatch)
        found = site.sandbox.job(job)
        told = mark.parse(found["Comment"])
        assert told is not None and told.mode == "steer"
        pool = set(site.sandbox.nodes) - set(hostlist.expand(found["ExcNodeList"]))
        assert len(pool) == 2
        assert not ({"-w", "gpu01"} <= set(args) and "gpu01" in pool)
        site.sandbox.poll(lambda: site.job(job).state == "RUNNING", 40, "the steered job to run")


def reasons_of(site: Dispatched, job: int) -> list[str]:
    shown = site.sandbox.run(["squeue", "-h", "-r", "-t", "PD", "-j", str(job), "-o", "%r"]).stdout.splitlines()
    return shown or [""]


def test_who_gets_the_next_free_nodes_counts(site, wrapped):
    full = site.sbatch("-N8", "--exclusive", comment="")
    site.sandbox.poll(lambda: site.job(full).state == "RUNNING", 20, "the machine to be full")
    first, second = (site.sbatch("-N2", "--exclusive", comment="") for _ in range(2))
    for waits, reason in ((first, "Resources"), (second, "Priority")):
        site.sandbox.poll(lambda waits=waits, reason=reason: reasons_of(site, waits) == [reason], 30, reason)
    site.one_pass()
    assert site.live().queue_head == {"llm": max(site.job(job).priority for job in (first, second))}


def test_bad_constraints_and_a_dependency_that_can_not_be_met_do_not_count(site):
    fails = site.sbatch("-N1", comment="", script="#!/bin/sh\nexit 1\n")
    never = site.sbatch("-N1", f"--dependency=afterok:{fails}", comment="")
    held = site.sbatch("-N2", "--exclusive", "--begin=now+1hour", comment="")
    site.sandbox.run(["scontrol", "update", f"JobId={held}", "ExcNodeList=gpu[01-08]", "StartTime=now"], check=False)
    for waits, reason in ((never, "DependencyNeverSatisfied"), (held, "BadConstraints")):
        site.sandbox.poll(lambda waits=waits, reason=reason: reasons_of(site, waits) == [reason], 30, reason)
    site.one_pass()
    assert site.live().queue_head == {}
