"""Some hundred generated calls, each plain and through the wrapper: `python -m tests.fuzz` makes as many as one likes."""

import pytest

from tests.fuzz.__main__ import FIRST
from tests.fuzz.fuzz import Fuzz
from tests.sandbox import Sandbox

pytestmark = pytest.mark.integration
PAIRS, THREADS = 300, 3


def test_generated_calls_give_the_same_through_the_wrapper():
    with Sandbox(extra_conf=[FIRST]) as sandbox, Fuzz(sandbox) as fuzz:
        assert list(fuzz.run("ci", range(PAIRS), THREADS)) == []
        assert fuzz.jobs > PAIRS / 3 and fuzz.ours > PAIRS / 10, "most must really submit, or comparing them proves little"
