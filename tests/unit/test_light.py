"""JSON without the json package gives what json gives."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.light import json_dumps, json_loads

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
