"""`radchat doctor`: each thing that goes wrong in life, made to, and what it says to type."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.agent.sandbox import landlock
from radchat.chat.footer import size
from radchat.cli import checks, machine_checks
from radchat.cli.common import Cli
from radchat.cli.doctor import section
from radchat.cli.findings import Finding
from radchat.config import Size
from radchat.daemon.lock import DaemonInfo, Lock
from radchat.engine.model import needs
from radchat.models import fit
from radchat.models.registry import list_models
from radchat.paths import Places
from tests.chat.fake_server import FakeDaemon
from tests.e2e.harness import clean_env, radchat
from tests.e2e.tiny_models import converted


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: a socket's must be."""
    with tempfile.TemporaryDirectory(prefix="rc-", dir="/tmp") as folder:
        yield Path(folder) / "h"


def cli(home: Path, **env: str) -> Cli:
    return Cli(env={"RADCHAT_HOME": str(home), "PATH": "", "HOME": str(home), **env})


def found(name: str, cli: Cli) -> list[Finding]:
    """What one check says."""
    check = next(c for c in checks.CHECKS if c.__name__ == name)
    return list(check(cli))


def worst(name: str, cli: Cli) -> Finding:
    order = ("ok", "note", "warning", "broken")
    return max(found(name, cli), key=lambda finding: order.index(finding.status))


def private(path: Path) -> Path:
    path.mkdir(parents=True, mode=0o700, exist_ok=True)
    return path


