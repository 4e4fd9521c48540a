"""One table of settings: name, type, default, help. The file in etc/, the README and the code agree with it (tested).

`load` needs `tomllib` (Python 3.11) and is for the accounting half and the command line. The submit path never reads
TOML: it takes the settings that the snapshot carries (`Settings.from_mapping`).
"""

from __future__ import annotations

from .errors import ConfigError
from .record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DEFAULT_PATH = "/etc/workhorse/workhorse.toml"
PATH_VARIABLE = "WORKHORSE_CONFIG"


class Setting(Record):
    """One row of the table. `choices` limits a string; `hook` marks what the submit path needs and so is published."""

    section: str
    name: str
    type: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    hook: bool = False
    low: float | None = None
    high: float | None = None

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"


MODES = ("off", "observe", "avoid", "steer")  # each does more than the one before
STEERING = MODES[MODES.index("avoid") :]  # in these, waiting jobs are changed
OUTCOMES = ("right", "wrong", "silent", "survived")
SETTINGS: tuple[Setting, ...] = (
    Setting("history", "path", str, "/var/lib/workhorse/history.db",
            "SQLite file with the task history (private); once moved below /home, run install.sh again for the timers' rights"),
    Setting("history", "keep_days", int, 400, "attempts that ended longer ago are dropped by `workhorse db vacuum`", low=1,
            high=36500),
    Setting("history", "window_hours", int, 24, "largest stretch asked of slurmdbd in one sacct call", low=1, high=876000),
    Setting("history", "overlap_hours", int, 2, "stretch before the high-water mark that is read again", low=0,
            high=876000),
    Setting("history", "deep_hours", int, 72, "stretch read again once a day, for rows that slurmdbd got late", low=0,
            high=876000),
    Setting("history", "first_days", int, 90, "how far back the first collect goes", low=1, high=36500),
    Setting("slurm", "backend", str, "auto", "where accounting is read from", ("auto", "pyslurm", "cli")),
    Setting("slurm", "timeout", float, 300.0, "seconds that one sacct or sacctmgr call may take", low=1,
            high=86400),
    Setting("scoring", "method", str, "attributed", "which method scores the nodes", ("attributed", "published")),
    Setting("scoring", "window_days", float, 90.0, "stretch of history that is scored", low=1, high=36500),
    Setting("scoring", "capacity_resource", str, "auto", "what demand and capacity are measured in",
            ("auto", "mem", "gpu_mem"), hook=True),
    Setting("scoring", "gpu_mem", dict, {"a100": 81920, "h100": 81920, "h200": 144384, "v100": 32768, "default": 81920},
            "MiB of one GPU by type", hook=True),
    Setting("scoring", "heavy_threshold", float, 0.0, "utilization above which a task is heavy; 0: Otsu's", low=0, high=1),
    Setting("scoring", "overload_threshold", float, 0.9, "utilization above which hours count as overload", low=0, high=1),
    Setting("scoring", "max_gap_hours", float, 6.0, "idle gap that ends a group of heavy tasks", low=0),
    Setting("scoring", "half_life_days", float, 60.0, "days after which evidence counts half, attributed method", low=0.1,
            high=36500),
    Setting("scoring", "chassis", str, "",
            "regular expression on node names: nodes in which it finds the same (its first group) share a chassis"),
    Setting("outcomes", "states", dict,
            {"COMPLETED": "right", "NODE_FAIL": "wrong", "BOOT_FAIL": "wrong", "FAILED": "wrong", "LAUNCH_FAILED": "wrong",
             "TIMEOUT": "survived", "OUT_OF_MEMORY": "silent", "PREEMPTED": "silent", "DEADLINE": "silent", "REVOKED": "silent",
             "CANCELLED": "silent", "REQUEUED": "silent", "RESIZING": "survived"},
            "what a state says of the nodes: right, wrong, silent (hours don't count) or survived (hours count)", OUTCOMES),
    Setting("outcomes", "exit_codes", dict, {},
            'the same by exit code, "75" or "0:9" (code:signal), for jobs that neither completed nor lost a node', OUTCOMES),
    Setting("outcomes", "other", str, "silent", "what any other state says", OUTCOMES),
    Setting("events", "reasons", dict,
            {"repaired": r"(?s)^(?!.*\b(be|being|get|needs?|not|yet|until)\W(repaired|replaced|swapped))"
                         r".*\b(repaired|replaced|swapped)"
                         r"|\brma (done|closed)",
             "planned": r"\bmaint|upgrade|reboot asap|reboot requested|\bplanned|reinstall|firmware update|\bscheduled",
             "user": r"kill task failed|quota|user request|batch job complete failure",
             "hardware": r"\bxid|\becc\b|\bdbe\b|gpu|nvlink|nvidia|hardware|dimm|memory|disk|nvme|\bfan|thermal|temperature|"
                         r"power|\bpsu\b|infiniband|\bib\b|\blink|\bnic\b|pcie|not responding|unexpectedly rebooted|"
                         r"bad node|\bmce\b"},
            "classes of drain and down reasons: the first whose regular expression is found, upper case or not"),
    Setting("publish", "path", str, "/var/lib/workhorse/public", "folder of scores.json and live.json", hook=True),
    Setting("publish", "keep_days", int, 90, "how long old snapshots are kept for `workhorse explain`", low=0,
            high=36500),
    Setting("publish", "metrics", str, "", "folder of node_exporter's textfile collector (empty: no metrics)"),
    Setting("steer", "mode", str, "observe", "what is done with jobs that match", MODES, hook=True),
    Setting("steer", "form", str, "exclude", "how drawn nodes are written: excludes, or an exact node list",
            ("exclude", "nodelist"), hook=True),
    Setting("steer", "max_excluded", float, 0.02, "share of a partition that mode avoid may exclude (at least one node)",
            hook=True, low=0, high=0.5),
    Setting("steer", "gamma", float, 0.1, "softening of the fit of part A", hook=True, low=0.0001),
    Setting("steer", "sacrifice", bool, False, "may cheap jobs be steered to worse nodes, so that good ones stay free?",
            hook=True),
    Setting("steer", "control_share", float, 0.0, "share of our jobs left untouched, to be compared with", hook=True,
            low=0, high=0.9),
    Setting("steer", "max_age_hours", float, 72.0, "scores older than this are not used", hook=True, low=0),
    Setting("steer", "live_max_age", float, 180.0, "seconds after which live.json no longer allows steering", hook=True, low=1),
    Setting("match", "partitions", list, [], "only jobs of these partitions (empty: any)", hook=True),
    Setting("match", "accounts", list, [], "only jobs of these accounts (empty: any)", hook=True),
    Setting("match", "qos", list, [], "only jobs of these QOS (empty: any)", hook=True),
    Setting("match", "min_nodes", int, 2, "a job on at least this many nodes is ours", hook=True, low=1),
    Setting("match", "min_gpus", int, 0, "or one with at least this many GPUs in all (0: no such rule)", hook=True, low=0),
    Setting("match", "name", str, "", "or one whose name matches this shell pattern", hook=True),
    Setting("match", "comment_prefix", str, "", "or one whose comment begins so", hook=True),
    Setting("match", "directives", bool, True, "or one whose script has a #WORKHORSE line", hook=True),
    Setting("dispatch", "state", str, "/var/lib/workhorse/dispatch.json", "what dispatch remembers between passes (private)"),
    Setting("dispatch", "period", float, 60.0, "seconds between two passes", low=0.1),
    Setting("dispatch", "max_updates", int, 50, "jobs whose excludes one pass may change", low=1),
    Setting("dispatch", "reorder", bool, False, "order waiting stages of ours by allocation priority, through their nice"),
    Setting("dispatch", "nice_range", int, 100, "largest nice that reorder may give", low=1, high=10000),
    Setting("dispatch", "requeue", bool, False, "requeue a stage that died of its node and that nobody else has requeued"),
    Setting("dispatch", "retry", int, 1, "how often a job is requeued by us at most", low=1, high=10),
)  # fmt: skip

