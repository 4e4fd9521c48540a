"""What holds for every command: usage errors, expected faults without traceback, exit codes of the table, JSON that parses."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_hook.cli import group
from slurm_hook.common.errors import EXIT_CODES
from tests import history_made, manual

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
COMMANDS = dict(manual.commands())
LISTED = {code for code, _ in EXIT_CODES} | {0, 1, 2, 3}
# what a command needs on its command line to get as far as its input
ARGUMENTS = {
    "submit": ["/nonexistent/p.toml"], "explain": ["4711"], "plan": ["-N2", "x.sh"], "mark": ["n0001", "bad"],
    "import": ["/nonexistent/events.jsonl"], "dispatch": [], "collect": [], "backtest": [],
}  # fmt: skip


def run(config, *args, env=None, terminal=False):
    argv = [sys.executable, "-m", "slurm_hook.cli", "--config", str(config), *args]
    base = {"PATH": "/nonexistent", "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "HOME": "/root"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**base, **(env or {})}, cwd="/", check=False)


def settings(folder, **paths):
    path = folder / "w.toml"
    path.write_text(
        f"[history]\npath = '{paths.get('history', folder / 'none' / 'h.db')}'\n"
        f"[publish]\npath = '{folder}/public'\n[dispatch]\nstate = '{folder}/dispatch.json'\n"
    )
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    config = settings(folder, history=folder / "h.db")
    (folder / "public").mkdir()
    dump, nodes = history_made.write(folder, 30, 500, {2}, end=time.time())
    how = ["--delimiter", "\x1f", "--nodes", str(nodes), "--timezone", "UTC", "-M", "alpha"]
    assert run(config, "collect", "--file", str(dump), *how).returncode == 0
    assert run(config, "score").returncode == 0
    return config


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_wrong_usage_is_two_and_help_is_zero(name, tmp_path):
    config = settings(tmp_path)
    wrong = run(config, *name.split(), "--no-such-option-at-all")
    takes_all = COMMANDS[name].context_settings.get("ignore_unknown_options")
    assert (wrong.returncode == 2 or takes_all) and "Traceback" not in wrong.stderr, wrong
    shown = run(config, *name.split(), "--help")
    assert shown.returncode == 0 and f"Usage: workhorse {name}" in shown.stdout, shown.stderr
    assert "Example" in shown.stdout


@pytest.mark.parametrize("fault", ["nothing there", "damaged", "not ours"])
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_expected_faults_have_no_traceback_and_a_listed_code(name, fault, tmp_path):
    """No Slurm, no history, no scores; then garbage in their places; then files that may not be read."""
    history = tmp_path / "h.db"
    config = settings(tmp_path, **({} if fault == "nothing there" else {"history": history}))
    if fault != "nothing there":
        (tmp_path / "public").mkdir()
        for path in (history, tmp_path / "public/scores.json", tmp_path / "public/live.json", tmp_path / "dispatch.json"):
            path.write_bytes(b"\x00garbage\xff" * 500)
            path.chmod(0o600 if fault == "damaged" else 0o666)
    done = run(config, *name.split(), *ARGUMENTS.get(name, []))
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in LISTED, done
    if done.returncode not in (0,) and name != "doctor":
        assert done.stderr.strip(), "a failure says what and why"


WRONG = ("", "\x1b[2J\n'; DROP TABLE attempts; --", "-1", "9" * 40, "/nonexistent/x", "\udcff\u0663")


def value_options():
    """Each option with a value, and each argument, of each command."""
    for name, command in sorted(COMMANDS.items()):
        for param in command.params:
            if not getattr(param, "is_flag", False):
                yield pytest.param(name, param, id=f"{name} {param.opts[0]}")


@pytest.fixture
def inside(site, tmp_path, monkeypatch, capsys):
    """Call the command line in this process, without Slurm: exit code and what was said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")

    def call(words):
        with pytest.raises(SystemExit) as left:
            group.main(["--config", str(site), *words])
        return left.value.code, "".join(capsys.readouterr())

    return call


@pytest.mark.parametrize(("name", "param"), list(value_options()))
def test_wrong_values_have_no_traceback_and_a_listed_code(name, param, inside):
    """Anything that isn't ours raises here as it stands; what is said of it can't move a terminal's cursor."""
    needed = ARGUMENTS.get(name, [])
    for value in WRONG:
        words = [param.opts[0], value, *needed] if param.opts[0].startswith("-") else ["--", *[value] * max(len(needed), 1)]
        code, said = inside([*name.split(), *words])
        assert code in LISTED and "\x1b" not in said, (words, code, said)
        assert code in (0, 3) or name == "doctor" or said.strip(), "a failure says what and why"


