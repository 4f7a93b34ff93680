"""Ways out of the sandbox, each of which works without one, and leads nowhere in one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from radchat.agent.sandbox.policy import Kind
from tests.agent.sandboxes import KINDS, REAL, Place

PY = f"{sys.executable} -I -S -c"

CHANGES = {
    "write": "echo x > OUT/new",
    "append": "echo x >> OUT/file",
    "delete": "rm OUT/file",
    "delete a folder": "rmdir OUT/folder",
    "make a folder": "mkdir OUT/made",
    "take": "mv OUT/file .",
    "rename": "mv OUT/file OUT/other",
    "put": "mv mine OUT/",
    "link from": "ln OUT/file hard && echo x >> hard",
    "link to": "ln mine OUT/hard",
    "symlink": "ln -s x OUT/soft",
    "fifo": "mkfifo OUT/pipe",
    "truncate": "truncate -s 0 OUT/file",
    "truncate by path": f"""{PY} "import os; os.truncate('OUT/file', 0)" """,
    "mode": "chmod 777 OUT/file",
    "mode of the folder": "chmod 777 OUT",
    "mode by a link": "ln -s OUT/file s; chmod 777 s",
    "mode by a descriptor": f"""{PY} "import os; os.fchmod(os.open('OUT/file', 0), 0o777)" """,
    "mode by a folder": f"""{PY} "import os; os.chmod('file', 511, dir_fd=os.open('OUT', 0))" """,
    "mode by /proc": f"""{PY} "import os; fd = os.open('OUT/file', 0)
os.chmod('/proc/self/fd/%d' % fd, 0o777)" """,
    "times": "touch -d 2001-01-01 OUT/file",
    "times by a descriptor": f"""{PY} "import os; os.utime(os.open('OUT/file', 0), (1, 1))" """,
    "by a symlink": "echo x > link/new",
    "by the dots": "echo x > ../outside/new",
    "by /proc/self/root": "echo x > /proc/self/rootOUT/new",
    "by /proc/PARENT/root": "echo x > /proc/$PPID/rootOUT/new",
    "by /proc/AGENT/cwd": f"cd /proc/{os.getpid()}/root && echo x > .OUT/new",
    "by a chain of both": "cp -r link copy; ln -sfn OUT copy/up; echo x > copy/up/new",
}  # fmt: skip
if os.geteuid() == 0:
    CHANGES["owner"] = "chown 1:1 OUT/file"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_outside_is_changed(place: Place, name: str) -> None:
    command = CHANGES[name].replace("OUT", str(place.outside))
    before = place.seen()
    for kind in KINDS:
        ran = place.run(kind, command)
        assert place.seen() == before, ran
        assert ran.code, "it is told that it did not work"
        place.clear()
    ran = place.run("none", command)
    assert place.seen() != before, "without a sandbox it works"


def test_the_workspace_is_free(place: Place) -> None:
    """What is kept from a command outside is its own business inside."""
    command = """set -e; mkdir d; echo x > d/f; chmod 751 d/f; chmod 700 d; mv d/f g; ln g h; ln -s h i
        truncate -s 1 g; touch -d 2001-01-01 g; touch -h i; cp -p g j; rm mine; rmdir d
        echo x > "$TMPDIR/t"; chmod 600 "$TMPDIR/t"; mv "$TMPDIR/t" t
        python3 -c 'import os; os.fchmod(os.open("t", 0), 0o640); os.chmod("t", 0o604, dir_fd=os.open(".", 0))'
        stat -c '%n %a %Y' g t"""  # noqa: E501
    for kind in KINDS:
        place.clear()
        ran = place.run(kind, command)
        assert ran.head == b"g 751 978307200\nt 604 %d\n" % int(
            (place.workspace / "t").stat().st_mtime
        ), (kind, ran)


READS = {
    "a secret": "cat HOME/secret",
    "a secret by a symlink": "ln -s HOME h; cat h/secret",
    "a secret by /proc": "cat /proc/self/rootHOME/secret",
    "a secret by its parent": "cd HOME/.. && cat home/secret",
    "a secret by a hard link": "ln HOME/secret s && cat s",
    "the agent's environment": f"cat /proc/{os.getpid()}/environ",
    "the agent's memory": f"head -c 0 /proc/{os.getpid()}/mem",
}


@pytest.mark.parametrize("name", READS)
def test_nothing_of_the_agent_is_read(place: Place, name: str) -> None:
    command = READS[name].replace("HOME", str(place.home))
    for kind in KINDS:
        ran = place.run(kind, command)
        assert ran.code, ran
        assert b"said" not in ran.head
        place.clear()
    assert place.run("none", command).code == 0


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


