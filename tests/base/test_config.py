import math
from pathlib import Path

import pytest

from radchat import config
from radchat.errors import ConfigInvalid
from radchat.paths import Places


def places(tmp_path: Path) -> Places:
    return Places.from_env({"RADCHAT_HOME": str(tmp_path)})


def write(tmp_path: Path, text: str) -> Places:
    at = places(tmp_path)
    at.config_file.parent.mkdir(parents=True, exist_ok=True)
    at.config_file.write_text(text)
    return at


def test_what_the_environment_asks_of_a_daemon_started_without_it() -> None:
    env = {"RADCHAT_DEVICE": "cuda", "RADCHAT_KV_DEVICE": "1GiB", "RADCHAT_KEEP_ALIVE": "30m",
           "RADCHAT_IDLE_EXIT": "soon", "RADCHAT_MODEL": "b", "RADCHAT_EXECUTOR": ""}  # fmt: skip
    in_force = {"device": "auto", "kv_device": "4096tok", "keep_alive": 1800, "idle_exit": 7200}
    in_force |= {"model": "a", "executor": "torch"}
    assert config.not_in_force(env, in_force) == ["RADCHAT_DEVICE", "RADCHAT_KV_DEVICE"]
    assert config.not_in_force(env, {}) == []  # a daemon that does not tell


def test_without_a_file_the_defaults_are_in_force(tmp_path: Path) -> None:
    settings = config.load(places(tmp_path), {})
    assert settings.keep_alive == 1800
    assert settings.idle_exit == 7200
    assert settings.dtype == "auto"
    assert settings.model is None
    assert settings.sources["keep_alive"] == "default"


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    at = write(tmp_path, 'keep_alive = "5m"\nmodel = "one"\n')
    settings = config.load(at, {"RADCHAT_KEEP_ALIVE": "10s"})
    assert settings.keep_alive == 10
    assert settings.model == "one"
    assert settings.sources["keep_alive"] == "RADCHAT_KEEP_ALIVE"
    assert settings.sources["model"] == str(at.config_file)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("kep_alive = 1\n", "kep_alive"),
        ('keep_alive = "soon"\n', "keep_alive"),
        ('kv_device = "many"\n', "kv_device"),
        ('memory = "4096tok"\n', "want bytes, like 8GiB"),
        ("keep_alive = \n", "config.toml"),
        ("keep_alive = true\n", "want a text in quotes or a number"),
        (
            "# one\n\n  kv_device = 'many'\n",
            "'many' .from .*config.toml, line 3.: want",
        ),
        ("# one\nkep_alive = 1\n", "config.toml, line 2: unknown setting 'kep_alive'"),
        ('# x\n"context_length" = "-4"\n', "line 2.: want a whole number of 1 or more"),
        ("[server]\nport = 1\n", "line 1: unknown setting 'server'"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, name: str) -> None:
    with pytest.raises(ConfigInvalid, match=name) as caught:
        config.load(write(tmp_path, text), {})
    assert caught.value.exit_code == 52


@pytest.mark.parametrize("setting", config.SETTINGS, ids=lambda setting: setting.name)
def test_each_setting_is_taken_from_environment_then_file_then_default(
    tmp_path: Path, setting: config.Setting
) -> None:
    value = next(v for v in (setting.default, "1") if v is not None)
    at = places(tmp_path)
    assert config.load(at, {}).sources[setting.name] == "default"
    at = write(tmp_path, f'{setting.name} = "{value}"\n')
    assert config.load(at, {}).sources[setting.name] == str(at.config_file)
    if setting.variable:
        found = config.load(at, {setting.variable: value})
        assert found.sources[setting.name] == setting.variable
        assert getattr(found, setting.name) == setting.parse(value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("3600", 3600), ("1h30m", 5400), ("0", 0), ("250ms", 0.25), ("-1", math.inf)],
)
def test_durations_follow_ollamas_grammar(text: str, seconds: float) -> None:
    assert config.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10x", "ten", "1h30", "nan", "inf", "1e9"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        config.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", config.Size(bytes=2 * 1024**3)),
        ("512m", config.Size(bytes=512 * 1024**2)),
        ("1.5 GB", config.Size(bytes=3 * 1024**3 // 2)),
        ("1000", config.Size(bytes=1000)),
        ("4096tok", config.Size(tokens=4096)),
    ],
)
def test_sizes(text: str, size: config.Size) -> None:
    assert config.parse_size(text) == size


def test_every_setting_has_a_default_that_parses() -> None:
    for setting in config.SETTINGS:
        if setting.default is not None:
            setting.parse(setting.default)