_BY_KEY: dict[str, Setting] = {s.key: s for s in SETTINGS}


def weaker_mode(site: str, wanted: str) -> str:
    """The site's mode, or what a user wants instead (upper case or not), where that is a mode that does less."""
    return wanted.lower() if wanted.lower() in MODES[: MODES.index(site)] else site


class Settings:
    """Checked values of all settings; `settings["steer.mode"]`, or a section as attribute: `settings.steer.mode`."""

    def __init__(self, values: Mapping[str, Any] | None = None, source: str = DEFAULT_PATH) -> None:
        self.source = source  # the file they were read from; the `disable` file stands beside it
        self._values = {s.key: s.default for s in SETTINGS}
        for key, value in (values or {}).items():
            self._values[key] = _checked(key, value)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __getattr__(self, section: str) -> _Section:
        if section.startswith("_") or not any(s.section == section for s in SETTINGS):
            raise AttributeError(section)
        return _Section(self._values, section)

    def replace(self, **values: Any) -> Settings:
        """A copy with some values changed; keys with `__` for the dot: `replace(steer__mode="off")`."""
        changed = dict(self._values)
        changed.update({k.replace("__", ".", 1): v for k, v in values.items()})
        return Settings(changed, self.source)

    def hook_mapping(self) -> dict[str, Any]:
        """What the submit path needs, flat by key: goes into the snapshot."""
        return {s.key: self._values[s.key] for s in SETTINGS if s.hook}

    @classmethod
    def from_mapping(cls, flat: Mapping[str, Any]) -> Settings:
        """Settings from a snapshot. Keys of a newer version are left out, so that halves of two versions can meet."""
        return cls({k: v for k, v in flat.items() if k in _BY_KEY})

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any], source: str) -> Settings:
        """Settings from parsed TOML: {section: {name: value}}.

        Raises ConfigError for an unknown section or name (listing the valid ones) or a wrong value.
        """
        flat: dict[str, Any] = {}
        for section, table in tables.items():
            names = sorted(s.name for s in SETTINGS if s.section == section)
            if not names:
                valid = ", ".join(sorted({s.section for s in SETTINGS}))
                raise ConfigError(f"{source}: unknown section [{section}]; valid ones: {valid}")
            if not isinstance(table, dict):
                raise ConfigError(f"{source}: {section} must be a section: write [{section}] on a line of its own")
            for name, value in table.items():
                if name not in names:
                    raise ConfigError(f"{source}: unknown setting {name} in [{section}]; valid ones: {', '.join(names)}")
                flat[f"{section}.{name}"] = value
        try:
            return cls(flat, source)
        except ConfigError as err:
            raise ConfigError(f"{source}: {err}") from None