PTRACE = "assert ctypes.CDLL(None).ptrace(16, VICTIM, 0, 0) == 0"
LIMITS = "resource.prlimit(VICTIM, resource.RLIMIT_CPU, (1000, 1000))"


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize(
    "command",
    ["kill -0 VICTIM", "kill -9 VICTIM", f'{PY} "import ctypes; {PTRACE}"',
     f'{PY} "import resource; {LIMITS}"', "kill -0 $AGENT"],
)  # fmt: skip
def test_no_other_process_is_reached(
    place: Place, kind: Kind, command: str, victim: subprocess.Popen[bytes]
) -> None:
    command = command.replace("VICTIM", str(victim.pid)).replace("$AGENT", str(os.getpid()))
    ran = place.run(kind, command)
    assert ran.code, ran
    assert victim.poll() is None
    assert place.run("none", command).code == 0


@pytest.mark.parametrize("kind", REAL)
def test_there_is_no_network(place: Place, kind: Kind) -> None:
    """TCP, UDP, and Unix sockets, which lead to other daemons; each really listens."""
    path = place.outside / "socket"
    listening = [socket.socket(), socket.socket(type=socket.SOCK_DGRAM),
                 socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]  # fmt: skip
    abstract = f"\0radchat-{os.getpid()}"
    addresses: list[tuple[str, int] | str] = [
        ("127.0.0.1", 0),
        ("127.0.0.1", 0),
        str(path),
        abstract,
    ]
    for each, address in zip(listening, addresses, strict=True):
        each.bind(address)
        each.setblocking(False)
        if each.type == socket.SOCK_STREAM:
            each.listen()
    tcp, udp = (each.getsockname() for each in listening[:2])
    tries = f"""
import socket
def say(family, kind, address):
    try:
        with socket.socket(family, kind) as it:
            it.connect(address); it.send(b"hello")
    except OSError as error: print(error)
say(2, 1, {tcp}); say(2, 2, {udp}); say(1, 1, {str(path)!r}); say(1, 1, {abstract!r})
"""
    (place.workspace / "tries.py").write_text(tries)

    def heard() -> int:
        count = 0
        for each in listening:
            try:
                each.recv(10) if each.type == socket.SOCK_DGRAM else each.accept()[0].close()
                count += 1
            except BlockingIOError:
                continue
        return count

    try:
        ran = place.run(kind, f"{sys.executable} -I -S tries.py")
        assert heard() == 0, ran
        place.run("none", f"{sys.executable} -I -S tries.py")
        assert heard() == 4
    finally:
        for each in listening:
            each.close()


KERNEL = """
import ctypes, os, socket
call = ctypes.CDLL(None, use_errno=True).syscall
made = ctypes.create_string_buffer(256)
assert call(425, 4, made) == -1 and ctypes.get_errno() == 1, "io_uring"
for flags in (0x10000000, 0x20000, 0x40000000, 0x80):
    assert ctypes.CDLL(None).unshare(flags) == -1, hex(flags)
for family in (1, 17, 38, 40):
    try: socket.socket(family, socket.SOCK_STREAM)
    except OSError: continue
    raise SystemExit(f"a socket of {family}")
for kind in (0o060600, 0o020600):
    try: os.mknod("device", kind, os.makedev(1, 5))
    except OSError: continue
    raise SystemExit("a device, and so a disk")
a, b = socket.socketpair()
(has,) = (line for line in open("/proc/self/status") if line.startswith("CapEff"))
assert int(has.split()[1], 16) & ~0b11011 == 0, has
"""


@pytest.mark.parametrize("kind", REAL)
def test_the_kernel_is_asked_for_nothing_more(place: Place, kind: Kind) -> None:
    (place.workspace / "kernel.py").write_text(KERNEL)
    ran = place.run(kind, f"{sys.executable} -I -S kernel.py")
    assert ran.code == 0, ran


@pytest.mark.parametrize("kind", REAL)
def test_the_environment_is_clean(place: Place, kind: Kind) -> None:
    said = place.run(kind, "env; tty; ps -o tty= -p $$").head.decode()
    assert "A_SECRET" not in said
    assert "TERM=dumb\n" in said
    assert "not a tty\n" in said
    assert said.splitlines()[-1] == "?"


def test_git_of_the_folder_runs_nothing_new(place: Place) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    hooks = place.workspace / ".git" / "hooks"
    hooks.mkdir(parents=True)
    config = place.workspace / ".git" / "config"
    config.write_text("[core]\n")
    ran = place.run(
        "bwrap", "echo x > .git/hooks/pre-commit; echo x > .git/config; echo x > .git/x"
    )
    assert ran.code == 0
    assert list(hooks.iterdir()) == []
    assert config.read_text() == "[core]\n"
    assert (place.workspace / ".git" / "x").exists()


def test_a_signal_to_all_ends_the_command_alone(place: Place) -> None:
    """kill -9 -1; nothing of it reaches whoever runs the tests."""
    for kind in KINDS:
        ran = place.run(kind, "kill -9 -1; echo on")
        assert ran.code == 0, ran
