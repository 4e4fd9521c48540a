"""Fixtures for all tests."""

from collections.abc import Iterator

import pytest

from tests.sandbox import Sandbox


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks, so that a bare pytest knows them too."""
    config.addinivalue_line("markers", "integration: needs a real Slurm (the sandbox)")


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A running Slurm of 16 nodes, shared by the whole session. Where Slurm can't be had the tests fail, never skip."""
    with Sandbox() as running:
        yield running
