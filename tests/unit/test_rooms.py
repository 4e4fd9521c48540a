"""The map in CONTRIBUTING.md: each module has one room, and the text is what the code says."""

from collections import Counter

import pytest

from tests import rooms


@pytest.mark.parametrize("package", ["accounting", "slurm_hook"])
def test_each_module_has_one_room(package):
    there = {path.stem for path in (rooms.ROOT / package).glob("*.py")} - {"__init__"}
    told = Counter(name for folder, _, names in rooms.ROOMS if folder == package for name in names.split())
    assert told == Counter(there), "give each module its room in tests/rooms.py"


def test_map_is_up_to_date():
    text = rooms.TARGET.read_text(encoding="utf-8")
    assert rooms.written(text) == text, "run: python -m tests.rooms"
