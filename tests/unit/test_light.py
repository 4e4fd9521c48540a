"""Records without dataclasses, and JSON without the json package: they give what the standard library's give."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.common.record import Record, json_dumps, json_loads

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)


@given(values, st.sampled_from(["", " ", "\n\t"]))
def test_same_as_json(value, blank):
    assert json_loads(blank + json.dumps(value) + blank) == value


@pytest.mark.parametrize("text", ["", " ", "{", "[1,]", "nul", "{}x", "[1] [2]", '"a', '"\n"', "'a'", "{a:1}"])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        json_loads(text)


@given(values.filter(lambda value: "Infinity" not in json.dumps(value)))
def test_json_is_written_as_the_standard_library_reads_it(value):
    assert json.loads(json_dumps(value)) == value


def made():
    class Point(Record):
        x: int
        y: int = 2
        z: tuple = ()

    return Point


@pytest.mark.parametrize("times", [1, 100], ids=["few", "many"])
def test_records_are_made_alike_however_many_there_are(times):
    point = made()
    for _ in range(times):
        assert point(1) == point(x=1) == point(1, 2) == point(1, y=2, z=()) == point(z=(), x=1) == (1, 2, ())
        assert point(1, 5, (3,)) == (1, 5, (3,)) and type(point(4)) is point and point(4).x == 4


@pytest.mark.parametrize("times", [1, 100], ids=["few", "many"])
@pytest.mark.parametrize(
    ("given", "named"), [((), {}), ((), {"y": 1}), ((1, 2, (), 4), {}), ((1,), {"x": 1}), ((1,), {"w": 1})], ids=str
)
def test_a_record_of_other_fields_is_a_type_error(times, given, named):
    point = made()
    for _ in range(times):
        with pytest.raises(TypeError):
            point(*given, **named)
        point(1)
