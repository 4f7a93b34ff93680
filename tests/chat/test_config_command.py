"""`radchat config`: the user's own file, changed a line at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chat.conftest import Run

FILE = """\
# my settings

keep_alive = "5m"   # long enough for lunch # really
model = "a # in it"  # not the end
  # the last line
"""


@pytest.fixture
def file(home: Path) -> Path:
    path = home / "config" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(FILE)
    return path


def test_set_changes_its_line_and_nothing_else(run: Run, file: Path) -> None:
    assert run("config", "set", "keep_alive", "10m").code == 0
    assert file.read_text() == FILE.replace('"5m"', '"10m"')
    assert run("config", "set", "model", 'quoted "one" \\ é').code == 0
    assert file.read_text().splitlines()[3] == 'model = "quoted \\"one\\" \\\\ é"  # not the end'
    assert run("config", "set", "idle-exit", "1h").code == 0
    assert file.read_text().splitlines()[-2:] == ["  # the last line", 'idle_exit = "1h"']
    assert json.loads(run("config", "list", "--json").out)["idle_exit"] == {
        "value": 3600,
        "source": str(file),
    }


def test_a_list_is_for_people_and_json_for_programs(run: Run) -> None:
    lines = run("config", "list").out.splitlines()
    assert next(line.split() for line in lines if line.startswith("kv_disk_hourly ")) == [
        "kv_disk_hourly", "2.00", "GiB", "default",
    ]  # fmt: skip
    assert json.loads(run("config", "list", "--json").out)["kv_disk_hourly"]["value"] == 2**31


def test_unset_takes_the_line_out_and_the_default_is_back(run: Run, file: Path) -> None:
    assert "no longer in" in run("config", "unset", "keep_alive").err
    assert file.read_text() == FILE.replace(FILE.splitlines()[2] + "\n", "")
    assert run("config", "get", "keep_alive").out == "1800\n"
    assert "is not in" in run("config", "unset", "keep_alive").err
    assert run("config", "unset", "keep_alife").code == 2
    file.write_text('gone_since = 1\nmodel = "x"\n')  # of another version: it can be got rid of
    assert run("config", "list").code == 52
    assert run("config", "unset", "gone_since").code == 0
    assert file.read_text() == 'model = "x"\n'


def test_a_wrong_line_is_named_and_can_be_set_right(run: Run, file: Path) -> None:
    file.write_text('# one\nkeep_alive = "soon"\n')
    done = run("config", "get", "model")
    assert done.code == 52
    assert f"keep_alive = 'soon' (from {file}, line 2): want a duration" in done.err
    assert run("config", "set", "keep_alive", "7m").code == 0
    assert run("config", "get", "keep_alive").out == "420\n"
    file.write_text('device = "gpu"\nexecutor = "Triton"\n')
    done = run("config", "set", "device", "cpu")
    assert done.code == 52
    assert f"device = cpu is written, but executor = 'Triton' (from {file}, line 2)" in done.err
    assert run("config", "unset", "executor").code == 0
    file.write_text("keep_alive = soon\n")
    done = run("config", "set", "model", "x")
    assert done.code == 52
    assert str(file) in done.err
    assert "line 1" in done.err
    file.write_text('model = """\nlong"""\n')
    assert "edit it by hand" in run("config", "set", "model", "x").err
    assert file.read_text() == 'model = """\nlong"""\n'


def test_a_bad_value_is_fifty_two_and_never_written(run: Run, file: Path) -> None:
    for setting, value in (("keep_alive", "soon"), ("kv_device", "much"), ("dtype", "int3")):
        done = run("config", "set", setting, value)
        assert done.code == 52
        assert f"{setting} = {value!r}: want " in done.err
    assert file.read_text() == FILE


def test_what_goes_before_the_file_is_told(run: Run, file: Path) -> None:
    told = run("config", "set", "idle_exit", "9m", RADCHAT_IDLE_EXIT="8m")
    assert "RADCHAT_IDLE_EXIT is set, and goes before it" in told.err
    listed = json.loads(run("config", "list", "--json", RADCHAT_IDLE_EXIT="8m").out)
    assert listed["idle_exit"] == {"value": 480, "source": "RADCHAT_IDLE_EXIT"}
    assert listed["keep_alive"] == {"value": 300, "source": str(file)}
    assert listed["dtype"] == {"value": "auto", "source": "default"}


def test_another_file_can_be_named_and_its_folder_stays_as_it_was(
    run: Run, file: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "project" / "my.conf.toml"
    mine.parent.mkdir(mode=0o755)
    done = run("--config", str(mine), "config", "list")
    assert done.code == 52
    assert "is not there (--config)" in done.err
    assert run("--config", str(mine), "config", "set", "dtype", "fp32").code == 0
    assert mine.read_text() == 'dtype = "fp32"\n'
    assert mine.stat().st_mode & 0o777 == 0o600
    assert mine.parent.stat().st_mode & 0o777 == 0o755
    assert run("config", "get", "dtype", "--config", str(mine)).out == "fp32\n"
    assert run("config", "path", f"--config={mine}").out == f"{mine}\n"
    assert run("config", "get", "dtype").out == "auto\n"
    assert file.read_text() == FILE


def test_a_link_to_ones_dotfiles_stays_a_link(run: Run, file: Path, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.toml"
    file.rename(kept)
    file.symlink_to(kept)
    assert run("config", "set", "keep_alive", "10m").code == 0
    assert file.is_symlink()
    assert '"10m"' in kept.read_text()
