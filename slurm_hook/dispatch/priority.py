"""In which order waiting tasks are placed (step 11 of the method). Pure functions on plain sequences, standard library only."""

from __future__ import annotations

from ..common.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

SMOOTHING = 60.0  # seconds added to each task's processing, attributed method: a task that has not begun isn't zero


class Waiting(Record):
    """A task that waits for nodes. `wait` and `processing` in seconds, `demand` in MiB; `key` breaks ties.

    Published method: wait is processing start - submit, processing is now - processing start. Attributed method, for a
    pending stage: wait is the time since its dependencies were met, processing the run time its pipeline has invested.
    """

    key: str
    wait: float
    processing: float
    demand: float


class Priority(Record):
    """What step 11 gives for one task. wait in hours; completion a share; urgency and priority in hours."""

    key: str
    wait_hours: float
    completion: float
    urgency: float
    priority: float


def waiting(key: str, submit: float, start: float, now: float, demand: float) -> Waiting:
    """A task from its epoch times, as the published method reads them. Clocks that run backwards count as no time."""
    return Waiting(key, max(start - submit, 0.0), max(now - start, 0.0), demand)


def priorities(tasks: Sequence[Waiting], smoothing: float = 0.0) -> list[Priority]:
    """Step 11 for each task, in the order given. `smoothing` (seconds): 0 published, SMOOTHING attributed.

    Where no task has been processed, completion is 0; where no demand is known, demand doesn't tell tasks apart.
    """
    total = sum(max(t.processing, 0.0) + smoothing for t in tasks)
    largest = max((t.demand for t in tasks), default=0.0)
    return [_priority(t, total, largest, smoothing) for t in tasks]


def placing_order(tasks: Sequence[Waiting], smoothing: float = 0.0) -> list[int]:
    """Indices of the tasks in descending allocation priority; ties: the longer wait, then the key."""
    scored = priorities(tasks, smoothing)
    return sorted(range(len(tasks)), key=lambda i: (-scored[i].priority, -tasks[i].wait, tasks[i].key))


def _priority(task: Waiting, total: float, largest: float, smoothing: float) -> Priority:
    wait = max(task.wait, 0.0) / 3600.0
    completion = (max(task.processing, 0.0) + smoothing) / total if total > 0 else 0.0
    share = max(task.demand, 0.0) / largest if largest > 0 else 1.0
    urgency = wait * completion
    return Priority(task.key, wait, completion, urgency, urgency * share)
