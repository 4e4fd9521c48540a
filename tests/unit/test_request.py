"""sbatch's print-out of its options, read back."""

from pathlib import Path

import pytest

from slurm_hook.common.errors import RequestError
from slurm_hook.slurm import request, sbatch_options
from slurm_hook.submit import batch_script


def block(*pairs: str) -> str:
    lines = [f"sbatch: {key:<20}: {value}" for key, value in (pair.split("=", 1) for pair in pairs)]
    return "\n".join([request.OPENING, request.RULE, *lines, request.RULE, request.CLOSING, ""])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (0, 0, ())),
        ("4", (4, 4, ())),
        ("2-4", (2, 4, ())),
        ("2-8:2", (2, 8, (2, 4, 6, 8))),
        ("1,4,6-8", (1, 8, (1, 4, 6, 7, 8))),
        ("1024", (1024, 1024, ())),
    ],
)
def test_node_counts(text, expected):
    assert request.parse_nodes(text) == expected


@pytest.mark.parametrize("text", ["x", "2-", "-4", "4-2x", "1e3", "２", "", "1-99999999"])
def test_bad_node_counts_are_refused(text):
    if text in ("", "2-"):
        assert request.parse_nodes(text)[0] in (0, 2)
    elif text == "1-99999999":
        assert request.parse_nodes(text) == (1, 99999999, ())
    else:
        with pytest.raises(RequestError):
            request.parse_nodes(text)


@pytest.mark.parametrize(
    ("text", "mib"),
    [("8G", 8192), ("1000", 1000), ("0?", 0), ("1", 1), ("500M", 500), ("1024K", 1), ("0", 0)],
)
def test_memory(text, mib):
    assert request.parse_memory(text) == mib


@pytest.mark.parametrize("text", ["G", "x8", "8GB", "-1", "nan", "1.2.3", "٣", "1000000P"])
def test_bad_memory_is_refused(text):
    with pytest.raises(RequestError):
        request.parse_memory(text)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("01:00:00", 60), ("1-02:04:00", 1564), ("00:07:00", 7), ("UNLIMITED", None), ("", None), ("2-00:00:00", 2880), ("90", 90)],
)
def test_time_limits(text, minutes):
    assert request.parse_minutes(text) == minutes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gres:gpu:4", (4, "")),
        ("gres/gpu:8", (8, "")),
        ("gpu:a100:2", (2, "a100")),
        ("gpu", (1, "")),
        ("gres:gpu", (1, "")),
        ("none", (0, "")),
        ("gres:gpu:a100:2,gres:gpu:a100:1", (3, "a100")),
        ("", (0, "")),
    ],
)
def test_gres(text, expected):
    assert request.parse_gres(text) == expected


@pytest.mark.parametrize("text", ["gres:lustre:1", "gpu:a100:2,gpu:v100:1", "gpu:x:y"])
def test_gres_that_placement_does_not_know_is_refused(text):
    with pytest.raises(RequestError):
        request.parse_gres(text)


@pytest.mark.parametrize(
    "text", ["gpu[01, 02]", "gpu[ 01]", "gpu01\ngpu02", "gpu01\n", "gpu[01-", "gpu]01[", "gpu[0-65536]", "gpu01,gpu[02"]
)
def test_excludes_that_slurm_reads_otherwise_are_refused(text):
    """Written anew they would make a job of what sbatch refuses."""
    with pytest.raises(RequestError, match="exclude"):
        request.request_from({"exclude": text})


@pytest.mark.parametrize(
    "text", ["gpu01,,gpu[02-03],", "gpu[01-02], gpu03", " gpu[1-3]", "gpu01 gpu02\tgpu03 ", "gpu[01-02] , gpu03"]
)
def test_other_spellings_of_excludes(text):
    assert len(request.request_from({"exclude": text}).exclude) == 3


def test_blocks_of_a_het_job():
    text = "sbatch: error: something first\n" + block("job-name=a", "nodes=1") + "sbatch: plugin loaded\n" + block("nodes=2")
    assert request.parse_blocks(text) == [{"job-name": "a", "nodes": "1"}, {"nodes": "2"}]
    assert request.complete_blocks(text) == 2


def test_an_unfinished_block_is_no_block():
    text = block("nodes=2")
    for end in range(len(text) - 1):
        assert request.complete_blocks(text[:end]) == 0
        assert request.parse_blocks(text[:end]) == [] or end >= len(text) - 1


