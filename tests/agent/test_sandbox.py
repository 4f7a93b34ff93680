"""Commands in a sandbox end, whole and in time, and what they say is kept (AG-02, 03, 06, 09)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from radchat.agent.sandbox import choosing, policy, temporary
from radchat.agent.sandbox import filter as seccomp
from radchat.agent.sandbox.policy import Bounds, Kind, private
from radchat.agent.sandbox.runner import CannotRun, SandboxRunner
from radchat.agent.sandbox.tools import outcome_of
from radchat.errors import ConfigInvalid
from radchat.paths import Places
from tests.agent.sandboxes import BWRAP, EVERY, KINDS, Place, run, running
from tests.waiting import wait_until

SOON_S = 5.0  # far less than what would have to be waited for, on a machine that is busy


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def unique() -> str:
    """For ``sleep``: half a minute, by a number that no other process has."""
    return f"30.{time.monotonic_ns()}"


# -- the end of all of it --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
def test_what_is_left_behind_is_ended(place: Place, kind: Kind) -> None:
    """AG-02: with the pipe or without, in a session of its own or not."""
    number = unique()
    ways = (f"sleep {number} &", f"setsid sleep {number} &", f"sleep {number} >/dev/null 2>&1 &",
            f"(setsid sh -c 'trap \"\" TERM HUP; sleep {number} & sleep {number}' &)")  # fmt: skip
    with place.runner(kind) as runner:
        for way, num in zip(ways, (1, 1, 1, 3), strict=True):
            ran = run(runner, f"{way}\necho done")
            assert ran.code == 0
            assert (ran.head, ran.left_behind) == (b"done\n", num), way
            assert ran.seconds < SOON_S
            assert not running(number)
    assert "left running and ended" in outcome_of(ran, 9).text


@pytest.mark.parametrize("kind", EVERY)
def test_a_limit_of_time_ends_the_whole_tree(place: Place, kind: Kind) -> None:
    """AG-03: a pipeline with grandchildren, some of which ignore SIGTERM."""
    number = unique()
    command = f"""echo begun; trap 'echo asked' TERM
        (trap '' TERM; setsid sleep {number} & sleep {number}) | cat & cat /dev/zero >/dev/null &
        while :; do sleep {number}; done"""
    ran = place.run(kind, command, 0.5)
    assert ran.timed_out
    assert not running(number)
    assert ran.head.startswith(b"begun\n")
    assert ran.seconds < SOON_S
    told = outcome_of(ran, 0.5)
    assert told.status == "timeout"
    assert told.text.startswith(
        "[it took more than 0.5 s and was ended, with all it had started]\n"
    )


@pytest.mark.parametrize("kind", EVERY)
def test_cancelled_it_ends_at_once(place: Place, kind: Kind) -> None:
    number = unique()
    cancel = threading.Event()
    with place.runner(kind) as runner:
        ran = runner.run(
            ["sh", "-c", f"echo begun; sleep {number}"],
            cwd=place.workspace,
            timeout_s=60,
            cancel=cancel,
            on_output=lambda _data: cancel.set(),
        )
    assert ran.cancelled
    assert ran.seconds < SOON_S
    assert not running(number)
    assert outcome_of(ran, 60).status == "interrupted"


AGENT = """
import sys, threading
from pathlib import Path
from radchat.agent.sandbox.runner import SandboxRunner
runner = SandboxRunner(sys.argv[1], Path(sys.argv[2]), (), {"PATH": sys.argv[4]})
runner.run(["sh", "-c", f"setsid sleep {sys.argv[3]} & sleep {sys.argv[3]}"], cwd=Path(sys.argv[2]),
           timeout_s=60, cancel=threading.Event())
