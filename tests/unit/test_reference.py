"""What is generated agrees with the code, and what the settings file says is what the code reads."""

import re
from pathlib import Path

import click
import pytest
import tomllib
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.cli import group
from slurm_hook.common import config
from slurm_hook.decision import directives
from tests import manual, reference

ROOT = Path(__file__).resolve().parents[2]


def test_stale_parts_are_found(tmp_path):
    (tmp_path / "etc/man").mkdir(parents=True)
    (tmp_path / "etc/workhorse.toml").write_text(reference.settings_toml())
    (tmp_path / "etc/man/workhorse.1").write_text(manual.man_page())
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- settings -->\nLEFT-BEHIND\n<!-- /settings -->\nafter <!-- other --> x <!-- /other -->\n")
    assert reference.stale(tmp_path) == [readme]
    readme.write_text(reference.fill_markers(readme.read_text()))
    assert reference.stale(tmp_path) == []
    text = readme.read_text()
    assert text.startswith("before\n") and "LEFT-BEHIND" not in text and "<!-- other --> x" in text
    assert all(f"`{s.key}`" in text for s in config.SETTINGS)


def test_settings_file_holds_every_default(tmp_path):
    """With the '#' taken off, the file says exactly the defaults; as it stands, it changes nothing."""
    text = (ROOT / "etc/workhorse.toml").read_text()
    assert set(tomllib.loads(text)) == {s.section for s in config.SETTINGS}
    assert not any(tomllib.loads(text).values()), "a setting isn't commented out"
    bare = "\n".join(line.removeprefix("#") if not line.startswith("# ") else "" for line in text.splitlines())
    path = tmp_path / "w.toml"
    path.write_text(bare)
    loaded = config.load(str(path))
    assert {s.key: loaded[s.key] for s in config.SETTINGS} == {s.key: s.default for s in config.SETTINGS}
    flat = {f"{section}.{name}" for section, table in tomllib.loads(bare).items() for name in table}
    assert {s.key for s in config.SETTINGS} <= flat | {s.key for s in config.SETTINGS if isinstance(s.default, dict)}


@given(st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs"]) | st.sampled_from("\n\t")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab-.\"'\\ ", max_size=5), inner, max_size=3),
    max_leaves=6,
))  # fmt: skip
def test_toml_values_come_back(value):
    assert tomllib.loads(f"x = {reference.toml_value(value)}")["x"] == value


def test_values_without_toml_form_are_refused():
    with pytest.raises(TypeError, match="no TOML form"):
        reference.toml_value(None)


def test_examples_are_found_in_the_help():
    @click.command()
    def collect():
        """Read accounting.

        \b
        Examples:
          workhorse collect -S now-7days
          workhorse collect --db 'a b.db'
        """

    assert manual.examples(collect) == ["workhorse collect -S now-7days", "workhorse collect --db 'a b.db'"]
    assert manual._prose(collect) == ["Read accounting."]


def test_a_table_in_the_help_stays_one():
    line = "workhorse mark NODE bad           known to be bad"
    assert line in manual.markdown().split("```text")[1].split("```")[0]
    assert line in manual.man_page() and ".nf\nworkhorse mark NODE repaired " in manual.man_page()


def test_man_page_is_plain_roff():
    page = manual.man_page()
    assert page.startswith(".TH WORKHORSE 1 ")
    for line in page.splitlines():
        assert not line.startswith("'"), line
        assert not line.startswith(".") or re.match(r"\.(TH|SH|SS|TP|PP|B|RS|RE|nf|fi)\b", line), line
    assert manual._roff(".x\\y -z") == "\\&.x\\ey \\-z"


def test_each_match_rule_and_directive_stands_in_one_table():
    rows = [row.split("|")[1].strip(" `") for row in reference.ours_table().splitlines()[2:]]
    rules = [f"[match] {s.name}" for s in config.SETTINGS if s.section == "match"]
    told = [f"#WORKHORSE {key}=…" for key, _, _ in directives.KEYS]
    assert set(rules) | set(told) <= set(rows)
    assert {key for key, _, _ in directives.KEYS} == {"stage", "pipeline", "demand", "checkpoint", "steer"}
    assert reference.ours_table() in (reference.ROOT / "README.md").read_text(encoding="utf-8")


README = (reference.ROOT / "README.md").read_text(encoding="utf-8")


def test_help_lists_every_command_with_a_whole_line_for_it():
    done = CliRunner().invoke(group.workhorse, ["--help"], terminal_width=80)
    assert done.exit_code == 0 and "..." not in done.output.partition("\n")[2]
    for name, text in group.IN_A_LINE.items():
        assert re.search(rf"^  {name} +{re.escape(text)}$", done.output, re.MULTILINE), name
        assert f"| `workhorse {manual.NAMED.get(name, name)}` | {text} |" in README


def test_readme_names_defaults_as_they_are():
    numbers = {name: f"{config.Settings()[name]:g}" for name in ("scoring.half_life_days",)}
    assert f"half-life of {numbers['scoring.half_life_days']} days" in README
    assert "mode `observe`" in README and config.Settings()["steer.mode"] == "observe"
    assert config.Settings()["steer.sacrifice"] is False and "as delivered" in README


def test_readme_and_results_hold_the_same_numbers():
    """What README says of the scores stands in the full tables, which the bench prints."""
    section = README.split("\n## How good the scores are\n")[1].split("\n## ")[0]
    results = (reference.ROOT / "etc/doc/results.md").read_text(encoding="utf-8")
    told = re.findall(r"[-+]?[\d.]+ ?%? \[[^\]]+\]", section)
    known = {re.sub(r"\s", "", one).replace("%", "") for one in re.findall(r"[-+]?[\d.]+%? \[[^\]]+\]", results)}
    as_share = {f"{float(a) / 100:.2f}[{float(b) / 100:.2f},{float(c) / 100:.2f}]": one for one in told
                for a, b, c in re.findall(r"^([\d.]+) % \[([\d.]+) %, ([\d.]+) %\]$", one)}  # fmt: skip
    shares = {one: key for key, one in as_share.items()}
    unknown = [one for one in told if re.sub(r"[\s%]", "", one) not in known and shares.get(one) not in known]
    assert len(told) >= 12 and unknown == []


def test_lines_that_are_to_stay_as_they_are_do():
    page, manual_page = manual.markdown(), manual.man_page()
    line = "\nworkhorse mark NODE bad           known to be bad"
    assert line in page and line in manual_page and "\x08" not in page + manual_page
