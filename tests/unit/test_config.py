"""The settings table: defaults pass their own checks, wrong input is told with the mend."""

import re
from pathlib import Path

import pytest

from slurm_hook.common import config
from slurm_hook.common.config import SETTINGS, Settings
from slurm_hook.common.errors import ConfigError


def test_every_default_is_valid_and_reachable():
    settings = Settings({s.key: s.default for s in SETTINGS})
    for setting in SETTINGS:
        assert settings[setting.key] == setting.default
        assert getattr(getattr(settings, setting.section), setting.name) == setting.default
        assert setting.help
    assert len({s.key for s in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[steer]\nmodus = 'off'", ["modus", "[steer]", "mode"]),
        ("[stear]\nmode = 'off'", ["[stear]", "steer"]),
        ("[steer]\nmode = 'on'", ["steer.mode", "'on'", "observe"]),
        ("[steer]\nmax_excluded = 3", ["steer.max_excluded", "at most 0.5"]),
        ("[history]\nkeep_days = '400'", ["history.keep_days", "int", "400"]),
        ("[match]\nmin_nodes = true", ["match.min_nodes", "int"]),
        ("[match]\nmin_nodes = 0", ["match.min_nodes", "at least 1"]),
        ("[steer\nmode = 1", ["not valid TOML"]),
        ("steer = 3", ["steer must be a section"]),
    ],
)
def test_wrong_settings_are_named_with_the_mend(tmp_path, text, words):
    path = tmp_path / "workhorse.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(str(path))
    assert caught.value.exit_code == 2
    assert all(word in str(caught.value) for word in [str(path), *words]), str(caught.value)


def test_load_finds_the_file(tmp_path, monkeypatch):
    path = tmp_path / "w.toml"
    path.write_text("[steer]\nmode = 'avoid'\nmax_age_hours = 5\n")
    monkeypatch.setenv("WORKHORSE_CONFIG", str(path))
    settings = config.load()
    assert (settings.steer.mode, settings.steer.max_age_hours) == ("avoid", 5.0)
    monkeypatch.setenv("WORKHORSE_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="no such settings file"):
        config.load()


def test_snapshot_carries_the_hook_settings_and_survives_versions():
    settings = Settings({"steer.mode": "steer"})
    flat = settings.hook_mapping()
    assert flat["steer.mode"] == "steer" and "history.path" not in flat
    again = Settings.from_mapping({**flat, "steer.of_a_later_version": 7})
    assert again.steer.mode == "steer"
    assert again.replace(steer__mode="off").steer.mode == "off" and again.steer.mode == "steer"


@pytest.mark.parametrize(
    ("site", "wanted", "mode"),
    [
        ("steer", "", "steer"), ("steer", "Avoid", "avoid"), ("steer", "OFF", "off"), ("steer", "none", "steer"),
        ("avoid", "steer", "avoid"), ("avoid", "observe", "observe"), ("observe", "avoid", "observe"), ("off", "steer", "off"),
        ("off", "off", "off"),
    ],
)  # fmt: skip
def test_a_user_may_want_less_and_never_more(site, wanted, mode):
    assert config.weaker_mode(site, wanted) == mode


def test_the_modes_stand_in_one_place():
    from slurm_hook.cli.plan import plan

    setting = next(s for s in config.SETTINGS if s.key == "steer.mode")
    option = next(p for p in plan.params if p.name == "mode")
    assert setting.choices is config.MODES and tuple(option.type.choices) == config.MODES[1:]
    assert config.STEERING == ("avoid", "steer")
    row = re.compile(r"""["']observe["'],\s*["']avoid["']""")
    found = [path.name for path in Path(config.__file__).parent.glob("*.py") if row.search(path.read_text())]
    assert found == ["config.py"]