def doctor(home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        radchat("doctor", *words),
        env=clean_env(home, **env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_new_home_is_sound_and_stays_unmade(home: Path) -> None:
    done = doctor(home)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[-1] in ("1 warning", "2 warnings")  # no model, maybe the disk
    assert "-> radchat models pull smollm2-135m" in done.stdout
    assert "keep_alive      1800 (default)" in done.stdout
    assert "temperature 0.7, top-p 0.95" in done.stdout
    report = json.loads(doctor(home, "--json").stdout)
    assert {each["status"] for each in report["checks"]} <= {"ok", "note", "warning"}
    assert report["broken"] is False
    assert all(each["remedy"] for each in report["checks"] if each["status"] == "warning")
    assert not home.exists()


def test_what_is_broken_ends_it_with_one_and_is_the_same_in_json(home: Path) -> None:
    done = doctor(home, RADCHAT_KEEP_ALIVE="soon")
    assert done.returncode == 1
    assert "broken    settings" in done.stdout
    assert "keep_alive = 'soon' (from RADCHAT_KEEP_ALIVE)" in done.stdout
    done = doctor(home, "--json", RADCHAT_KEEP_ALIVE="soon")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["broken"] is True
    (broken,) = (each for each in report["checks"] if "keep_alive" in each["text"])  # told once
    assert broken["remedy"] == "unset RADCHAT_KEEP_ALIVE"
    assert "keep_alive" in report["settings"]["problem"]
    assert not home.exists()


def test_a_wrong_line_is_broken_with_a_command_to_type(home: Path) -> None:
    private(home / "config")
    (home / "config" / "config.toml").write_text('device = "gpu"\n')
    report = json.loads(doctor(home, "--json").stdout)
    (broken,) = (each for each in report["checks"] if each["status"] == "broken")
    assert (broken["name"], broken["remedy"]) == ("settings", "radchat config unset device")


def test_columns_never_touch(home: Path) -> None:
    names = {"a": "x", "a_name_of_some_length": 1800.0, "number": 2.5}
    assert section("daemon", names) == [
        "daemon    a                      x",
        "          a_name_of_some_length  1800",
        "          number                 2.5",
    ]


def test_what_is_set_is_shown_with_where_it_comes_from(home: Path) -> None:
    private(home / "config")
    (home / "config" / "config.toml").write_text('idle_exit = "1h"\nkv_device = "64MiB"\n')
    (home / "config" / "config.toml").chmod(0o600)
    report = json.loads(doctor(home, "--json", RADCHAT_KEEP_ALIVE="5m").stdout)
    assert report["settings"]["keep_alive"] == "300 (RADCHAT_KEEP_ALIVE)"
    assert report["settings"]["idle_exit"] == f"3600 ({home}/config/config.toml)"
    assert report["defaults"]["kv_device"].startswith("64.0 MiB")


def test_packages_that_are_missing_or_old_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    needed = {"typer": "0.1", "no-such-package": "1.0", "pytest": "999"}
    monkeypatch.setattr(machine_checks, "NEEDED", needed)
    sound, missing, old = sorted(found("packages", cli(home)), key=lambda f: f.status == "broken")
    assert sound.text.startswith("typer ")
    assert (missing.name, missing.text) == ("no-such-package", "not installed")
    assert missing.remedy == f"{sys.executable} -m pip install 'no-such-package>=1.0'"
    assert "older than 999" in old.text


def test_the_versions_it_wants_are_those_of_the_project() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    wanted = " ".join(project["dependencies"]).replace("-", "_")
    for name, least in machine_checks.NEEDED.items():
        assert f"{name}>={least}" in wanted, name
    assert project["requires-python"] == f">={machine_checks.PYTHON[0]}.{machine_checks.PYTHON[1]}"


def test_permissions_that_let_others_in_are_told(home: Path) -> None:
    assert worst("permissions", cli(home)).status == "ok"
    private(home / "data").chmod(0o755)
    finding = worst("permissions", cli(home))
    assert finding.remedy == f"chmod 700 {home / 'data'}"
    (home / "data").chmod(0o700)
    database = home / "data" / "radchat.db"
    database.write_bytes(b"SQLite format 3\0")
    database.chmod(0o644)
    finding = worst("permissions", cli(home))
    assert finding.remedy == f"chmod 600 {database}"
    database.chmod(0o600)
    assert worst("permissions", cli(home)).status == "ok"
    (home / "state").write_text("a file in its place")
    finding = worst("permissions", cli(home))
    assert (finding.status, str(home / "state") in finding.text) == ("broken", True)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_one_cannot_write_is_broken(home: Path) -> None:
    private(home).chmod(0o500)
    assert worst("permissions", cli(home)).status == "broken"
    home.chmod(0o700)


def test_a_file_that_is_no_database_is_told_and_moved_aside(home: Path) -> None:
    assert worst("database", cli(home)).text == "none yet"
    path = private(home / "data") / "radchat.db"
    path.write_text("hello")
    finding = worst("database", cli(home))
    assert (finding.status, finding.remedy) == ("broken", f"mv {path} {path}.broken")
    path.write_bytes(b"SQLite format 3\0 and so on")
    assert worst("database", cli(home)).status == "ok"


def test_a_socket_that_cannot_be_is_told(home: Path, tmp_path: Path) -> None:
    assert worst("socket", cli(home)).status == "ok"
    private(home / "run")
    (home / "run" / "radchat.sock").write_text("no socket")
    assert worst("socket", cli(home)).remedy == f"rm -r {home / 'run' / 'radchat.sock'}"
    long = tmp_path / ("x" * 120)  # then a short folder of our own stands in, and is shown
    assert worst("socket", cli(long)).text.startswith(tempfile.gettempdir())


def hold(home: Path, **info: Any) -> Lock:
    lock = Lock.take(Places.from_env({"RADCHAT_HOME": str(home)}).lock)
    assert lock is not None
    fields = {"pid": 77, "started": 0.0, "build": "b", "protocol": 1, "socket": None, **info}
    lock.write(DaemonInfo(**fields))
    return lock


def test_a_lock_left_behind_is_no_trouble_and_one_that_is_held_in_silence_is(home: Path) -> None:
    assert worst("daemon", cli(home)).text.startswith("not running: ")
    hold(home).release()
    finding = worst("daemon", cli(home))
    assert (finding.status, "pid 77 ended without a word" in finding.text) == ("ok", True)
    deaf = socket.socket(socket.AF_UNIX)
    deaf.bind(str(home / "deaf"))
    deaf.listen()
    lock = hold(home, socket=str(home / "deaf"))
    try:
        finding = worst("daemon", cli(home))
    finally:
        lock.release()
        deaf.close()
    assert (finding.status, finding.remedy) == ("broken", "radchat daemon stop --force")


def test_a_daemon_of_another_build_is_told(home: Path, daemon: FakeDaemon) -> None:
    def asked() -> Cli:
        return Cli(daemon=str(daemon.path), env={"RADCHAT_HOME": str(home)})

    assert worst("daemon", asked()).status == "ok"
    daemon.script["health"] = {"state": "ready", "pid": 1, "build": "0.0+old", "protocol": 1}
    finding = worst("daemon", asked())
    assert (finding.status, finding.remedy) == ("warning", "radchat daemon restart")
    report = json.loads(
        subprocess.run(
            radchat("--daemon", str(daemon.path), "doctor", "--json"),
            env=clean_env(home),
            capture_output=True,
            check=True,
        ).stdout
    )
    assert report["daemon"]["state"] == "ready"
    assert report["daemon"]["dtype"] == "auto (default)"


def test_kv_on_disk_is_told_with_its_room_and_what_keeps_it_from_lasting(home: Path) -> None:
    sound = worst("kv", cli(home))
    assert (sound.status, "at most " in sound.text, " free" in sound.text) == ("ok", True, True)
    assert "up to 3.00 GiB in" in worst("kv", cli(home, RADCHAT_KV_DISK="3GiB")).text
    off = worst("kv", cli(home, RADCHAT_PERSIST="off"))
    assert (off.status, off.remedy) == ("note", "unset RADCHAT_PERSIST")
    private(home / "config")
    (home / "config" / "config.toml").write_text('persist = "off"\n')
    assert worst("kv", cli(home)).remedy == "radchat config unset persist"
    (home / "config" / "config.toml").unlink()
    assert worst("kv", cli(home, RADCHAT_KV_DISK="0")).status == "note"
    private(home / "cache" / "kv")
    lock = Lock.take(home / "cache" / "kv" / "lock")
    assert lock is not None
    try:
        held = worst("kv", cli(home))
    finally:
        lock.release()
    assert (held.status, held.remedy) == ("warning", "set RADCHAT_CACHE_DIR to another folder")
    assert worst("kv", cli(home)).status == "ok"


def test_a_daemon_says_itself_how_kv_on_disk_is(home: Path, daemon: FakeDaemon) -> None:
    asked = cli(home)
    asked.daemon = str(daemon.path)
    tier = {"bytes": 2**29, "budget_bytes": 2**33, "free_bytes": 2**36}
    told = {"tiers": {"disk": tier}, "persist_off": None, "disk_trouble": None}
    daemon.script["cache.stats"] = told
    assert "512.0 MiB of 8.00 GiB in " in worst("kv", asked).text
    daemon.script["cache.stats"] = {**told, "disk_trouble": "the disk is full: no KV is written"}
    assert worst("kv", asked).text == "the disk is full: no KV is written"
    daemon.script["cache.stats"] = {**told, "tiers": {}, "persist_off": "kv is another's"}
    assert (worst("kv", asked).status, worst("kv", asked).text) == ("warning", "kv is another's")


def test_a_model_that_is_named_and_not_here_is_broken_and_none_at_all_a_warning(home: Path) -> None:
    assert worst("models", cli(home)).status == "warning"
    finding = worst("models", cli(home, RADCHAT_MODEL="nowhere"))
    assert (finding.status, "nowhere" in finding.text) == ("broken", True)
    folder = private(home / "cache" / "models" / "half-12345678")
    (folder / "radchat.json").write_text("{}")
    finding = next(f for f in found("models", cli(home)) if "radchat.json" in f.text)
    assert finding.status == "warning"


def test_a_budget_above_what_is_free_is_told(home: Path) -> None:
    assert worst("memory", cli(home)).status == "ok"
    finding = worst("memory", cli(home, RADCHAT_KV_DEVICE="999TiB"))
    assert finding.status == "warning"
    assert str(finding.remedy).startswith("radchat config set kv_device ")


def test_a_budget_in_tokens_is_shown_in_tokens_and_counted_with_the_models_bytes(
    home: Path,
) -> None:
    one = cli(home, RADCHAT_KV_DEVICE="4096tok")
    assert "KV may take 4,096 tokens" in worst("memory", one).text
    assert "GiB" not in worst("memory", one).text.partition("KV")[2]
    folder = converted(home / "cache" / "models", "tiny")
    (entry,) = list_models(one.places)
    with_model = worst("memory", one)
    assert with_model.status == "ok"
    of_each = needs(folder, "fp32", Size(tokens=16)).kv // 16
    assert fit.kv_token_bytes(entry) == of_each
    assert fit.kv_token_bytes(entry, "bf16") == of_each // 2
    assert f"4,096 tokens, with tiny up to {size(4096 * of_each)}, tiny " in with_model.text
    assert worst("memory", cli(home, RADCHAT_KV_DEVICE="999999999999tok")).status == "warning"
    done = doctor(home, "--json", RADCHAT_KV_DEVICE="4096tok")
    assert json.loads(done.stdout)["defaults"]["kv_device"].startswith("4,096 tokens")


def test_the_hub_is_asked_only_when_told_and_a_deaf_one_is_broken(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    nowhere = f"http://127.0.0.1:{port}"
    names = [f.name for f in checks.run(cli(home, HF_ENDPOINT=nowhere))]
    assert "hub" not in names
    asked = [f for f in checks.run(cli(home, HF_ENDPOINT=nowhere), online=True) if f.name == "hub"]
    assert [f.status for f in asked] == ["broken"]
    offline = [f for f in checks.run(cli(home, HF_HUB_OFFLINE="1"), online=True) if f.name == "hub"]
    assert [f.status for f in offline] == ["note"]


def test_which_sandbox_works_is_said_and_what_it_cannot_do(home: Path, tmp_path: Path) -> None:
    (finding,) = found("sandbox", cli(home))
    if landlock.version() >= landlock.LEAST:
        assert finding.status == "note"
        assert "bubblewrap is not installed" in finding.text
        assert "names of files can be listed" in finding.text
    else:
        assert finding.status == "warning"
        assert "--no-sandbox" in finding.text
    assert "apt install bubblewrap" in str(finding.remedy)
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no permission\nexit 1\n")
    broken.chmod(0o755)
    (finding,) = found("sandbox", cli(home, PATH=str(tmp_path)))
    assert "bubblewrap does not work here: no permission" in finding.text
    if bwrap := shutil.which("bwrap"):
        (finding,) = found("sandbox", cli(home, PATH=str(Path(bwrap).parent)))
        assert (finding.status, finding.text) == ("ok", "bubblewrap works here")


def test_it_imports_nothing_heavy_unless_asked(home: Path) -> None:
    code = (
        "import sys, radchat.__main__ as m; sys.argv = ['radchat', 'doctor']\n"
        "try: m.main()\n"
        "except SystemExit: print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_env(home),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stderr.split())
    assert "radchat.cli.checks" in loaded
    heavy = {
        "torch",
        "transformers",
        "numpy",
        "pydantic",
        "prompt_toolkit",
        "rich",
        "radchat.engine",
    }
    assert not loaded & heavy