class _Section:
    def __init__(self, values: Mapping[str, Any], section: str) -> None:
        self._flat, self._name = values, section

    def __getattr__(self, name: str) -> Any:
        try:
            return self._flat[f"{self._name}.{name}"]
        except KeyError:
            raise AttributeError(f"{self._name}.{name}") from None


def _checked(key: str, value: Any) -> Any:
    setting: Setting | None = _BY_KEY.get(key)
    if setting is None:
        raise ConfigError(f"unknown setting {key}; valid ones: {', '.join(sorted(_BY_KEY))}")
    wanted: type = setting.type
    if wanted is float and type(value) is int:
        value = float(value)
    if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
        raise ConfigError(f"{key} = {value!r}: must be a {wanted.__name__} (default {setting.default!r})")
    for item in value.values() if isinstance(value, dict) else (value,):
        if setting.choices and item not in setting.choices:
            raise ConfigError(f"{key} = {value!r}: must be one of {', '.join(setting.choices)}")
    if isinstance(value, dict):
        _check_table(setting, value)
        return {**setting.default, **value}  # a table changes the entries it names
    if isinstance(value, list):
        wrong = [item for item in value if not isinstance(item, str) or not item]
        if wrong:
            raise ConfigError(f'{key} = {value!r}: {wrong[0]!r} is not a name; write names in quotes, such as ["llm"]')
    if isinstance(value, str):
        _check_text(setting, value)
    _check_range(setting, value)
    return value


def _check_text(setting: Setting, value: str) -> None:
    if setting.default and not value.strip():
        raise ConfigError(f"{setting.key} = {value!r}: must not be empty (default {setting.default!r})")
    if "\0" in value:
        raise ConfigError(f"{setting.key} = {value!r}: holds a NUL byte")


def _check_table(setting: Setting, value: Mapping[str, Any]) -> None:
    """Names and values of a table: numbers above 0 where the defaults are numbers, else words."""
    wants_numbers = any(not isinstance(item, str) for item in setting.default.values())
    for name, item in value.items():
        if wants_numbers and (isinstance(item, bool) or not isinstance(item, (int, float)) or not 0 < item < 1e12):
            raise ConfigError(f"{setting.key}: {name} = {item!r}: must be a number above 0")
        if not wants_numbers and not isinstance(item, str):
            raise ConfigError(f"{setting.key}: {name} = {item!r}: must be a text in quotes")
        if setting.name == "exit_codes" and not _is_exit_code(name):
            raise ConfigError(f'{setting.key}: {name!r} is no exit code; write "75", or "0:9" (code:signal)')


def _is_exit_code(text: str) -> bool:
    code, colon, signal = text.partition(":")
    return all(part.isdecimal() and part.isascii() and int(part) < 256 for part in ([code, signal] if colon else [code]))


def _check_range(setting: Setting, value: Any) -> None:
    if isinstance(value, (int, float)) and not abs(value) < 1e12:  # NaN too
        raise ConfigError(f"{setting.key} = {value!r}: must be a finite number (default {setting.default!r})")
    if setting.low is not None and value < setting.low:
        raise ConfigError(f"{setting.key} = {value!r}: must be at least {setting.low:g}")
    if setting.high is not None and value > setting.high:
        raise ConfigError(f"{setting.key} = {value!r}: must be at most {setting.high:g}")


def load(path: str | None = None) -> Settings:
    """Settings from a TOML file: the one named, else $WORKHORSE_CONFIG, else /etc/workhorse/workhorse.toml if it exists.

    Raises ConfigError when a named file can't be read, isn't TOML, or holds an unknown or wrong setting.
    """
    import os  # noqa: PLC0415 - the submit path does without both

    from .toml import reader  # noqa: PLC0415

    tomllib = reader()

    named = path or os.environ.get(PATH_VARIABLE)
    source = named or DEFAULT_PATH
    try:
        with open(source, encoding="utf-8-sig") as file:
            tables = tomllib.loads(file.read())
    except FileNotFoundError:
        if named:
            raise ConfigError(f"{source}: no such settings file; name another with --config or ${PATH_VARIABLE}") from None
        return Settings()
    except OSError as err:
        raise ConfigError(f"{source}: can't be read ({err.strerror}); mend its mode or name another with --config") from err
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise ConfigError(f"{source}: not valid TOML ({err}); mend the line named") from err
    return Settings.from_tables(tables, source)
