"""A run: a sandbox made ready, threads that take pairs, and what they find as text."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import TracebackType

from tests.fuzz.allowed import Difference, known
from tests.fuzz.call import Call
from tests.fuzz.making import Maker
from tests.fuzz.pairs import Pairs
from tests.fuzz.sites import SITES, Sites
from tests.sandbox.client import Client

BATCH = 20


class Fuzz:
    """Jobs start in partition `run` only, so that what is compared doesn't depend on the moment."""

    def __init__(self, sandbox: Client) -> None:
        self.sandbox, self.sites = sandbox, Sites(sandbox)
        self.jobs = self.ours = self.count = self.known = 0
        self._seen: dict[tuple[str, ...], int] = {}

    def __enter__(self) -> Fuzz:
        self._partitions("DOWN", "fast,slow")
        self.sandbox.run(["scontrol", "create", "PartitionName=run", f"Nodes={','.join(self.sandbox.nodes)}"])
        for name in SITES:
            self.sites.get(name)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.sandbox.run(["scancel", "-u", "alice"], check=False)
        self.sandbox.poll(lambda: not self.sandbox.run(["squeue", "-h"]).stdout.strip(), 60, "the queue to be empty")
        self.sandbox.run(["scontrol", "delete", "PartitionName=run"], check=False)
        self._partitions("UP", "")

    def _partitions(self, state: str, features: str) -> None:
        for name in ("llm", "small"):
            self.sandbox.run(["scontrol", "update", f"PartitionName={name}", f"State={state}"])
        nodes = ",".join(self.sandbox.nodes)
        self.sandbox.run(
            ["scontrol", "update", f"NodeName={nodes}", f"AvailableFeatures={features}", f"ActiveFeatures={features}"]
        )

    def run(self, seed: str, places: Sequence[int], threads: int) -> Iterator[str]:
        """Run these pairs; gives what differs, in words."""
        batches: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
        for start in range(0, len(places), BATCH):
            batches.put(places[start : start + BATCH])
        told: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        workers = [Pairs(self.sandbox, self.sites, self.sandbox.root / f"fuzz{n}") for n in range(threads)]
        for worker in workers:
            threading.Thread(target=self._work, args=(worker, seed, batches, told), daemon=True).start()
        left = threads
        while left:
            text = told.get()
            if text is None:
                left -= 1
            else:
                yield text
        self.jobs, self.ours = sum(w.jobs for w in workers), sum(w.ours for w in workers)

    def _work(
        self, worker: Pairs, seed: str, batches: queue.SimpleQueue[Sequence[int]], told: queue.SimpleQueue[str | None]
    ) -> None:
        try:
            while True:
                places = batches.get_nowait()
                calls = [Maker(f"{seed}:{place}").call() for place in places]
                for place, call, found in zip(places, calls, worker.compare(calls)):
                    if found and known(call, found):
                        self.known += 1
                    elif found:
                        self.count += 1
                        told.put(self._told(place, call, found, worker))
        except queue.Empty:
            pass
        except BaseException:  # a thread that dies must be heard of
            self.count += 1
            told.put(traceback.format_exc())
        told.put(None)

    def _told(self, place: int, call: Call, differences: list[Difference], worker: Pairs) -> str:
        kind = tuple(_kind(*difference) for difference in differences)
        if kind in self._seen:
            return f"#{place} differs as #{self._seen[kind]} does"
        self._seen[kind] = place
        found = worker.shrunk(call, differences)
        lines = [f"#{place} differs ({found.again} of 3 times again): {found.call.told()}"]
        for what, plain, ours in found.differences:
            lines += [f"    {what}", f"        plain: {_short(plain, ours)}", f"        ours:  {_short(ours, plain)}"]
        return "\n".join(lines)


def _kind(what: str, plain: object, ours: object) -> str:
    """What pairs that differ for the same reason have in common: the words that one of them lacks."""
    if isinstance(plain, bytes) and isinstance(ours, bytes):
        lines = set(plain.splitlines()), set(ours.splitlines())
        return f"{what} {sorted(lines[0] - lines[1])} {sorted(lines[1] - lines[0])}"
    return what if isinstance(plain, (dict, list, float)) else f"{what} {_short(plain, ours)} {_short(ours, plain)}"


def _short(value: object, other: object) -> str:
    """Of long lists only what the other one lacks."""
    if isinstance(value, list) and isinstance(other, list) and len(value) > 3:
        value = [item for item in value if item not in other]
    text = repr(value)
    return text if len(text) < 700 else f"{text[:500]} … {text[-150:]}"
