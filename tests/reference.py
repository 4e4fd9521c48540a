"""What is written from the code: etc/workhorse.toml, the settings table, the command reference and the man page.

`python -m tests.reference` writes them, `--check` (and a test) tells which of them the code has left behind.
README.md and etc/doc take part with what stands between `<!-- settings -->` and `<!-- /settings -->`; likewise the other
names of `parts`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_hook.common.config import SETTINGS, Setting
from slurm_hook.common.errors import EXIT_CODES
from slurm_hook.decision import directives

ROOT = Path(__file__).resolve().parent.parent
# those that most sites look at; README lists them
MAIN = ("steer.mode", "steer.max_excluded", "steer.control_share", "steer.sacrifice", "match.min_nodes", "match.partitions",
        "match.name", "history.path", "publish.path", "publish.metrics", "dispatch.reorder", "dispatch.requeue")  # fmt: skip
TOML_HEAD = """\
# Settings of workhorse. Every setting stands here with its default, commented out: take the '#' away to change one.
# `workhorse doctor --check settings` tells of mistakes. A change counts from the next collect on (every 5 minutes).
"""


def toml_value(value: Any) -> str:
    """A default as TOML. Raises TypeError for what the settings table has no use for."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + " }" if value else "{}"
    raise TypeError(f"{value!r} has no TOML form")


def _toml_string(text: str) -> str:
    if "\\" in text and "'" not in text and "\n" not in text:
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_string(key)


def _limits(setting: Setting) -> str:
    """What values are allowed, in words; empty where anything of the type is."""
    if setting.choices:
        return " | ".join(setting.choices)
    if setting.low is not None and setting.high is not None:
        return f"{setting.low:g} … {setting.high:g}"
    if setting.low is not None:
        return f"at least {setting.low:g}"
    return f"at most {setting.high:g}" if setting.high is not None else ""


def settings_toml() -> str:
    """etc/workhorse.toml: all settings, commented with their defaults."""
    lines, section = [TOML_HEAD], ""
    for setting in SETTINGS:
        if setting.section != section:
            section = setting.section
            lines.append(f"\n[{section}]\n")
        limits = _limits(setting)
        lines.append(f"# {setting.help}" + (f" ({limits})" if limits else "") + "\n")
        lines.append(f"#{setting.name} = {toml_value(setting.default)}\n")
    return "".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def settings_table(keys: Sequence[str] = ()) -> str:
    """The settings as a Markdown table: all, or those named."""
    rows = ["| setting | default | allowed | what |", "|---|---|---|---|"]
    for s in [setting for setting in SETTINGS if not keys or setting.key in keys]:
        allowed = _limits(s) or s.type.__name__
        rows.append(f"| `{s.key}` | `{_cell(toml_value(s.default))}` | {_cell(allowed)} | {_cell(s.help)} |")
    return "\n".join(rows) + "\n"


def ours_table() -> str:
    """Which jobs are ours and what a user can say of them: the [match] rules and the #WORKHORSE directives in one table."""
    rows = ["| rule or directive | as | what |", "|---|---|---|"]
    for s in SETTINGS:
        if s.section == "match":
            value = toml_value(s.default)
            rows.append(f"| `[match] {s.name}` | {s.type.__name__}, default `{_cell(value)}` | {_cell(s.help)} |")
    rows.append("| a mark `wh=1;…` that asks | the job's Comment | written by `workhorse submit`: such a job is ours |")
    rows += [f"| `#WORKHORSE {key}=…` | {_cell(form)} | {_cell(what)} |" for key, form, what in directives.KEYS]
    return "\n".join(rows) + "\n"


def exit_codes_table() -> str:
    """The exit codes as a Markdown table."""
    return "\n".join(["| code | meaning |", "|---|---|", *(f"| {code} | {_cell(text)} |" for code, text in EXIT_CODES)]) + "\n"


def parts() -> dict[str, str]:
    """README's generated parts by the name of their markers."""
    from tests import manual

    return {
        "settings": settings_table(),
        "main-settings": settings_table(MAIN),
        "command-list": manual.command_list(),
        "exit-codes": exit_codes_table(),
        "ours": ours_table(),
        "commands": manual.markdown(),
    }


def fill_markers(text: str) -> str:
    """Text with what stands between markers written anew; markers of other names are left alone."""
    bodies = parts()

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- {name} -->\n{bodies[name]}<!-- /{name} -->" if name in bodies else match[0]

    return re.sub(r"<!-- ([a-z-]+) -->\n.*?<!-- /\1 -->", fill, text, flags=re.DOTALL)


def documents(root: Path = ROOT) -> dict[Path, str]:
    """Every generated file with the text that the code asks for now."""
    from tests import manual

    found = {root / "etc/workhorse.toml": settings_toml(), root / "etc/man/workhorse.1": manual.man_page()}
    for path in (root / "README.md", *sorted((root / "etc/doc").glob("*.md"))):
        if path.exists():
            found[path] = fill_markers(path.read_text(encoding="utf-8"))
    return found


def stale(root: Path = ROOT) -> list[Path]:
    """Generated files that don't say what the code says."""
    return [path for path, text in documents(root).items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main(argv: list[str]) -> int:
    """Write what is stale, or with --check only name it (exit code 1)."""
    behind = stale()
    for path in behind:
        if "--check" in argv:
            print(f"{path.relative_to(ROOT)}: left behind by the code; run python -m tests.reference", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(documents()[path], encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: written")
    return 1 if behind and "--check" in argv else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
