"""The event-driven cluster: jobs wait first come first served with EASY backfill, a policy says which idle nodes."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from accounting.history.columns import (
    DOWN,
    DRAIN,
    REASON_HARDWARE,
    REASON_UNKNOWN,
    RIGHT,
    SURVIVED,
    WRONG,
    Attempts,
    Events,
    History,
    Nodes,
    Tasks,
)
from tests.bench.world import ATTEMPTS, World

HOUR = 3600.0
EPOCH = 1_760_000_000.0
CAPACITY = 512_000.0
LARGE = 8
BACKFILL = 40  # how far down the queue backfill looks
WEAR_HOURS = 7 * 24.0
END, SUBMIT, BACK, OUTAGE, CHECK, NIGHT, TURN = range(7)


class Policy(Protocol):
    """Chooses nodes among idle ones; learns each night."""

    def choose(self, cluster: Cluster, job: int, idle: np.ndarray) -> np.ndarray: ...

    def night(self, cluster: Cluster) -> None: ...


@dataclass
class Run:
    """One attempt that runs."""

    job: int
    attempt: int
    start: float
    latest: float  # its end by the job's limit
    nodes: np.ndarray
    outcome: int
    culprit: int
    visible: bool
    saved: float


@dataclass
class Ledger:
    """Growing history: rows (nodes, then job, start, end, outcome, named culprit, true culprit), and as arrays what was
    packed of them: nodes of all attempts, and one row of numbers per attempt with how many nodes it had."""

    rows: list[tuple[np.ndarray, int, float, float, int, int, int]] = field(default_factory=list)
    nodes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    numbers: np.ndarray = field(default_factory=lambda: np.zeros((0, 7)))
    events: list[tuple[int, int, int, float, float]] = field(default_factory=list)

    def packed(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and numbers of all rows so far."""
        fresh = self.rows[len(self.numbers) :]
        if fresh:
            self.numbers = np.concatenate([self.numbers, np.array([(*row[1:], len(row[0])) for row in fresh])])
            self.nodes = np.concatenate([self.nodes, *(row[0] for row in fresh)]).astype(np.int32)
        return self.nodes, self.numbers