"""


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_the_agent(place: Place, kind: Kind, how: signal.Signals) -> None:
    number = unique()
    words = [sys.executable, "-c", AGENT, kind, str(place.workspace), number, os.environ["PATH"]]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as agent:
        wait_until(lambda: len(running(number)) >= 2)
        agent.send_signal(how)
    wait_until(lambda: not running(number))


@pytest.mark.parametrize("kind", EVERY)
def test_a_command_that_kills_its_parent(place: Place, kind: Kind) -> None:
    number = unique()
    with place.runner(kind) as runner:
        command = f"setsid sleep {number} & sleep {number} & kill -9 $PPID; echo on; exit 3"
        if kind == "none":
            with pytest.raises(CannotRun, match="its own supervisor"):
                run(runner, command)
        else:
            assert run(runner, command).code == 3
        assert run(runner, "echo lives").head == b"lives\n"
    if kind != "none":  # without a sandbox, what left its session is out of reach
        assert not running(number)
    for pid in running(number):
        os.kill(pid, signal.SIGKILL)


# -- bounds ----------------------------------------------------------------------------------------

FORKS = "import os, time\nfor _ in range(150):\n    if not os.fork(): time.sleep(30); os._exit(0)"


@pytest.mark.parametrize("kind", EVERY)
def test_processes_are_bounded(place: Place, kind: Kind) -> None:
    """By the kernel for a user; root is counted."""
    (place.workspace / "forks.py").write_text(f"{FORKS}\ntime.sleep(30)")
    command = f"{sys.executable} -I -S forks.py"
    ran = place.run(kind, command, bounds=Bounds(processes=50))
    assert ran.too_many or b"Resource temporarily unavailable" in ran.head, ran
    assert ran.seconds < SOON_S
    if ran.too_many:
        assert "too many processes" in outcome_of(ran, 9).text


@pytest.mark.parametrize("kind", EVERY)
def test_where_memory_ends_the_command_goes_first(place: Place, kind: Kind) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    ran = place.run(kind, "ulimit -c; exec cat /proc/self/oom_score_adj")
    assert ran.head == b"0\n500\n"
    assert int(Path("/proc/self/oom_score_adj").read_text()) == own


@pytest.mark.parametrize("kind", EVERY)
def test_files_are_bounded(place: Place, kind: Kind) -> None:
    ran = place.run(
        kind, "exec dd if=/dev/zero of=big bs=64k count=100", bounds=Bounds(file_bytes=1 << 20)
    )
    assert (place.workspace / "big").stat().st_size == 1 << 20
    assert ran.signal == signal.SIGXFSZ or ran.code == 128 + signal.SIGXFSZ
    assert "SIGXFSZ" in outcome_of(ran, 9).text


# -- nobody is there -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
def test_there_is_no_input_and_no_terminal(place: Place, kind: Kind) -> None:
    """AG-09: each ends by itself, and says so."""
    command = f"""
        cat; echo cat $?
        {sys.executable} -I -S -c 'input()' 2>/dev/null; echo input $?
        (read x </dev/tty) 2>/dev/null; echo tty $?
        git init -q . && git -c user.name=a -c user.email=b commit --allow-empty >/dev/null 2>&1
        echo commit $?
        git log --oneline 2>/dev/null | head -1
        sudo -k true >/dev/null 2>&1; echo sudo
        ssh -o BatchMode=no -p 1 127.0.0.1 true >/dev/null 2>&1; echo ssh"""
    ran = place.run(kind, command)
    assert ran.head == b"cat 0\ninput 1\ntty 1\ncommit 1\nsudo\nssh\n"
    assert ran.seconds < SOON_S


# -- what it says ----------------------------------------------------------------------------------


def test_output_of_every_kind(place: Place) -> None:
    """AG-06."""
    with place.runner("none") as runner:
        text = outcome_of(run(runner, r"printf 'caf\xe9 \xff\n'"), 9).text
        assert text == "[exit code 0]\ncaf\ufffd \ufffd\n"
        ran = run(runner, "head -c 5000000 /dev/zero | tr '\\0' x")
        assert outcome_of(ran, 9).text == "[exit code 0]\n" + "x" * 5_000_000
        binary = outcome_of(run(runner, r"printf 'a\0\1\2'"), 9).text
        assert binary == "[exit code 0]\n[binary: 4 bytes]"
        assert outcome_of(run(runner, "true"), 9).text == "[exit code 0; no output]"
        assert outcome_of(run(runner, "exit 3"), 9).text == "[exit code 3; no output]"
        assert outcome_of(run(runner, "kill -9 $$"), 9).text == "[ended by SIGKILL; no output]"
        both = run(runner, "echo out; echo err >&2; echo out")
        assert both.head == b"out\nerr\nout\n"


@pytest.mark.parametrize("length", [0, 9, 10, 11, 20, 21, 30, 99])
def test_of_a_long_output_both_ends_are_kept(place: Place, length: int) -> None:
    whole = bytes(range(33, 33 + length))
    (place.workspace / "out").write_bytes(whole)
    with place.runner("none", most_kept=10) as runner:
        ran = run(
            runner, "for i in $(seq $(stat -c %s out)); do dd bs=1 count=1 status=none; done<out"
        )
    assert ran.head == whole[:10]
    assert ran.tail == whole[max(10, length - 10) :]
    assert ran.left_out == max(0, length - 20)


def test_what_does_not_begin(place: Place) -> None:
    for kind in [*KINDS[-1:], "none"]:
        with place.runner(kind) as runner, pytest.raises(CannotRun, match=r"nothing.*No such file"):
            runner.run(["nothing"], cwd=place.workspace, timeout_s=9, cancel=threading.Event())


# -- which -----------------------------------------------------------------------------------------


def without_bwrap(folder: Path, script: str | None = None) -> dict[str, str]:
    """A PATH with a shell, and with a bwrap that is this script."""
    folder.mkdir()
    (folder / "sh").symlink_to(shutil.which("sh") or "")
    if script is not None:
        (folder / "bwrap").write_text(f"#!{shutil.which('sh')}\n{script}\n")
        (folder / "bwrap").chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.skipif("landlock" not in KINDS, reason="the kernel's Landlock is off")
def test_landlock_where_bubblewrap_does_not_work(tmp_path: Path) -> None:
    found = choosing.find(without_bwrap(tmp_path / "a"), tmp_path / "w")
    assert found.name == "landlock"
    assert "bubblewrap is not installed" in found.why
    assert "names of files can be listed" in found.limits
    found = choosing.find(
        without_bwrap(tmp_path / "b", "echo no permission; exit 1"), tmp_path / "w"
    )
    assert found.name == "landlock"
    assert "bubblewrap does not work here: no permission" in found.why


def test_a_bwrap_that_a_command_may_have_written_is_not_run(place: Place) -> None:
    """It would run outside. So would radchat's own code, which is read-only where it can be."""
    env = without_bwrap(place.workspace / "bin", f"echo > {place.outside}/ran; exit 1")
    for path in (env["PATH"], f"{place.workspace}/link/../bin", "bin"):
        found = choosing.find({"PATH": path}, place.workspace)
        assert "bubblewrap is not installed" in found.why
    assert not (place.outside / "ran").exists()
    assert choosing.find(env, place.outside).name != "bwrap"
    assert (place.outside / "ran").exists()
    root = Path(choosing.__file__).parents[3]
    assert root / "radchat" in policy.own_code(root)
    assert policy.own_code(place.workspace) == ()
    if "landlock" in KINDS:
        found = choosing.find(env, root)
        assert "own code is in this folder" in found.danger
        assert found.danger in found.limits
    if "bwrap" in KINDS:
        runner = SandboxRunner("bwrap", root, [], os.environ)
        ran = run(runner, "touch radchat/agent/sandbox/enter.py && echo written")
        runner.close()
        assert b"Read-only" in ran.head


