"""Node lists against what real `scontrol show hostnames` and `hostlist` made of the same text."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.common.errors import HostlistError
from slurm_hook.common.hostlist import MAX_HOSTS, expand, fold, split

DATA = Path(__file__).resolve().parents[1] / "data" / "hostlist_vectors.jsonl"
VECTORS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
# scontrol prints nothing or half a name for these and still exits 0; 24.11 takes text after a bracket, which we expand
LENIENT = {"a-[01-4]-b", "n[1-2]-ib", "n[1-2].x.y", "a[ 1-2 ]", "a[1, 2]"}
GOOD = [v for v in VECTORS if v["rc"] == 0 and v["names"] and "..." not in v["names"] and v["input"] not in LENIENT]
BROKEN = [v for v in VECTORS if v["input"] not in LENIENT and (not v["names"] or v["names"][-1].endswith("]"))]


@pytest.mark.parametrize("vector", [v for v in GOOD if v not in BROKEN and "18446744073709551615" not in v["input"]],
                         ids=lambda v: repr(v["input"][:40]))  # fmt: skip
def test_expand_as_slurm_does(vector):
    names = expand(vector["input"])
    assert names == vector["names"]
    assert sorted(expand(fold(names))) == sorted(set(names))


@pytest.mark.parametrize("vector", [v for v in BROKEN if v["input"].strip(", ")], ids=lambda v: repr(v["input"][:40]))
def test_what_slurm_cannot_expand_is_an_error(vector):
    with pytest.raises(HostlistError) as caught:
        expand(vector["input"])
    assert "node list" in str(caught.value)


def test_size_is_bounded():
    assert len(expand(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS
    for text in (f"n[0-{MAX_HOSTS}]", "n[0-99999][0-9]", "a[1-65536],b", "a[1-40000],b[1-40000]"):
        with pytest.raises(HostlistError):
            expand(text)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["n1", "n01", "n001"], "n001,n01,n1"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["n09", "n10", "n11"], "n[09-11]"),
        (["n1", "n2", "n2", "n4"], "n[1-2,4]"),
        (["login", "gpu1-ib", "gpu2-ib"], "gpu1-ib,gpu2-ib,login"),
        (["r1b1", "r1b2", "r2b1"], "r1b[1-2],r2b1"),
        ([], ""),
        (["7", "8"], "7,8"),
    ],
)
def test_fold(names, folded):
    assert fold(names) == folded


@given(st.lists(st.from_regex(r"\A[a-z]{1,3}[0-9]{0,4}(-[a-z])?\Z"), max_size=60))
def test_fold_loses_and_invents_nothing(names):
    assert sorted(expand(fold(names))) == sorted(set(names))


@given(st.text(alphabet="an0123[],- ", max_size=25))
def test_any_text_expands_or_says_why(text):
    try:
        assert all(isinstance(name, str) and name for name in expand(text))
    except HostlistError as err:
        assert str(err).startswith("node list")


@pytest.mark.parametrize(("text", "items"), [
    ("a,b[1,3]c[2-3],d", ["a", "b[1,3]c[2-3]", "d"]), ("a\nb[1,3]\nc", ["a", "b[1,3]", "c"]),
    (" a \t, b[1, 2] c", ["a", "b[1, 2]", "c"]),
    ("a b[1-2]c d e", ["a", "b[1-2]c", "d", "e"]), ("a, ,b", ["a", "b"]), ("\n", []),
])  # fmt: skip
def test_split_at_commas_and_blanks_outside_brackets(text, items):
    assert split(text) == items


MONSTERS = [
    "a[1-65535][1-65535]", "a[" + ",".join(["1-65535"] * 120) + "]", "a[1-9][1-65535][1-9]",
    "a" + "[0]" * 320 + "[0-65535]", "a" * 60_000 + "[0-65535]", "a[" + "0" * 60_000 + "-9]", "[" * 60_000, "a[1-2]" * 10_000,
    "a[1-3]," * 10_000 + "b" * 60_000 + "[1-65535]",
]  # fmt: skip


@pytest.mark.parametrize("text", MONSTERS, ids=lambda text: f"{text[:12]}{len(text)}")
def test_a_short_text_that_means_billions_is_refused_before_any_name_is_made(text):
    """Anyone can write such a list into the mark of a job, which dispatch reads."""
    tracemalloc.start()
    with pytest.raises(HostlistError) as caught:
        expand(text)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(str(caught.value)) < 300 and most < 40 * len(text) + 100_000


@pytest.mark.parametrize(("text", "most", "fits"), [
    ("a[1-4]", 4, True), ("a[1-4]", 3, False), ("a,b,c", 3, True), ("a,b,c", 2, False), ("a[1-2],b[1-2][1-2]", 6, True),
    ("a[1-2],b[1-2][1-2]", 5, False), ("", 0, True), ("a", 0, False),
])  # fmt: skip
def test_a_list_may_be_held_to_fewer_names(text, most, fits):
    if fits:
        assert len(expand(text, most)) <= most
    else:
        with pytest.raises(HostlistError):
            expand(text, most)
