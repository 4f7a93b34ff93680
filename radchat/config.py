"""Settings in force: flag, environment, config file, default, in this order (docs/cli.md).

A setting is read once, at the start of a command or of the daemon, checked, and named in the error
when it is wrong. Unknown names in config.toml are errors: a typo must not be a silent default.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from radchat.errors import ConfigInvalid
from radchat.paths import Places

FOREVER = float("inf")
_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(?:i?b)?|(tok)|b)?\s*", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d*)?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_LINE = re.compile(r"""\s*(?:\[{1,2}\s*)?(?:([\w-]+)|"([^"]*)"|'([^']*)')\s*[=.\]]""")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


# in force where nothing says otherwise (docs/cli.md); `doctor` shows them
DEFAULT_TEMPERATURE = 0.7  # where neither the command nor the model's generation config says
DEFAULT_TOP_P = 0.95
SHARE_OF_FREE = 0.25  # of free memory, for KV on a CPU
MOST_KV_BYTES = 4 * 1024**3
GPU_KEPT_FREE = 0.1  # of a GPU's free memory: what weights and KV leave

SHARE_OF_DISK = 0.1  # of the free space where the KV folder is
MOST_DISK_BYTES = 10 * 1024**3


def kv_default(free: int) -> int:
    """Bytes for KV on a CPU where so many are free."""
    return min(int(SHARE_OF_FREE * free), MOST_KV_BYTES)


def kv_disk_default(free: int) -> int:
    """Bytes for KV on a disk where so many are free."""
    return min(int(SHARE_OF_DISK * free), MOST_DISK_BYTES)


DEVICES = ("auto", "cpu", "cuda")
EXECUTORS = ("auto", "torch", "triton")
DTYPES = ("auto", "fp32", "bf16", "int4")
LEVELS = ("debug", "info", "warning", "error")
PERSIST = ("auto", "off", "always")


@dataclass(frozen=True, slots=True)
class Size:
    """An amount of KV: bytes, or tokens (``4096tok``), whichever was given."""

    bytes: int | None = None
    tokens: int | None = None


def parse_size(text: str) -> Size:
    """``2GiB``, ``512m``, ``1000000``, ``4096tok``."""
    match = _SIZE.fullmatch(str(text))
    if match is None:
        raise ValueError("want a size like 2GiB, 512MiB or 4096tok")
    number, unit, tokens = match.groups()
    if tokens:
        return Size(tokens=int(float(number)))
    return Size(bytes=int(float(number) * _UNITS[(unit or "").lower()]))


def parse_bytes(text: str) -> int:
    size = parse_size(text).bytes
    if size is None:
        raise ValueError("want bytes, like 8GiB")
    return size


def parse_duration(text: str) -> float:
    """Seconds. ``10m``, ``1h30m``, ``3600``; negative = for ever; ``0`` = at once."""
    text = str(text).strip().lower()
    if text.startswith("-"):
        parse_duration(text[1:])
        return FOREVER
    if _NUMBER.fullmatch(text):
        return float(text)
    pieces = _DURATION.findall(text)
    if not pieces or "".join(number + unit for number, unit in pieces) != text:
        raise ValueError("want a duration like 30m, 1h30m, 3600 or -1 (for ever)")
    return sum(float(number) * _SECONDS[unit] for number, unit in pieces)


def _one_of(text: str, words: tuple[str, ...]) -> str:
    if text not in words:
        raise ValueError(f"want {', '.join(words[:-1])} or {words[-1]}")
    return text


def parse_dtype(text: str) -> str:
    return _one_of(text, DTYPES)


def parse_device(text: str) -> str:
    return _one_of(text, DEVICES)


def parse_executor(text: str) -> str:
    return _one_of(text, EXECUTORS)


class Secret(str):
    """Shown nowhere."""

    __slots__ = ()


def parse_secret(text: str) -> Secret:
    if not text.strip() or any(c.isspace() for c in text.strip()):
        raise ValueError("want a key without spaces")
    return Secret(text.strip())


def parse_level(text: str) -> str:
    return _one_of(text.lower(), LEVELS)


def parse_persist(text: str) -> str:
    return _one_of(text, PERSIST)


def parse_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("want a whole number of 1 or more")
    return int(text)


def parse_temperature(text: str) -> float:
    if not _NUMBER.fullmatch(text) or float(text) > 100:
        raise ValueError("want a number from 0 (always the likeliest token) up")
    return float(text)


