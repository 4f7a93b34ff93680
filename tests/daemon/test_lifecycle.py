"""One daemon a home, whatever happens to it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from radchat import __version__
from radchat.client import Client
from radchat.daemon.awake import awake_time
from radchat.daemon.lock import DaemonInfo, Lock, is_held, read_info
from radchat.daemon.starting import log_tail
from radchat.daemon.unix_socket import bind
from radchat.errors import Busy, ConfigInvalid, RadchatError, Unreachable
from radchat.paths import Places
from radchat.protocol import PROTOCOL
from radchat.stop import stop_daemon
from tests.daemon.conftest import Home, build_of, copy_sources, finish
from tests.waiting import alive, wait_until

INFO = DaemonInfo(1, 2.0, "b", PROTOCOL, "/s")


def first_commands(home: Home, count: int) -> None:
    processes = [home.command() for _ in range(count)]
    results = [finish(process) for process in processes]
    assert [code for code, _, _ in results] == [0] * count, results
    pids = {body["answer"]["sessions"][0]["pid"] for _, body, _ in results}
    assert len(pids) == 1
    wait_until(lambda: [pid for pid in home.started() if alive(pid)] == list(pids))


# -- the lock --------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one_and_free_when_its_process_dies(home: Home) -> None:
    lock = Lock.take(home.places.lock)
    assert lock is not None
    assert home.held
    assert Lock.take(home.places.lock) is None
    lock.release()
    assert not home.held


def test_a_lock_whose_file_was_removed_is_no_longer_intact(home: Home) -> None:
    lock = Lock.take(home.places.lock)
    assert lock is not None
    assert lock.intact()
    home.places.lock.unlink()
    assert not lock.intact()
    other = Lock.take(home.places.lock)
    assert other is not None
    assert other.intact()
    lock.release()
    other.release()


def test_the_lock_file_is_private_and_a_shorter_text_leaves_nothing_of_a_longer(home: Home) -> None:
    lock = Lock.take(home.places.lock)
    assert lock is not None
    lock.write(replace(INFO, socket="/a/much/longer/path"))
    lock.write(INFO)
    assert read_info(home.places.lock) == INFO
    assert stat.S_IMODE(home.places.lock.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.places.data.stat().st_mode) == 0o700
    lock.write(None)
    assert read_info(home.places.lock) is None
    lock.release()


@pytest.mark.parametrize("text", ["", "123", "[]", "null", '{"pid": 1}', "{", "\x00"])
def test_a_lock_file_of_other_content_is_read_as_nothing(home: Home, text: str) -> None:
    home.places.lock.parent.mkdir(parents=True)
    home.places.lock.write_text(text)
    assert read_info(home.places.lock) is None


def test_the_time_awake_goes_on_and_counts_no_sleep() -> None:
    before = awake_time()
    time.sleep(0.01)
    assert awake_time() > before
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    if boot is not None:  # the same less what the machine has slept
        assert awake_time() <= time.clock_gettime(boot) + 1e-3


# -- the socket ------------------------------------------------------------------------------------


def test_the_socket_is_0600_in_a_folder_of_0700_and_listens(home: Home) -> None:
    with bind(home.places) as listener:
        path = Path(listener.getsockname())
        assert path == home.root / "run" / "radchat.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))


def test_a_socket_that_refuses_is_replaced(home: Home) -> None:
    bind(home.places).close()
    with bind(home.places) as listener:
        assert listener.getsockname() == str(home.root / "run" / "radchat.sock")


def test_what_is_no_stale_socket_is_left_alone_and_another_place_found(home: Home) -> None:
    path = home.root / "run" / "radchat.sock"
    path.parent.mkdir(mode=0o700)
    path.write_text("mine")
    with bind(home.places) as listener:
        other = Path(listener.getsockname())
        assert other != path
        assert path.read_text() == "mine"
        with pytest.raises(Busy, match="is in the way and is no socket"):
            bind(home.places)
    other.unlink()


def test_a_socket_that_somebody_listens_at_is_named_when_no_place_is_left(home: Home) -> None:
    places = replace(home.places, run=None)
    with bind(places) as listener:
        path = Path(listener.getsockname())
        with pytest.raises(Busy, match=f"another program listens at {path}"):
            bind(places)
    path.unlink()


def test_a_home_with_a_path_over_100_bytes_gets_a_short_socket(home: Home) -> None:
    long = home.root / ("x" * 60) / ("y" * 60)
    home.env["RADCHAT_HOME"] = str(long)
    client = home.client()
    path = Path(home.info.socket or "")
    assert len(os.fsencode(path)) <= 100
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert client.call("sessions.list")["sessions"][0]["pid"] == home.info.pid
    assert stop_daemon(home.places)
    assert not path.exists()


# -- starting --------------------------------------------------------------------------------------


def test_ten_first_commands_at_once_start_one_daemon(home: Home) -> None:
    first_commands(home, 10)


@pytest.mark.slow
@pytest.mark.parametrize("time_of_twenty", range(20))
def test_ten_first_commands_at_once_start_one_daemon_again(home: Home, time_of_twenty: int) -> None:
    first_commands(home, 10)


def test_daemons_started_by_hand_at_once_leave_one(home: Home) -> None:
    processes = [home.daemon(wait=False) for _ in range(3)]
    wait_until(lambda: sum(p.poll() is None for p in processes) == 1)
    losers = [p for p in processes if p.poll() is not None]
    for loser in losers:
        assert loser.wait() == Busy.exit_code
    assert home.client().health["pid"] == home.info.pid


def test_a_second_daemon_names_the_first_and_the_first_keeps_its_socket(home: Home) -> None:
    pid = home.client().health["pid"]
    before = Path(home.info.socket or "").stat().st_ino
    second = home.daemon(wait=False)
    _, err = second.communicate(timeout=60)
    assert second.returncode == Busy.exit_code
    assert err == f"error: a daemon (pid {pid}) already runs for {home.places.data}\n"
    assert Path(home.info.socket or "").stat().st_ino == before
    assert home.status()["pid"] == pid


def test_the_daemon_runs_in_its_own_session_and_in_the_state_folder(home: Home) -> None:
    pid = home.client().health["pid"]
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/cwd").readlink() == home.places.state
    assert Path(f"/proc/{pid}/fd/0").readlink() == Path(os.devnull)
    assert Path(f"/proc/{pid}/fd/2").readlink() == home.places.log
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"RADCHAT_NO_DAEMON" not in environ


def test_a_daemon_that_dies_at_the_start_is_explained_by_its_last_words(home: Home) -> None:
    command = (sys.executable, "-P", "-c", "raise SystemExit('no such luck')")
    home.places.log.parent.mkdir(parents=True)
    home.places.log.write_text("an older line\n")
    with pytest.raises(Unreachable, match=r"(?s)did not start.*no such luck.*daemon\.log") as error:
        Client.connect(home.places, command=command)
    assert "an older line" not in error.value.message


def test_a_daemon_that_can_say_why_it_does_not_start_says_it_to_the_client(home: Home) -> None:
    home.places.config_file.parent.mkdir(parents=True)
    home.places.config_file.write_text("modle = 'x'\n")
    with pytest.raises(ConfigInvalid, match="unknown setting 'modle'"):
        home.client()
    assert not home.held


def test_a_service_that_does_not_start_tells_whoever_asks_and_the_daemon_ends(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADCHAT_FAKE_START", "refuse")
    client = home.client()
    with pytest.raises(RadchatError, match="this database is newer"):
        client.call("sessions.list")
    wait_until(lambda: not home.held)
    assert "the service did not start" in home.log()


def test_the_daemon_answers_while_its_service_still_starts(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADCHAT_FAKE_START", "slow")
    client = home.client()
    assert client.health["state"] == "starting"
    assert client.call("status")["state"] == "starting"
    assert client.call("cancel", request="r") == {"cancelled": False}
    assert client.call("sessions.list")["sessions"]  # waits
    assert client.call("status")["state"] == "ready"


# -- dying -----------------------------------------------------------------------------------------


def test_after_kill_9_the_next_command_starts_a_daemon(home: Home) -> None:
    client = home.client()
    pid = client.health["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not home.held)
    assert Path(home.info.socket or "").exists()  # stale
    assert client.call("sessions.list")["sessions"][0]["pid"] != pid
    assert not alive(pid)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_pid_in_a_stale_file_that_now_is_another_process_is_never_signalled(
    home: Home, bystander: subprocess.Popen[bytes]
) -> None:
    home.client()
    info = home.info
    os.kill(info.pid, signal.SIGKILL)
    wait_until(lambda: not home.held)
    body = {**json.loads(home.places.lock.read_text()), "pid": bystander.pid}
    home.places.lock.write_text(json.dumps(body))
    assert not stop_daemon(home.places, force=True)
    assert bystander.poll() is None
    assert home.client().health["pid"] not in (bystander.pid, info.pid)
    assert stop_daemon(home.places, force=True)
    assert bystander.poll() is None


def test_stop_means_stop_and_a_second_stop_finds_nothing(home: Home) -> None:
    client = home.client()
    pid, path = client.health["pid"], Path(home.info.socket or "")
    assert stop_daemon(home.places)
    assert not alive(pid)
    assert not path.exists()
    assert (home.places.data / "closed").exists()
    assert read_info(home.places.lock) is None
    assert not stop_daemon(home.places)
    assert home.started() == [pid]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_in_order_with_exit_0(home: Home, number: signal.Signals) -> None:
    process = home.daemon()
    path = Path(home.info.socket or "")
    home.client().call("sessions.list")
    process.send_signal(number)
    assert process.wait(timeout=60) == 0
    assert not path.exists()
    assert (home.places.data / "closed").exists()


def test_a_second_signal_ends_it_at_once(home: Home) -> None:
    process = home.daemon()
    with home.client().stream("generate", text="hang") as events:
        next(events)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: home.log().count("ended") or not Path(home.info.socket or "").exists())
        assert process.poll() is None  # it waits for the answer in progress
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM  # 0 had it waited for the answer


def test_stop_lets_a_short_answer_end_and_refuses_new_ones(home: Home) -> None:
    client = home.client()
    with client.stream("generate", text="slow 25") as events:
        next(events)
        client.call("stop")
        assert client.health["pid"] == home.info.pid
        names = [event.name for event in events]
    assert names == ["delta"] * 25 + ["done"]
    wait_until(lambda: not home.held)


def test_a_daemon_that_takes_its_time_to_stop_makes_no_new_socket(home: Home) -> None:
    client = home.client()
    socket = Path(home.info.socket or "")
    with client.stream("generate", text="slow 80") as events:  # more than a look at the socket
        next(events)
        client.call("stop")
        for _ in events:
            assert not socket.exists()
    wait_until(lambda: not home.held)
    assert not socket.exists()
    assert "was removed" not in home.log()


def test_forced_stop_cuts_an_answer_with_a_word(home: Home) -> None:
    client = home.client()
    with client.stream("generate", text="hang") as events:
        next(events)
        assert client.call("stop", force=True) == {"stopped": True}
        with pytest.raises(Busy, match="the daemon is stopping"):
            next(events)
    wait_until(lambda: not home.held)


def test_forced_stop_kills_a_daemon_that_hangs(home: Home) -> None:
    pid = home.client().health["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert stop_daemon(home.places, force=True)
    assert not alive(pid)


def test_sighup_reopens_the_log(home: Home) -> None:
    process = home.daemon()
    home.client()
    home.places.log.rename(home.places.log.with_suffix(".old"))
    process.send_signal(signal.SIGHUP)
    wait_until(home.places.log.exists)
    assert stat.S_IMODE(home.places.log.stat().st_mode) == 0o600
    process.terminate()
    process.wait(timeout=60)
    assert "ended" in home.log()


def test_an_idle_daemon_ends_by_itself_and_a_waiting_client_gets_the_next(home: Home) -> None:
    home.env["RADCHAT_IDLE_EXIT"] = "0"
    process = home.daemon()
    client = home.client()
    first = home.info.pid
    with client.stream("generate", text="slow 120") as events:  # 2.4 s: not idle
        assert [event.name for event in events][-1] == "done"
    assert process.wait(timeout=60) == 0
    assert client.call("sessions.list")["sessions"][0]["pid"] != first


# -- things removed under a live daemon ------------------------------------------------------------


def test_a_runtime_folder_removed_under_a_live_daemon_is_made_again(home: Home) -> None:
    client = home.client()
    pid = client.health["pid"]
    shutil.rmtree(home.root / "run")
    fresh = home.client()
    assert fresh.call("sessions.list")["sessions"][0]["pid"] == pid
    assert client.call("sessions.list")["sessions"][0]["pid"] == pid
    assert home.started() == [pid]


def test_a_daemon_whose_home_was_removed_ends(home: Home) -> None:
    pid = home.client().health["pid"]
    home.places.lock.unlink()
    wait_until(lambda: not alive(pid), seconds=5)
    assert "was removed" in home.log()


@pytest.mark.parametrize("daemon_has_it", [True, False])
def test_one_home_is_one_daemon_with_and_without_a_runtime_folder(
    home: Home, daemon_has_it: bool
) -> None:
    del home.env["RADCHAT_HOME"]
    for name in ("config", "data", "state", "cache"):
        home.env[f"XDG_{name.upper()}_HOME"] = str(home.root / name)
    os.environ.pop("RADCHAT_HOME")
    with_it = {"XDG_RUNTIME_DIR": str(home.root / "rt")}
    starter, other = (with_it, {}) if daemon_has_it else ({}, with_it)
    code, body, err = finish(home.command(**starter))
    assert code == 0, err
    home.env |= {f"RADCHAT_{n}_DIR": str(home.root / n.lower() / "radchat") for n in ("DATA",)}
    pid = body["health"]["pid"]
    assert finish(home.command(**other))[1]["health"]["pid"] == pid
    assert finish(home.command(**starter))[1]["health"]["pid"] == pid
    path = Path(home.info.socket or "")
    assert path.is_relative_to(home.root / "rt") == daemon_has_it
    stop_daemon(home.places)


def test_an_unusable_runtime_folder_is_gone_around(home: Home) -> None:
    (home.root / "run").write_text("a file")
    with bind(home.places) as listener:
        path = Path(listener.getsockname())
        assert path.parent == Path(tempfile.gettempdir()) / f"radchat-{os.getuid()}"
    path.unlink()


def test_two_homes_that_share_a_runtime_folder_get_two_daemons(home: Home) -> None:
    one = home.client()
    home.env["RADCHAT_DATA_DIR"] = str(home.root / "data2")
    two = home.client()
    assert one.health["pid"] != two.health["pid"]
    assert one.call("sessions.list")["sessions"][0]["pid"] == one.health["pid"]
    assert stop_daemon(home.places)
    del home.env["RADCHAT_DATA_DIR"]
    assert one.call("sessions.list")["sessions"][0]["pid"] == one.health["pid"]


# -- the log ---------------------------------------------------------------------------------------


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "l"
    log.write_text("".join(f"{i}\n" for i in range(100_000)))
    assert log_tail(log, 2) == ["99998", "99999"]
    assert log_tail(log, 0) == []
    assert log_tail(tmp_path / "none", 5) == []
    size = log.stat().st_size
    with log.open("a") as file:
        file.write("new\n")
    assert log_tail(log, 10, since=size) == ["new"]


def test_asking_whether_a_lock_is_held_makes_no_file(home: Home) -> None:
    assert not is_held(home.places.lock)
    assert list(home.root.iterdir()) == []
    with contextlib.suppress(Unreachable):
        Client.connect(home.places, start=False)
    assert list(home.root.iterdir()) == []


def test_the_build_names_the_release_and_changes_with_a_file(tmp_path: Path) -> None:
    path = copy_sources(tmp_path)
    before = build_of(path)
    assert before.startswith(f"{__version__}+")
    assert build_of(path) == before
    (tmp_path / "radchat_kernels" / "new.py").touch()
    assert build_of(path) != before


def test_a_child_in_another_folder_finds_the_same_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/tmp")
    for env in (
        {"RADCHAT_HOME": "there", "RADCHAT_CONFIG": "c.toml"},
        {"HOME": "/h", "XDG_RUNTIME_DIR": "/r"},
        {"HOME": "/h"},
    ):
        places = Places.from_env(env)
        monkeypatch.chdir("/")
        assert Places.from_env({"HOME": "/h", **places.environ()}) == places
