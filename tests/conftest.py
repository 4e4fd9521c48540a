"""Fixtures for all tests."""

from collections.abc import Iterator

import pytest

from tests.sandbox import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A running Slurm of 16 nodes, shared by the whole session. Where Slurm can't be had the tests fail, never skip."""
    with Sandbox() as running:
        yield running