JSON = {
    "nodes": [["--json"], ["-w", "n[0001-0003]", "--long", "--json"]], "score": [["--json", "--dry-run"]],
    "explain": [["--json", "1"]], "report": [["--json", "-o", "{}/r.html"]], "mark": [["--json", "--list"]],
    "import": [["--json", "{}/events"]], "submit": [["--json", "-n", "{}/p.toml"]],
    "metrics": [["--json"], ["--json", "-o", "{}"]], "hints": [["--json"], ["--json", "-o", "{}"]],
    "dispatch": [["--json"], ["--json", "--release"]],
}  # fmt: skip
SILENT = ("collect", "refresh", "dispatch", "queue", "effect", "plan", "explain")  # without Slurm, or of a job that ended well


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_prints_json(name, site, tmp_path):
    (tmp_path / "events").write_text('{"node": "n0001", "time": 1000, "kind": "xid", "source": "h"}\n')
    (tmp_path / "p.toml").write_text('[stage.a]\nscript = "events"\n')
    config = tmp_path / site.name  # what switches us off lies beside the settings
    config.write_text(site.read_text())
    for words in JSON.get(name, [["--json"]]):
        done = run(config, *name.split(), *[word.format(tmp_path) for word in words])
        assert "Traceback" not in done.stderr
        assert done.stdout.strip() or name in SILENT, done
        if done.stdout.strip():
            json.loads(done.stdout)


@pytest.mark.parametrize("words", [["nodes"], ["doctor"], ["score", "--dry-run"]])
def test_no_colours_without_a_terminal_or_where_nobody_wants_them(words, site):
    for env in ({}, {"NO_COLOR": "1"}):
        assert "\x1b" not in run(site, *words, env=env).stdout
    shown = in_terminal(site, words, {"NO_COLOR": "1", "TERM": "xterm-256color"})
    assert "\x1b[3" not in shown and "\x1b[9" not in shown, "a colour in spite of NO_COLOR"


def in_terminal(config, words, env):
    """Output on a pseudo-terminal."""
    import pty

    parent, child = pty.openpty()
    argv = [sys.executable, "-m", "slurm_hook.cli", "--config", str(config), *words]
    base = {"PATH": "/nonexistent", "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "HOME": "/root", "COLUMNS": "150"}
    process = subprocess.Popen(argv, stdin=child, stdout=child, stderr=child, env={**base, **env}, cwd="/")
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    process.wait(timeout=60)
    os.close(parent)
    return shown.decode(errors="replace")


# everything that takes its time on a large history, and a word of its progress
TAKES_TIME = [
    (["report", "-o", "{}/r.html"], "report: drawing"), (["score"], "score: publishing"), (["lemons"], "lemons: scoring"),
    (["score", "--dry-run"], "score: reading the history"),
    (["backtest", "--train", "40d", "--test", "19d"], "backtest: intervals"),
    (["collect", "--db", "{}/new.db", "--delimiter", "\x1f", "--timezone", "UTC", "--file", "{site}/jobs.dump"], "dump: "),
    (["import", "{}/events"], "import: "), (["nodes", "-w", "n0001", "--long"], "nodes: scoring"), (["doctor"], "doctor"),
    (["db", "vacuum"], "vacuum: giving space back"), (["explain", "1"], "explain: scoring"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), TAKES_TIME, ids=[" ".join(words[:2]) for words, _ in TAKES_TIME])
def test_progress_is_for_terminals(site, tmp_path, words, said):
    (tmp_path / "events").write_text('{"node": "n0001", "time": 1000, "kind": "xid", "source": "h"}\n')
    argv = [word.format(tmp_path, site=site.parent) for word in words]
    assert said in in_terminal(site, argv, {"TERM": "xterm"})
    for path in tmp_path.glob("new.db*"):
        path.unlink()
    silent = run(site, *argv)
    assert said not in silent.stderr + silent.stdout and "\x1b" not in silent.stderr


def test_commands_that_texts_name_exist():
    """Documents, rules, units and messages name commands: each is one, with the options that stand beside it."""
    known = dict(manual.commands())
    texts = [*ROOT.glob("etc/**/*.md"), *ROOT.glob("etc/**/*.yml"), *ROOT.glob("etc/systemd/*"), ROOT / "README.md",
             *ROOT.glob("accounting/*.py"), *ROOT.glob("slurm_hook/*.py")]  # fmt: skip
    named = 0
    for path in texts:
        for words in re.findall(r"[`/]workhorse ((?:[a-z]+)(?: [a-z]+)?(?: --?[a-z-]+)*)", path.read_text(encoding="utf-8")):
            parts = words.split()
            name = next((n for n in (" ".join(parts[:2]), parts[0]) if n in known), None)
            assert name, f"{path.name}: there is no `workhorse {words}`"
            options = {option for param in known[name].params for option in (*param.opts, *param.secondary_opts)}
            given = {part for part in parts if part.startswith("-")}
            assert given <= options, f"{path.name}: `workhorse {words}`: no option {given - options}"
            named += 1
    assert named > 30