class Cluster:
    """Runs one world under one policy. Times in hours."""

    def __init__(self, world: World, policy: Policy) -> None:
        p = world.parameters
        self.world, self.policy, self.now = world, policy, 0.0
        self.size, self.limit = world.size.tolist(), world.limit.tolist()  # lists: an element costs a tenth of an array's
        self.idle, self.hazard = np.ones(p.nodes, bool), world.hazard.copy()
        self.busy_hours = np.zeros(p.nodes)
        self.busy_level = np.full(p.nodes, p.load)  # sustained load, for the wear
        self.level_at = np.zeros(p.nodes)
        self.queue: list[tuple[int, int, float, float]] = []  # job, attempt, submitted, hours saved
        self.running: dict[int, Run] = {}
        self.limits: list[tuple[float, int, int]] = []  # of what runs, in order: latest end by its limit, run, nodes
        self.heap: list[tuple[float, int, int, int]] = []
        self.ledger = Ledger()
        self.serial = 0
        self.policy_memo: dict[bool, list[float]] = {}  # ranks of the jobs, worked out once
        self.waits: list[tuple[float, float, int]] = []
        self.risk: list[tuple[float, float]] = []  # (start, expected failures) of large attempts
        self.lost: list[tuple[float, float]] = []

    def run(self) -> Cluster:
        """From a cold start to the end of the last day."""
        p = self.world.parameters
        for job, when in enumerate(self.world.submit):
            self._push(float(when), SUBMIT, job)
        for kind, planned in ((OUTAGE, self.world.outages), (CHECK, self.world.checks)):
            for when, what in planned:
                self._push(when, kind, what)
        for number, turn in enumerate(self.world.turns):
            self._push(turn[0], TURN, number)
        for day in range(1, int(p.days) + 1):
            self._push(day * 24.0, NIGHT, day)
        handlers = (self._end, self._submit, self._back, self._outage, self._check, self._night, self._turn)
        while self.heap:
            self.now, kind, _, what = heapq.heappop(self.heap)
            if self.now > p.days * 24:
                break
            handlers[kind](what)
            if kind != NIGHT and self.queue:
                self._schedule()
        return self

    def _push(self, when: float, kind: int, what: int) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (when, kind, self.serial, what))

    def _submit(self, job: int) -> None:
        self.queue.append((job, 0, self.now, 0.0))

    def _back(self, node: int) -> None:
        self.idle[node] = True

    def _night(self, _: int) -> None:
        self.policy.night(self)

    def _turn(self, number: int) -> None:
        _, node, hazard = self.world.turns[number]
        self.hazard[node] = hazard

    def _schedule(self) -> None:
        """Head of the queue first; behind a head that doesn't fit, jobs that don't delay it."""
        free, size, limit = int(np.count_nonzero(self.idle)), self.size, self.limit
        while self.queue and size[self.queue[0][0]] <= free:
            free -= size[self.queue[0][0]]
            self._start(*self.queue.pop(0))
        if len(self.queue) < 2 or free == 0:
            return
        shadow, spare = self._shadow(size[self.queue[0][0]], free)
        kept = 1
        while kept < len(self.queue) and kept < BACKFILL and free > 0:
            job, _, _, saved = self.queue[kept]
            k = size[job]
            soon = self.now + limit[job] - saved <= shadow
            if k <= free and (soon or k <= spare):
                free -= k
                spare -= 0 if soon else k
                self._start(*self.queue.pop(kept))
            else:
                kept += 1

    def _shadow(self, wanted: int, free: int) -> tuple[float, int]:
        """When the head can start by the limits of what runs, and how many nodes it leaves then."""
        for when, _, count in self.limits:
            free += count
            if free >= wanted:
                return max(when, self.now), free - wanted
        return self.now + 24.0, 0

    def _start(self, job: int, attempt: int, submitted: float, saved: float) -> None:
        w, p = self.world, self.world.parameters
        nodes = self.policy.choose(self, job, np.flatnonzero(self.idle))
        self.idle[nodes] = False
        self.waits.append((self.now, self.now - submitted, int(w.size[job])))
        hazard = self.hazard[nodes] * self._wear(nodes)
        left = float(w.hours[job]) - saved
        own = float(w.own[job]) - saved if np.isfinite(w.own[job]) else np.inf
        planned = min(left, own)
        total = float(hazard.sum())
        if w.size[job] >= LARGE:
            self.risk.append((self.now, -float(np.expm1(-total * planned))))
        fatal = float(w.fatal[job, attempt]) / total
        culprit, visible, outcome, lasts = -1, False, RIGHT if left <= own else WRONG, planned
        if fatal < planned:
            culprit = int(nodes[np.searchsorted(np.cumsum(hazard), w.whose[job, attempt] * total)])
            seen = float(w.seen[job, attempt])
            visible, outcome, lasts = seen < p.visible, WRONG, fatal
            if not visible and (seen - p.visible) / (1 - p.visible) < p.hangs:
                outcome, lasts = SURVIVED, max(float(w.limit[job]) - saved, fatal)
        self.serial += 1
        number = self.serial
        latest = self.now + max(float(w.limit[job]) - saved, 0.1)
        self.running[number] = Run(job, attempt, self.now, latest, nodes, outcome, culprit, visible, saved)
        insort(self.limits, (latest, number, len(nodes)))
        heapq.heappush(self.heap, (self.now + lasts, END, number, number))

    def _wear(self, nodes: np.ndarray) -> np.ndarray:
        p = self.world.parameters
        fade = np.exp((self.level_at[nodes] - self.now) / WEAR_HOURS)
        level = self.busy_level[nodes] * fade  # idle since then
        self.busy_level[nodes], self.level_at[nodes] = level, self.now
        return (1 + p.wear * level) / (1 + p.wear * p.load)

    def _end(self, number: int) -> None:
        if number not in self.running:  # an outage was faster
            return
        run = self._stopped(number)
        if run.culprit >= 0:
            self._node_failed(run)
        elif run.outcome == WRONG and run.attempt < self.world.repeats[run.job] and run.attempt < ATTEMPTS - 1:
            self.queue.append((run.job, run.attempt + 1, self.now, 0.0))
        self.idle[run.nodes] = True
        if run.visible:
            self.idle[run.culprit] = False

    def _stopped(self, number: int) -> Run:
        run = self.running.pop(number)
        del self.limits[bisect_left(self.limits, (run.latest, number))]
        self._account(run)
        return run

    def _account(self, run: Run) -> None:
        hours = self.now - run.start
        self.busy_hours[run.nodes] += hours
        fade = np.exp(-hours / WEAR_HOURS)
        self.busy_level[run.nodes] = self.busy_level[run.nodes] * fade + 1 - fade
        self.level_at[run.nodes] = self.now
        named = run.culprit if run.visible else -1
        self.ledger.rows.append((run.nodes, run.job, run.start, self.now, run.outcome, named, run.culprit))

    def _node_failed(self, run: Run) -> None:
        p = self.world.parameters
        elapsed = run.saved + (self.now - run.start)
        fatal = run.saved + float(self.world.fatal[run.job, run.attempt])
        saved = run.saved if run.outcome == SURVIVED else elapsed // p.checkpoint_hours * p.checkpoint_hours
        self.lost.append((self.now, (elapsed - saved) * len(run.nodes)))
        if run.attempt + 1 < ATTEMPTS:
            self.queue.append((run.job, run.attempt + 1, self.now, saved))
        if run.visible:
            back = self.now + max(0.5, p.repair_hours * (0.3 + 1.4 * (fatal % 1.0)))
            self.ledger.events.append((run.culprit, DOWN, REASON_UNKNOWN, self.now, back))
            self._push(back, BACK, run.culprit)

    def _outage(self, switch: int) -> None:
        """Every job that touches the switch dies, its nodes stay."""
        per = self.world.parameters.per_switch
        for number, run in list(self.running.items()):
            if (run.nodes // per == switch).any():
                run.outcome, run.culprit, run.visible = WRONG, -1, False
                self._stopped(number)
                self.idle[run.nodes] = True
                if run.attempt + 1 < ATTEMPTS:
                    self.queue.append((run.job, run.attempt + 1, self.now, run.saved))

    def _check(self, node: int) -> None:
        """A health check drains an idle node and resumes it an hour later; half of the time it says why."""
        if self.idle[node]:
            self.idle[node] = False
            reason = REASON_HARDWARE if int(self.now * 60) % 2 else REASON_UNKNOWN
            self.ledger.events.append((node, DRAIN, reason, self.now, self.now + 1))
            self._push(self.now + 1, BACK, node)

    def history(self, *, all_known: bool = False) -> History:
        """What accounting would know now. `all_known`: as if Slurm named every culprit."""
        w, (node, rows) = self.world, self.ledger.packed()
        job, start, end = rows[:, 0].astype(np.int64), rows[:, 1], rows[:, 2]
        outcome, named = rows[:, 3].astype(np.int8), rows[:, 5 if all_known else 4].astype(np.int64)
        if all_known:
            outcome = np.where(named >= 0, WRONG, outcome).astype(np.int8)
        attempt = np.repeat(np.arange(len(rows), dtype=np.int32), rows[:, 6].astype(np.int64))
        correct = np.select([outcome == RIGHT, outcome == WRONG], [1.0, -1.0], np.nan)
        tasks = Tasks(
            node=node, attempt=attempt, start=EPOCH + start[attempt] * HOUR, end=EPOCH + end[attempt] * HOUR,
            demand=w.utilization[job[attempt]] * CAPACITY, capacity=np.full(len(node), CAPACITY),
            correct=correct[attempt], culprit=named[attempt] == node,
        )  # fmt: skip
        p = w.parameters
        attempts = Attempts(
            job=job, user=w.user[job].astype(np.int32), work=w.work[job].astype(np.int32),
            group=np.arange(len(rows), dtype=np.int32), outcome=outcome,
            users=[f"u{i}" for i in range(p.users)], works=[f"w{i}" for i in range(p.users * 8)],
        )  # fmt: skip
        return History("sim", tasks, attempts, self._nodes(), self._events(), EPOCH, EPOCH + self.now * HOUR)

    def _nodes(self) -> Nodes:
        n, per = self.world.parameters.nodes, self.world.parameters.per_switch
        return Nodes(
            [f"n{i:03d}" for i in range(n)], np.full(n, -1, np.int32), (np.arange(n) // per).astype(np.int32),
            np.full(n, EPOCH), np.full(n, np.nan), [], [f"s{i}" for i in range(-(-n // per))],
        )  # fmt: skip

    def _events(self) -> Events:
        e = self.ledger.events
        columns = list(zip(*e)) if e else [()] * 5
        return Events(
            np.array(columns[0], np.int32), np.array(columns[1], np.int8), np.array(columns[2], np.int8),
            EPOCH + np.array(columns[3], float) * HOUR, EPOCH + np.array(columns[4], float) * HOUR,
        )  # fmt: skip
