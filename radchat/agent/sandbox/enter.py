"""Run by its path, in a Python of its own: ``enter.py SPEC COMMAND...``; stdlib only.

Two processes. The upper one watches: all that the command starts are its descendants, also what
daemonizes (it is their subreaper), and all of them end with the command, with a SIGTERM to it, and
with the agent. The lower one gives up its rights, one after the other, and becomes the command.

SPEC (JSON): ``status``: a descriptor that is told how it ended; ``write``: folders that may be
written; ``hidden``: folders whose files can't be read; ``landlock``, ``seccomp``, ``network``:
whether; ``limits``. docs/adr/0029.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
import time
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER, PR_SET_SECCOMP = 1, 38, 36, 22
GRACE_S = 0.5  # between SIGTERM and SIGKILL
CANNOT = 126  # as a shell says of what can't be run

# -- Landlock (linux/landlock.h) -------------------------------------------------------------------
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH, VERSION = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
LEAST_ABI = 3  # from it on, truncating counts as writing
DEVICES = ("null", "zero", "full", "random", "urandom")
NET_TCP = 0b11  # bind, connect
SCOPED = 0b11  # abstract Unix sockets, signals

# -- seccomp (linux/seccomp.h, linux/filter.h, asm/unistd.h) ---------------------------------------
ARCHES = {  # AUDIT_ARCH, then the numbers of socket and ioctl
    "x86_64": (0xC000003E, 41, 16),
    "aarch64": (0xC00000B7, 198, 29),
}
IO_URING_SETUP = 425  # it makes sockets without the call for it
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # typing into the user's terminal
X32 = 0x40000000
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EPERM, EACCES = 1, 13
LD, JEQ, JGE, RET = 0x20, 0x15, 0x35, 0x06
NR, ARCH, ARG0, ARG1 = 0, 4, 16, 24

libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    status = int(spec["status"])
    os.set_inheritable(status, False)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    child = os.fork()
    if child == 0:
        _become(spec, command)
    told: dict[str, Any] = {"ended": False}

    def stop(_number: int, _frame: object) -> None:
        end_all(GRACE_S)
        told["ended"] = True

    signal.signal(signal.SIGTERM, stop)
    code = _wait_for(child)
    left = end_all(0.0)
    told |= {"code": code, "left": left}
    with contextlib.suppress(OSError):
        os.write(status, json.dumps(told).encode())
    sys.exit(0)


def _wait_for(child: int) -> int:
    """How it ended: its code, or less than 0 for a signal. Others are reaped meanwhile."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return -signal.SIGKILL
        if pid == child:
            return os.waitstatus_to_exitcode(status)


# -- the end of all --------------------------------------------------------------------------------


def end_all(grace_s: float) -> int:
    """End every descendant; how many there were."""
    found = descendants()
    num = len(found)
    if found and grace_s:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while descendants() and time.monotonic() < deadline:
            _reap()
            time.sleep(0.01)
    while found := descendants():  # one that forks is found again
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.002)
    return num


def descendants() -> list[int]:
    """Living ones, by the parents that /proc tells."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b") ")[2].split()[:2]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            below.setdefault(int(parent), []).append(int(name))
        else:
            below.setdefault(int(parent), [])
    found, todo = [], list(below.get(os.getpid(), ()))
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += below.get(pid, ())
    return found


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


# -- the command -----------------------------------------------------------------------------------


def _become(spec: dict[str, Any], command: list[str]) -> NoReturn:
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for name, value in spec["limits"].items():
            _limit(getattr(resource, f"RLIMIT_{name}"), value)
        if spec["seccomp"]:
            no_new_privs()
        if spec["landlock"]:
            landlock(spec["write"], spec["hidden"], network=spec["network"])
        if spec["seccomp"]:
            seccomp(network=spec["network"])
        os.execvp(command[0], command)
    except BaseException as error:  # nothing of ours goes on in this process
        os.write(2, f"can't run {command[0]}: {error}\n".encode("utf-8", "replace"))
        os._exit(CANNOT)


def no_new_privs() -> None:
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


def _limit(kind: int, value: int) -> None:
    """No more than there is already."""
    _, hard = resource.getrlimit(kind)
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (most, most))


def abi() -> int:
    """Of Landlock; 0 where there is none."""
    found = libc.syscall(CREATE_RULESET, None, 0, VERSION)
    return found if isinstance(found, int) and found > 0 else 0


def landlock(write: list[str], hidden: list[str], *, network: bool) -> None:
    """Raises OSError. Names of files can be listed everywhere; what is in ``hidden`` has no rule
    that lets it be read.
    """
    version = abi()
    if version < LEAST_ABI:
        raise OSError(f"Landlock {version}: {LEAST_ABI} is wanted")
    every = (1 << (15 if version < 5 else 16)) - 1
    attributes = struct.pack("=Q", every)
    if version >= 4:
        attributes += struct.pack("=Q", 0 if network else NET_TCP)
    if version >= 6:
        attributes += struct.pack("=Q", SCOPED)
    ruleset = libc.syscall(CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    _allow(ruleset, "/", READ_DIR)
    _allow_reading(ruleset, "/", [os.path.realpath(path) for path in hidden])
    for path in write:
        _allow(ruleset, path, every)
    for name in DEVICES:
        _allow(ruleset, f"/dev/{name}", (READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV) & every)
    if libc.syscall(RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


def _allow_reading(ruleset: int, folder: str, hidden: list[str]) -> None:
    """All of it, but what is hidden: then each of its entries by itself."""
    inside = [
        path for path in hidden if path == folder or path.startswith(folder.rstrip("/") + "/")
    ]
    if folder in inside:
        return
    if not inside:
        _allow(ruleset, folder, EXECUTE | READ_FILE | READ_DIR)
        return
    for name in os.listdir(folder):
        below = f"{folder.rstrip('/')}/{name}"
        if not os.path.islink(below):  # what a link leads to has a rule of its own
            _allow_reading(ruleset, below, hidden)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not there, or not ours: nothing to allow
    try:
        if not os.path.isdir(path):
            access &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
        rule = struct.pack("=Qi", access, file)
        if access and libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, rule, 0):
            raise OSError(ctypes.get_errno(), f"landlock_add_rule {path}")
    finally:
        os.close(file)


def seccomp(*, network: bool) -> None:
    """Raises OSError. Refuses sockets of every kind (a Unix socket leads to other people's
    daemons), io_uring, and typing into a terminal.
    """
    found = ARCHES.get(platform.machine())
    if found is None:
        raise OSError(f"no filter for {platform.machine()}")
    arch, socket, ioctl = found
    refuse, refuse_quietly, allow = ERRNO | EACCES, ERRNO | EPERM, ALLOW
    program: list[tuple[int, int, int, int]] = [
        (LD, 0, 0, ARCH),
        (JEQ, 1, 0, arch),
        (RET, 0, 0, refuse_quietly),
        (LD, 0, 0, NR),
        (JGE, 0, 1, X32),
        (RET, 0, 0, refuse_quietly),
        (JEQ, 0, 1, IO_URING_SETUP),
        (RET, 0, 0, refuse_quietly),
    ]
    if not network:
        program += [(JEQ, 0, 1, socket), (RET, 0, 0, refuse)]
    program += [
        (JEQ, 0, 4, ioctl),
        (LD, 0, 0, ARG1),
        (JEQ, 1, 0, TIOCSTI),
        (JEQ, 0, 1, TIOCLINUX),
        (RET, 0, 0, refuse_quietly),
        (RET, 0, 0, allow),
    ]
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    filled = Program(len(program), ctypes.addressof(buffer))
    if libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(filled), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    main()