@pytest.mark.skipif(BWRAP is None, reason="bubblewrap is not installed")
def test_bubblewrap_where_it_works() -> None:
    assert choosing.find(os.environ, Path("/nowhere")).name == "bwrap"


def test_a_workspace_around_radchats_own_folders(tmp_path: Path) -> None:
    """Landlock can't hide what is in a folder that may be written, so it is not used there."""
    places = Places.from_env({"RADCHAT_HOME": str(tmp_path / "home")})
    assert {tmp_path / "home" / name for name in ("config", "data", "state", "run")} < {
        *private(places)
    }
    env = without_bwrap(tmp_path / "bin")
    if "landlock" in KINDS:
        runner, found = choosing.open_runner(places, tmp_path, env)
        assert runner is None
        assert "Landlock can't hide" in found.why
        assert "--no-sandbox" in found.why
    with pytest.raises(ConfigInvalid, match="radchat's own"):
        SandboxRunner("bwrap", places.data, private(places), env)
    runner, found = choosing.open_runner(places, tmp_path, env, without=True)
    assert runner is not None
    assert (runner.name, found.name) == ("none", "none")
    runner.close()
    assert not runner.policy.temporary.exists()


@pytest.mark.skipif(BWRAP is None, reason="bubblewrap is not installed")
def test_bubblewrap_hides_what_is_in_the_workspace(tmp_path: Path) -> None:
    place = Place(tmp_path)
    inner = place.workspace / "home"
    inner.mkdir()
    (inner / "secret").write_text("what was said")
    runner = SandboxRunner("bwrap", place.workspace, [inner], os.environ)
    ran = run(runner, "cat home/secret; echo x > home/new; echo x > new")
    runner.close()
    assert b"said" not in ran.head
    assert [path.name for path in inner.iterdir()] == ["secret"]
    assert (place.workspace / "new").exists()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("inet", [True, False])
def test_every_step_of_the_filter_lands_in_it(machine: str, inet: bool) -> None:
    """No jump over its end, and its end is an answer."""
    import struct

    code = seccomp.program(inet=inet, keeps_attributes=True, notify=True, machine=machine)
    steps = list(struct.iter_unpack("=HBBI", code))
    for at, (operation, yes, no, _) in enumerate(steps):
        if operation & 7 == 5:
            assert at + 1 + max(yes, no) < len(steps)
    assert steps[-1][0] == seccomp.RETURN
    with pytest.raises(KeyError):
        seccomp.program(inet=inet, keeps_attributes=False, machine="riscv64")


def test_temporary_folders_of_killed_agents_go(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place.outside))
    with place.runner("none") as alive:
        old, new = (Path(tempfile.mkdtemp(prefix=temporary.PREFIX)) for _ in range(2))
        (old / "said").write_text("before the kill")
        other = place.outside / f"{temporary.PREFIX}link"
        other.symlink_to(place.home)
        for path in (old, alive.policy.temporary):
            os.utime(path, (1, 1))
        temporary.sweep()
        assert not old.exists()
        assert new.exists()
        assert alive.policy.temporary.exists()
        assert place.home.exists()
    assert not alive.policy.temporary.exists()
