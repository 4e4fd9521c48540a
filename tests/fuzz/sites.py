# ruff: noqa: E501 - tables
"""Installations of ours that calls go through: one for each mode, and some that are broken."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from slurm_hook.published import snapshot
from tests.sandbox.client import Client
from tests.wrapped import PYTHON, Wrapped

BAD = ("gpu04", "gpu09")
REFRESH = 60  # seconds: live.json counts for three minutes


class Site(NamedTuple):
    """publish: for Wrapped.publish; spoil: what is done to the installation afterwards; python: a script in its place."""

    weight: int
    publish: Mapping[str, Any] = {}
    mode: str = "steer"
    hints: bool = False
    python: str = ""
    spoil: Callable[[Wrapped], object] = lambda wrapped: None

    @property
    def changes(self) -> bool:
        """Jobs may differ."""
        return self.weight >= 10 and self.mode not in ("off", "observe")


LEAST = {"match__min_nodes": 1, "steer__max_excluded": 0.2}
COMMON = {"steer__max_excluded": 0.2}
SITES = {
    "observe": Site(15, COMMON, "observe", hints=True),
    "avoid": Site(20, LEAST, "avoid"),
    "steer": Site(25, COMMON, hints=True),
    "steer-all": Site(20, LEAST),
    "nodelist": Site(10, {**LEAST, "steer__form": "nodelist"}),
    "off": Site(4, mode="off", hints=True),
    "disabled": Site(1, spoil=lambda w: (w.local / "disable").touch()),
    "no python": Site(1, python="#!/nowhere/python\n"),
    "python hangs": Site(1, python="#!/bin/sh\nexec sleep 60\n"),
    "python hangs with a child": Site(1, python="#!/bin/sh\nsleep 60 &\nwait\n"),
    "python fails": Site(1, python="#!/bin/sh\necho 'workhorse 1 0 1'\necho +--evil\necho oops >&2\nexit 1\n"),
    "python dies": Site(1, python="#!/bin/sh\nkill -9 $$\n"),
    "python talks": Site(1, python="#!/bin/sh\nexec yes\n"),
    "no library": Site(1, spoil=lambda w: os.rename(w.lib, w.root / "gone")),
    "broken module": Site(1, spoil=lambda w: (w.lib / "slurm_hook" / "decision" / "decide.py").write_text("import nothing_such\n")),
    "broken scores": Site(1, spoil=lambda w: os.truncate(w.public / snapshot.SCORES_NAME, 200)),
    "scores that hang": Site(1, spoil=lambda w: ((w.public / snapshot.SCORES_NAME).unlink(), os.mkfifo(w.public / snapshot.SCORES_NAME))),
    "no folder": Site(1, spoil=lambda w: os.rename(w.public, w.root / "gone")),
    "unreadable": Site(1, spoil=lambda w: (w.public.chmod(0o700), w.local.chmod(0o700))),
}  # fmt: skip
QUICK = 0.5  # seconds that the shim waits for a python that hangs


class Sites:
    """The installations, made when they are first asked for."""

    def __init__(self, sandbox: Client) -> None:
        self.sandbox = sandbox
        self._made: dict[str, Wrapped] = {}
        self._fresh: dict[str, float] = {}

    def get(self, name: str) -> Wrapped:
        """The installation with this name, with a live.json that counts."""
        if name not in self._made:
            self._made[name] = self._make(name)
            self._fresh[name] = time.monotonic()
        elif SITES[name].changes and time.monotonic() - self._fresh[name] > REFRESH:
            self._publish(name)
        return self._made[name]

    def _make(self, name: str) -> Wrapped:
        site = SITES[name]
        wait = QUICK if site.python else 15.0
        wrapped = Wrapped(self.sandbox, with_hints=site.hints, python=self._python(name, site.python), wait=wait)
        self._made[name] = wrapped
        self._publish(name)
        site.spoil(wrapped)
        return wrapped

    def _python(self, name: str, text: str) -> str:
        if not text:
            return PYTHON
        python = self.sandbox.root / f"python-{name.replace(' ', '-')}"
        python.write_text(text)
        python.chmod(0o755)
        return str(python)

    def _publish(self, name: str) -> None:
        site = SITES[name]
        up = {p: {"nodes": "", "default": p == "llm", "max_time": None, "state": "UP"} for p in ("llm", "small", "run")}
        self._made[name].publish(site.mode, bad=BAD, live_fields={"partitions": up}, **site.publish)
        self._fresh[name] = time.monotonic()
