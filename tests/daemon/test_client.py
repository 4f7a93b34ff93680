"""The terminal side's door: found, started, replaced, private, cancelled."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from radchat.cli.daemon import followed
from radchat.daemon.lock import Lock
from radchat.daemon.starting import log_tail
from radchat.errors import Busy, Unreachable
from radchat.protocol import build_id
from radchat.stop import stop_daemon
from radchat.whereabouts import where
from radchat.wire import Chunks
from tests.daemon.conftest import FAKE, HERE, Home, copy_sources, finish
from tests.waiting import alive, wait_until

# -- light -----------------------------------------------------------------------------------------


def test_asking_the_daemon_imports_nothing_heavy(home: Home) -> None:
    pid = home.client().health["pid"]
    code = (
        "import sys; sys.argv = ['', 'sessions.list']; sys.path.insert(0, sys.orig_argv[-1]);"
        "import fake_client; fake_client.main(); print(sorted(sys.modules), file=sys.stderr)"
    )
    status, body, err = finish(home.popen(sys.executable, "-P", "-c", code, str(HERE)))
    assert (status, body["health"]["pid"]) == (0, pid)
    loaded = set(re.findall(r"'([a-z_0-9.]+)'", err))
    assert "radchat.client" in loaded
    heavy = {"torch", "transformers", "numpy", "pydantic", "starlette", "uvicorn", "asyncio"}
    assert not loaded & (heavy | {"http.client", "subprocess", "logging", "sqlite3", "rich"})


# -- finding ---------------------------------------------------------------------------------------


def test_without_a_daemon_and_not_to_start_one_it_is_unreachable(home: Home) -> None:
    with pytest.raises(Unreachable, match="no daemon is running") as error:
        home.client(start=False)
    assert error.value.exit_code == 69
    assert home.started() == []


def test_a_named_socket_is_used_as_it_is(home: Home, tmp_path: Path) -> None:
    pid = home.client().health["pid"]
    named = home.client(daemon_socket=Path(home.info.socket or ""))
    assert named.call("status")["pid"] == pid
    with pytest.raises(Unreachable, match=r"no daemon answers at .*/none"):
        home.client(daemon_socket=tmp_path / "none")
    stop_daemon(home.places)
    with pytest.raises(Unreachable, match="no daemon answers at"):
        named.call("status")
    assert home.started() == [pid]


def test_a_client_finds_the_next_daemon_when_the_first_was_stopped(home: Home) -> None:
    client = home.client()
    first = client.call("sessions.list")["sessions"][0]["pid"]
    stop_daemon(home.places)
    assert client.call("sessions.list")["sessions"][0]["pid"] != first


def test_a_client_of_a_daemon_that_stops_meanwhile_waits_for_the_next(home: Home) -> None:
    client = home.client()
    first = client.health["pid"]
    with client.stream("generate", text="slow 20") as events:
        next(events)
        client.call("stop")
        assert client.call("sessions.list")["sessions"][0]["pid"] != first
        assert [event.name for event in events][-1] == "done"


def test_a_daemon_that_dies_in_the_middle_is_said_and_nothing_is_asked_again(home: Home) -> None:
    client = home.client()
    pid = client.health["pid"]
    with client.stream("generate", text="hang") as events:
        next(events)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Unreachable, match="ended in the middle of the answer") as error:
            next(events)
    assert error.value.exit_code == 69
    assert home.started() == [pid]


def test_a_holder_of_the_lock_that_never_listens_is_named_in_time(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radchat.client.PATIENCE", 0.2)
    lock = Lock.take(home.places.lock)
    assert lock is not None
    waits: list[str] = []
    with pytest.raises(Unreachable, match="holds its lock but doesn't answer"):
        home.client(on_wait=waits.append)
    lock.release()
    assert waits


def test_who_asks_is_a_tmux_pane_a_terminal_or_a_script_and_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMUX_PANE", "%7")
    monkeypatch.delenv("TMUX", raising=False)
    assert where() == {"terminal": "%7", "folder": str(tmp_path)}
    panes = set()
    for server in (
        "/tmp/tmux-0/default,41,0",
        "/tmp/tmux-0/other,42,0",
        "/tmp/tmux-0/default,41,3",
    ):
        monkeypatch.setenv("TMUX", server)  # each server begins with pane %0
        panes.add(where()["terminal"])
    assert len(panes) == 2
    monkeypatch.delenv("TMUX_PANE")
    code = "import json; from radchat.whereabouts import where; print(json.dumps(where()))"
    environ = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    primary, secondary = os.openpty()
    out = subprocess.run(
        [sys.executable, "-c", code], stdin=secondary, capture_output=True, env=environ, check=True
    )
    here = json.loads(out.stdout)["terminal"]
    assert here == f"{os.ttyname(secondary)} sid:{os.getsid(0)}"
    again = subprocess.run(  # the next window gets the number of one that was closed
        [sys.executable, "-c", code],
        stdin=secondary,
        capture_output=True,
        env=environ,
        check=True,
        start_new_session=True,
    )
    assert json.loads(again.stdout)["terminal"] != here
    os.close(primary)
    os.close(secondary)
    out = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environ,
        check=True,
    )
    script = f"sid:{os.getsid(0)}"  # no terminal: what runs in one login session or one script
    assert json.loads(out.stdout) == {"terminal": script, "folder": str(tmp_path)}


def test_a_folder_removed_under_us_is_no_error(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = home.root / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("PWD", str(gone))
    assert where()["folder"] == str(gone)
    monkeypatch.undo()


# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_closed_by_another_thread_just_ends(home: Home) -> None:
    client = home.client()
    events = client.stream("generate", text="hang")
    names: list[str] = []
    reader = threading.Thread(target=lambda: names.extend(e.name for e in events))
    reader.start()
    wait_until(lambda: names == ["init"])
    events.close()
    reader.join(timeout=30)  # "hang" would say nothing for ever
    assert not reader.is_alive()
    assert names == ["init"]
    wait_until(lambda: home.status()["cancelled"] == 1)


def test_an_interrupted_read_can_be_taken_up_again(home: Home) -> None:
    client = home.client()
    texts: list[str] = []
    interrupted = 0
    previous = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.013, 0.013)
    try:
        with client.stream("generate", text="slow 40") as events:
            while True:
                try:
                    event = next(events)
                except KeyboardInterrupt:
                    interrupted += 1
                    continue
                texts.append(event.data.get("text", ""))
                if event.name == "done":
                    break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert interrupted > 0  # how often is the clock's business
    assert texts[1:-1] == [f"{i} " for i in range(40)]


def _interrupt(_number: int, frame: Any) -> None:
    """As Ctrl+C while the stream waits; between two lines of Python it can meet anything."""
    if frame is not None and frame.f_code.co_name == "_wait_for_data":
        raise KeyboardInterrupt


def test_a_stream_that_is_dropped_is_cancelled(home: Home) -> None:
    events = home.client().stream("generate", text="hang")
    next(events)
    del events
    wait_until(lambda: home.status()["cancelled"] == 1)


@pytest.mark.parametrize("cut", range(1, 12))
def test_chunks_are_read_whatever_the_pieces_they_arrive_in(cut: int) -> None:
    raw = b"5\r\nhello\r\nC\r\n and goodbye\r\n0\r\n\r\n"
    chunks = Chunks()
    pieces = [raw[i : i + cut] for i in range(0, len(raw), cut)]
    assert b"".join(chunks.feed(piece) for piece in pieces) == b"hello and goodbye"
    assert chunks.done


# -- another build ---------------------------------------------------------------------------------


@pytest.fixture
def other_build(tmp_path: Path) -> str:
    """The same code with another time stamp: a new release, as far as the handshake knows."""
    path = copy_sources(tmp_path)
    os.utime(tmp_path / "radchat" / "errors.py", (1e9, 1e9))
    return path


def test_an_idle_daemon_of_another_build_is_replaced_with_one_line(
    home: Home, other_build: str
) -> None:
    code, old, err = finish(home.command(PYTHONPATH=other_build))
    assert (code, err) == (0, "")
    notices: list[str] = []
    client = home.client(on_notice=notices.append)
    assert old["health"]["build"] != build_id() == client.health["build"]
    assert notices == [
        f"the daemon was of another build ({old['health']['build']}): replaced by {build_id()}"
    ]
    assert not alive(old["health"]["pid"])
    assert client.call("sessions.list")["sessions"][0]["pid"] == client.health["pid"]


def test_a_busy_daemon_of_another_build_is_kept_and_that_is_said(
    home: Home, other_build: str
) -> None:
    client = home.client()
    with client.stream("generate", text="hang") as events:
        next(events)
        code, body, err = finish(home.command(PYTHONPATH=other_build))
    assert (code, body["health"]["pid"]) == (0, client.health["pid"])
    assert err.count("\n") == 1
    assert "busy: kept" in err


# -- private daemons -------------------------------------------------------------------------------


def test_a_private_daemon_ends_with_its_command(home: Home) -> None:
    for _ in range(2):  # one after the other: the home is free when the command has ended
        process = home.command("status", RADCHAT_NO_DAEMON="1")
        code, body, err = finish(process)
        assert (code, err) == (0, "")
        assert body["answer"]["private"]
        assert not home.held
        assert not alive(body["health"]["pid"])
    assert len(set(home.started())) == 2


def test_a_private_daemon_ends_when_its_command_is_killed(home: Home) -> None:
    process = home.command("status", "--stay", RADCHAT_NO_DAEMON="1")
    assert process.stdout is not None
    pid = json.loads(process.stdout.readline())["health"]["pid"]
    process.kill()
    wait_until(lambda: not alive(pid))
    assert not home.held


def test_a_private_daemon_has_its_own_socket_and_keeps_others_out(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radchat.client.PRIVATE_PATIENCE", 0.1)
    process = home.command("status", "--stay", RADCHAT_NO_DAEMON="1")
    assert process.stdout is not None
    answer = json.loads(process.stdout.readline())["answer"]
    assert answer["socket"] == str(home.root / "run" / f"p{answer['pid']}.sock")
    with pytest.raises(Busy, match=f"its daemon is pid {answer['pid']}") as error:
        home.client()
    assert error.value.exit_code == 75
    process.communicate("", timeout=60)
    assert home.client().health["pid"] != answer["pid"]


def test_no_daemon_beside_a_daemon_is_busy(home: Home) -> None:
    pid = home.client().health["pid"]
    code, body, _ = finish(home.command(RADCHAT_NO_DAEMON="1"))
    assert code == 75
    assert f"(pid {pid})" in body["error"]["message"]
    assert home.status()["pid"] == pid


# -- the command line ------------------------------------------------------------------------------


def radchat(home: Home, *words: str) -> tuple[int, str, str]:
    process = home.popen(sys.executable, "-P", str(HERE / "fake_radchat.py"), *words)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_the_daemon_commands_from_start_to_a_second_stop(home: Home) -> None:
    assert radchat(home, "daemon", "status") == (0, "not running\n", "")
    code, out, _ = radchat(home, "daemon", "status", "--json")
    status = json.loads(out)
    assert (code, status.pop("state")) == (0, "stopped")
    assert "pid" in status
    assert set(status.values()) == {None}
    assert home.started() == []
    code, out, err = radchat(home, "daemon", "start")
    pid = home.info.pid
    assert (code, out, err) == (0, "", f"started, pid {pid}\n")
    assert radchat(home, "daemon", "start") == (0, "", f"already running, pid {pid}\n")
    code, out, _ = radchat(home, "daemon", "status")
    assert code == 0
    assert re.search(rf"^pid +{pid}, up \d+ s$", out, re.MULTILINE)
    assert str(home.places.log) in out
    code, out, _ = radchat(home, "--json", "daemon", "status")
    assert {"state": "ready", "pid": pid, "build": build_id()}.items() <= json.loads(out).items()
    code, _, err = radchat(home, "daemon", "restart")
    assert (code, err) == (0, f"started, pid {home.info.pid}\n")
    assert home.info.pid != pid
    assert radchat(home, "daemon", "stop") == (0, "", "stopped\n")
    assert radchat(home, "daemon", "stop") == (0, "", "not running\n")
    assert radchat(home, "daemon", "stop", "--force") == (0, "", "not running\n")
    assert len(home.started()) == 2


def bytes_read(pid: int) -> int:
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])  # "rchar: N"


def test_what_is_written_while_the_log_is_shown_is_followed(tmp_path: Path) -> None:
    """Between the last lines and the first look there was a moment in which a line was lost."""
    log = tmp_path / "daemon.log"
    log.write_text("old\n")
    here = (log.stat().st_ino, log.stat().st_size)
    with log.open("a") as file:
        file.write("meanwhile\n")
    assert log_tail(log, 5, until=here[1]) == ["old"]
    assert next(followed(log, here)) == "meanwhile"


def test_the_log_is_shown_and_followed(home: Home) -> None:
    assert radchat(home, "daemon", "logs")[0] == 66
    home.client()
    code, out, _ = radchat(home, "daemon", "logs", "-n", "1")
    assert (code, out.count("\n")) == (0, 1)
    assert "listening at" in out
    following = home.popen(
        sys.executable, "-P", str(HERE / "fake_radchat.py"), "daemon", "logs", "-f", "-n", "1"
    )
    assert following.stdout is not None
    assert "listening at" in following.stdout.readline()
    half = "half a \x1b[31mline"
    with home.places.log.open("a") as file:
        before = bytes_read(following.pid)
        file.write(half)
        file.flush()
        wait_until(lambda: bytes_read(following.pid) >= before + len(half))
        file.write(" and the rest\n")
    assert following.stdout.readline() == "half a \\x1b[31mline and the rest\n"
    home.places.log.rename(home.places.log.with_suffix(".1"))
    home.places.log.write_text("a new file\n")
    assert following.stdout.readline() == "a new file\n"
    following.send_signal(signal.SIGINT)
    assert following.wait(timeout=60) == 130
    assert following.stderr is not None
    assert following.stderr.read() == ""


def test_the_daemon_in_the_foreground_logs_to_the_terminal_too(home: Home) -> None:
    process = home.popen(
        sys.executable, "-P", str(HERE / "fake_radchat.py"), "daemon", "start", "--foreground"
    )
    path = Path(home.info.socket or "")
    assert process.stderr is not None
    assert f"listening at {path}" in process.stderr.readline()
    assert "listening at" in home.log()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0


def test_the_fake_daemon_is_started_as_the_true_one_is() -> None:
    from radchat.daemon.starting import COMMAND

    assert COMMAND[2:] == ("-m", "radchat", "daemon", "start", "--foreground")
    assert FAKE[:2] == COMMAND[:2] == (sys.executable, "-P")
