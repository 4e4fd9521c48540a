"""Fixtures for all tests."""

import signal
from collections.abc import Iterator

import pytest

from tests.sandbox import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A running Slurm of 16 nodes, shared by the whole session. Where Slurm can't be had the tests fail, never skip."""
    # A SIGTERM shall end pytest as Ctrl-C does: it takes a SystemExit for a failed test and goes on.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Sandbox() as running:
            yield running
    finally:
        signal.signal(signal.SIGTERM, before)