@pytest.mark.parametrize("name", ["two\nlines", "na me : x\nnl", "x\n\ny", "a\nb: c"])
def test_line_breaks_in_values_stay_in_them(name):
    assert request.parse_blocks(block(f"job-name={name}", "nodes=2")) == [{"job-name": name, "nodes": "2"}]


@pytest.mark.parametrize("forged", ["nodes               : 1", "account             : x", "job-name            : y"])
def test_a_forged_option_in_a_value_is_seen(forged):
    text = block(f"job-name=x\nsbatch: {forged}", "nodes=4")
    with pytest.raises(RequestError):
        request.parse_blocks(text)


def test_recorded_print_outs_of_three_versions():
    folder = Path(__file__).parents[1] / "data" / "sbatch_options"
    seen = 0
    for path in sorted(folder.glob("*/*.txt")):
        for options_ in request.parse_blocks(path.read_text()):
            try:
                request.request_from(options_)
            except RequestError as err:
                assert "several GPU types" in str(err) or "GRES" in str(err), path
            seen += 1
    assert seen > 60


@pytest.mark.parametrize(
    ("argv", "script", "insert", "sets"),
    [
        (["job.sh"], 0, 0, set()),
        (["-N4", "job.sh", "-x", "n1"], 1, 1, {"nodes"}),
        (["-N", "4", "job.sh"], 2, 2, {"nodes"}),
        (["--nodes", "4", "job.sh"], 2, 2, {"nodes"}),
        (["--exclud", "n1", "job.sh"], 2, 2, {"exclude"}),
        (["--exclusive", "job.sh"], 1, 1, {"exclusive"}),
        (["--exclusive=user", "job.sh"], 1, 1, {"exclusive"}),
        (["-HN4", "-vvQ", "job.sh"], 2, 2, {"H", "nodes", "v", "Q"}),
        (["-HN", "4", "job.sh"], 2, 2, {"H", "nodes"}),
        (["-N1", "--", "job.sh", "-x", "n1"], 2, 1, {"nodes"}),
        (["--wrap", "hostname", "-x", "n1"], 4, 4, {"wrap", "exclude"}),
        (["-xn1", "-wn[2-3]"], 2, 2, {"exclude", "nodelist"}),
        (["-"], 0, 0, set()),
        ([], 0, 0, set()),
    ],
)
def test_where_the_script_stands(argv, script, insert, sets):
    found = sbatch_options.read(argv)
    assert (found.script, found.insert, set(found.sets), found.known) == (script, insert, sets, True)


@pytest.mark.parametrize(
    ("argv", "quiet"),
    [
        (["-Q", "-N4", "--quiet", "job.sh", "-Q"], (0, 2)), (["-QQ", "job.sh"], (0,)), (["--qui", "--wrap", "--quiet"], (0,)),
        (["-J", "-Q", "job.sh"], ()), (["-QN4", "job.sh"], (0,)), (["-JQ", "job.sh"], ()), (["-", "-Q"], ()),
    ],
)  # fmt: skip
def test_words_that_say_quiet(argv, quiet):
    assert sbatch_options.read(argv).quiet == quiet


def test_components_and_unknown_options():
    assert sbatch_options.read(["-N1", ":", "-N2", "--wrap=x"]).components == 2
    assert not sbatch_options.read(["--node=2", "job.sh"]).known
    assert not sbatch_options.read(["--environment", "x", "job.sh"]).known
    assert sbatch_options.read(["job.sh", ":"]).components == 1