def parse_top_p(text: str) -> float:
    if not _NUMBER.fullmatch(text) or not 0 < float(text) <= 1:
        raise ValueError("want a number above 0 and up to 1")
    return float(text)


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table below: field, environment variable, parser, default as text, help;
    and where it is one of few words, those.
    """

    name: str
    variable: str | None
    parse: Callable[[str], Any]
    default: str | None
    help: str
    choices: tuple[str, ...] = ()


SETTINGS = (
    Setting("model", "RADCHAT_MODEL", str, None, "the model a new session uses"),
    Setting("engine", "RADCHAT_ENGINE", str, None, "the URL of another program's engine"),
    Setting("engine_key", "RADCHAT_ENGINE_KEY", parse_secret, None, "its API key"),
    Setting("keep_alive", "RADCHAT_KEEP_ALIVE", parse_duration, "30m", "unload an idle model"),
    Setting("idle_exit", "RADCHAT_IDLE_EXIT", parse_duration, "2h", "end an idle daemon"),
    Setting("context_length", "RADCHAT_CONTEXT_LENGTH", parse_count, None, "context, in tokens"),
    Setting(
        "device", "RADCHAT_DEVICE", parse_device, "auto", "models run on: auto, cpu, cuda", DEVICES
    ),
    Setting(
        "executor",
        "RADCHAT_EXECUTOR",
        parse_executor,
        "auto",
        "kernels: auto, torch, triton",
        EXECUTORS,
    ),
    Setting("kv_device", "RADCHAT_KV_DEVICE", parse_size, None, "KV budget of each loaded model"),
    Setting("kv_disk", "RADCHAT_KV_DISK", parse_bytes, None, "KV budget on disk"),
    Setting("kv_disk_hourly", None, parse_bytes, "2GiB", "KV written to disk in an hour"),
    Setting(
        "persist", "RADCHAT_PERSIST", parse_persist, "auto", "keep KV: auto, off, always", PERSIST
    ),
    Setting("memory", "RADCHAT_MEMORY", parse_bytes, None, "weights and KV of all loaded models"),
    Setting("dtype", None, parse_dtype, "auto", "weights and KV: auto, fp32, bf16, int4", DTYPES),
    Setting("temperature", None, parse_temperature, None, "sampling, before the model's own"),
    Setting("top_p", None, parse_top_p, None, "sampling, before the model's own"),
    Setting("max_tokens", None, parse_count, None, "at most so long an answer"),
    Setting(
        "log_level", "RADCHAT_LOG_LEVEL", parse_level, "info", "what the daemon's log holds", LEVELS
    ),
)


@dataclass(frozen=True, slots=True)
class Config:
    model: str | None
    engine: str | None
    engine_key: str | None
    keep_alive: float
    idle_exit: float
    context_length: int | None
    device: str
    executor: str
    kv_device: Size | None
    kv_disk: int | None
    kv_disk_hourly: int
    persist: str
    memory: int | None
    dtype: str
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    log_level: str
    sources: Mapping[str, str]  # setting -> where its value came from, for `doctor`

    @property
    def sampling(self) -> dict[str, Any]:
        """What is set of it; a command's own flags go before."""
        named = ("temperature", "top_p", "max_tokens")
        return {name: v for name in named if (v := getattr(self, name)) is not None}


def shown(value: Any) -> Any:
    """A setting's value as JSON and people can read it."""
    if isinstance(value, Secret):
        return "(set)"
    if isinstance(value, Size):
        return f"{value.tokens}tok" if value.bytes is None else value.bytes
    if isinstance(value, float):  # seconds
        if value == float("inf"):
            return -1
        return int(value) if value.is_integer() else value
    return value


def not_in_force(env: Mapping[str, str], in_force: Mapping[str, Any]) -> list[str]:
    """Variables whose settings are the daemon's and not what the one that runs was started with;
    ``in_force``: its settings as ``shown``. The model is each command's own.
    """
    differ = []
    for setting in SETTINGS:
        raw = env.get(setting.variable or "")
        if not raw or setting.name == "model" or setting.name not in in_force:
            continue
        try:
            value = shown(setting.parse(raw))
        except ValueError:  # told where it is read
            continue
        if value != in_force[setting.name]:
            differ.append(str(setting.variable))
    return differ


def load(places: Places, env: Mapping[str, str] | None = None) -> Config:
    """Read config.toml and the environment; raise ConfigInvalid that names the bad setting, what
    was found, and the file and line or the variable that says so.
    """
    env = os.environ if env is None else env
    table = _read_file(places)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        raw, source = _raw(setting, env, table, places)
        sources[setting.name] = source
        if raw is None:
            values[setting.name] = None
            continue
        values[setting.name] = _parse(setting, raw, source, places)
    return Config(**values, sources=sources)


def _parse(setting: Setting, raw: Any, source: str, places: Places) -> Any:
    """The value of a setting; ConfigInvalid says the name, what was found, and where."""
    try:
        return setting.parse(_text(raw))
    except ValueError as error:
        is_file = source == str(places.config_file)
        where = place_of(places, setting.name) if is_file else source
        told = "(hidden)" if setting.parse is parse_secret else repr(raw)
        raise ConfigInvalid(
            f"{setting.name} = {told} (from {where}): {error}", setting=setting.name, source=source
        ) from error


def _text(raw: Any) -> str:
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise ValueError("want a text in quotes or a number")  # noqa: TRY004 - the file's
    return str(raw)


def place_of(places: Places, name: str) -> str:
    """``FILE, line N``: where config.toml sets ``name``."""
    path = places.config_file
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if sets(line) == name]
    return f"{path}, line {found[0]}" if found else str(path)


def sets(line: str) -> str | None:
    """The setting that a line of config.toml gives a value; None for a comment and all else."""
    match = _LINE.match(line)
    return match and (match[1] or match[2] or match[3])


def _raw(
    setting: Setting, env: Mapping[str, str], table: Mapping[str, Any], places: Places
) -> tuple[Any, str]:
    if setting.variable and env.get(setting.variable):
        return env[setting.variable], setting.variable
    if setting.name in table:
        return table[setting.name], str(places.config_file)
    return setting.default, "default"


def _read_file(places: Places) -> dict[str, Any]:
    path = places.config_file
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigInvalid(f"{path}: {error}") from error
    unknown = set(table) - {setting.name for setting in SETTINGS}
    if unknown:
        known, name = ", ".join(setting.name for setting in SETTINGS), min(unknown)
        raise ConfigInvalid(f"{place_of(places, name)}: unknown setting {name!r} (known: {known})")
    return table


assert {f.name for f in fields(Config)} == {s.name for s in SETTINGS} | {"sources"}