@pytest.mark.parametrize(
    ("argv", "left"),
    [
        (["-Q", "-N4", "job.sh", "-Q"], ["-N4", "job.sh", "-Q"]),
        (["--quiet", "job.sh"], ["job.sh"]),
        (["--qui", "job.sh"], ["job.sh"]),
        (["-HQN2", "job.sh"], ["-HN2", "job.sh"]),
        (["-QN", "2", "job.sh"], ["-N", "2", "job.sh"]),
        (["-QQ", "-J", "-Q", "job.sh"], ["-J", "-Q", "job.sh"]),  # the last one is a job's name
        (["-JQ", "-qQ", "job.sh"], ["-JQ", "-qQ", "job.sh"]),
        (["-Q", "--environment", "x", "job.sh"], ["-Q", "--environment", "x", "job.sh"]),  # not understood
        (["-N1", "-Q", ":", "-QN2", "--wrap=x"], ["-N1", ":", "-N2", "--wrap=x"]),
    ],
)
def test_quiet_is_left_out_where_sbatch_is_asked_for_its_options(argv, left):
    assert sbatch_options.without_quiet(argv, sbatch_options.read(argv)) == left


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("#SBATCH hetjob", 2), ("#SBATCH\tpackjob -N1", 2), ("#SBATCHhetjob", 2), ("#SLURM hetjob", 2), ("#SLURMpackjob", 2),
        ("#SBATCH -J hetjob", 1), ("# SBATCH hetjob", 1), (" #SBATCH hetjob", 1), ("#SLURMhet", 1), ("true\n#SLURM hetjob", 1),
    ],
)  # fmt: skip
def test_components_of_a_script(line, count):
    """As sbatch counts them: a component that is missed would share the pool of the first."""
    assert batch_script.components(f"#!/bin/sh\n#SBATCH -N2\n{line}\n#SBATCH -N1\ntrue\n".encode()) == count


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ("#SBATCH -N4\n#SBATCH -Q\n", "#SBATCH -N4\n#\n"), ("#SBATCH --quiet -Q\r\n# why\n\n#SLURM -Q\n", "#\n# why\n\n#\n"),
        ("#SBATCH -J -Q\n", "#SBATCH -J -Q\n"), ("#SBATCH -N4 -Q\n", "#SBATCH -N4 -Q\n"), ("#SBATCH\n", "#SBATCH\n"),
        ("#SBATCH -J 'a\n#SBATCH -Q'\n", "#SBATCH -J 'a\n#SBATCH -Q'\n"), (" #SBATCH -Q\n", " #SBATCH -Q\n"),
        ("true\n#SBATCH -Q\n", "true\n#SBATCH -Q\n"), ("#SBATCHES -Q\n", "#SBATCHES -Q\n"),
        ("#SBATCH-Q\n", "#\n"), ("#SBATCH -Q\n" + "# long\n" * 10000, "#SBATCH -Q\n" + "# long\n" * 10000),
    ],
)  # fmt: skip
def test_directives_that_only_say_quiet(lines, left):
    script = f"#!/bin/sh\n{lines}true\n"
    assert sbatch_options.aloud(script.encode()).decode() == f"#!/bin/sh\n{left}true\n"


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["-w", "/f", "-N2"], ["/f"]), (["-x/f"], ["/f"]), (["-HF", "/f"], ["/f"]), (["-QHw/f"], ["/f"]), (["-N2x", "/f"], []),
        (["--nodelist=/f"], ["/f"]), (["--nodel", "/f"], ["/f"]), (["--nodef=/f"], ["/f"]), (["--exclud", "/f"], ["/f"]),
        (["--bbf", "/f"], ["/f"]), (["--export-f=9"], ["9"]), (["--export=/f", "-o", "/f", "-D/f", "--wrap=/f"], []),
        (["--newer=/f"], ["/f"]), (["--newer", "/f"], ["/f"]), (["-Y", "/f"], ["/f"]), (["-HY/f"], ["/f"]), (["--exc"], [""]),
        (["-N1", ":", "-w", "/f"], ["/f"]), (["--", "-", ""], []), (["-w"], [""]),
    ],
)  # fmt: skip
def test_values_that_may_name_a_file_that_sbatch_reads(words, files):
    assert sbatch_options.files(words) == files


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("#SBATCH -w /f -N2", ["-w", "/f", "-N2"]), ("#SBATCH-w/f", ["-w/f"]), ("#SLURM\t-w\t/f\r", ["-w", "/f"]),
        ("#SBATCH -w '/a b' -x\"/c d\"", ["-w", "/a b", "-x/c d"]), ("#SBATCH -x a\\ b", ["-x", "a", "b"]),
        ("#SBATCH -J a\\\"b \"c\\\"d 'e\"", ["-J", 'a"b', "c\"d 'e"]), ("#SBATCH -w /f # -x /g", ["-w", "/f"]),
        ("#SBATCH -J a#b -w /f", ["-J", "a"]), (" #SBATCH -w /f", []), ("##SBATCH -w /f", []), ("true\n#SBATCH -w /f", []),
        ("\n  # x\n#SBATCH -w /f", ["-w", "/f"]), ("#SBATCH", []),
    ],
)  # fmt: skip
def test_words_of_directives(line, words):
    """As sbatch 22.05 to 26.05 part them."""
    assert sbatch_options.directives(f"#!/bin/sh\n{line}\n".encode()) == words
