"""Into the sandbox: run as ``python -I -S enter.py``, it supervises one command and all it starts.

On stdin comes a line of JSON (``Order``); after it nothing, until the command is to be ended: then
the pipe closes, as it does when whoever ordered is killed. On descriptor ``report`` goes a line
once the command runs, and one when everything has ended. stdout and stderr are the command's.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

sys.path.append(os.path.abspath(__file__ + "/../../../.."))

from radchat.agent.sandbox import filter as seccomp
from radchat.agent.sandbox import landlock, processes
from radchat.agent.sandbox.attributes import Attributes

SECCOMP_FD = 90  # where bwrap is told to read the filter
TICK_S = 0.1
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_TO_GO = b"500"  # where memory ends: before the agent, and the daemon with its model
SETTLE_S = 0.05  # what ends by itself this soon was not left behind
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 1, 24, 38, 36
KEPT_CAPABILITIES = {0, 1, 3, 4}  # CHOWN, DAC_OVERRIDE, FOWNER, FSETID: root's way with files
LAST_CAPABILITY = 63

Order = dict[str, Any]
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    order: Order = json.loads(_line())
    report: int = order["report"]
    os.set_inheritable(report, False)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    processes.go_first()
    _say(report, **_supervise(order, report))


def _line() -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            sys.exit("no order came")
        found += part
    return found


def _say(report: int, **told: Any) -> None:
    left = json.dumps(told).encode() + b"\n"
    while left:
        left = left[os.write(report, left) :]


def _supervise(order: Order, report: int) -> dict[str, Any]:
    before = _tasks()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        _become(order, theirs)
    theirs.close()
    # nothing: it runs. A descriptor alone: of the filter's listener. A text: why it does not run
    attributes = None
    while True:
        said, passed, _, _ = socket.recv_fds(ours, 65536, 1)
        if passed:
            attributes = Attributes(passed[0], order["writable"])
        elif said:
            os.waitpid(pid, 0)
            return {"error": said.decode(errors="replace")}
        else:
            break
    _say(report, pid=pid, attributes=attributes is not None)
    statuses: dict[int, int] = {}
    ended = _watch(order, pid, attributes, statuses, before)
    left = 0
    if ended is None:
        there = processes.wait_gone(statuses, SETTLE_S)
        left = max(0, len(there) - (order["kind"] == "bwrap"))  # its init is nobody's
    grace = order["grace_s"] if ended in ("timeout", "cancelled") else 0.0
    stuck = processes.end(statuses, grace)
    status = statuses.get(pid, signal.SIGKILL)
    is_killed = os.WIFSIGNALED(status)
    return {
        "code": None if is_killed else os.WEXITSTATUS(status),
        "signal": os.WTERMSIG(status) if is_killed else None,
        "ended": ended,
        "left": left,
        "stuck": stuck,
    }


def _watch(
    order: Order, pid: int, attributes: Attributes | None, statuses: dict[int, int], before: int
) -> str | None:
    """Until it has ended; else why it is to be."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    ends = os.pidfd_open(pid)
    poll.register(ends, select.POLLIN)
    if attributes:
        poll.register(attributes.listener, select.POLLIN)
    until = time.monotonic() + order["timeout_s"]
    while True:
        ready = dict(poll.poll(TICK_S * 1000))
        if ends in ready:
            processes.reap(statuses)
            return None
        if attributes and (what := ready.get(attributes.listener)):
            if what & select.POLLIN:
                attributes.answer()
            else:  # nobody is left below the filter
                poll.unregister(attributes.listener)
        if 0 in ready:
            return "cancelled"
        if time.monotonic() >= until:
            return "timeout"
        # the kernel's own bound (RLIMIT_NPROC) holds for no root: the machine's count is a cheap
        # hint that it is worth counting ours
        if _tasks() - before > order["processes"]:
            processes.reap(statuses)
            ours = processes.descendants(os.getpid())
            if sum(each.threads for each in ours) > order["processes"]:
                return "processes"


def _tasks() -> int:
    """Tasks on this machine, threads too."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[3].split(b"/")[1])


# -- the child -------------------------------------------------------------------------------------


def _become(order: Order, supervisor: socket.socket) -> NoReturn:
    try:
        os.setsid()
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in (*IGNORED, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.chdir(order["cwd"])
        _bound(order)
        {"bwrap": _prepare, "landlock": _restrict, "none": _nothing}[order["kind"]](
            order, supervisor
        )
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except BaseException as error:  # whatever it is: nothing may run
        why = error.strerror if isinstance(error, OSError) else repr(error)
        supervisor.send(f"{order['argv'][0]}: {why}".encode())
    os._exit(127)


def _bound(order: Order) -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:
        file.write(FIRST_TO_GO)
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: order["file_bytes"],
        resource.RLIMIT_CPU: int(order["timeout_s"]) * (os.cpu_count() or 1) + 10,
        resource.RLIMIT_NPROC: _mine() + order["processes"],
    }
    for what, most in limits.items():
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))


def _mine() -> int:
    """Tasks of the user: the kernel counts them all."""
    count = 0
    for process in processes.everything():
        try:
            if os.stat(f"/proc/{process.pid}").st_uid == os.getuid():
                count += process.threads
        except OSError:
            continue
    return count


def _nothing(order: Order, supervisor: socket.socket) -> None:
    pass


def _prepare(order: Order, supervisor: socket.socket) -> None:  # noqa: ARG001
    """For bwrap, which does the rest: mounts, namespaces, and the filter last."""
    held = os.memfd_create("filter")
    os.write(held, seccomp.program(inet=True, keeps_attributes=False))
    os.lseek(held, 0, os.SEEK_SET)
    os.dup2(held, SECCOMP_FD)


def _restrict(order: Order, supervisor: socket.socket) -> None:
    if os.getuid() == 0:
        for capability in range(LAST_CAPABILITY + 1):
            if capability not in KEPT_CAPABILITIES:
                _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    landlock.restrict(order["writable"], order["hidden"])
    network: bool = order["network"]
    try:
        code = seccomp.program(inet=network, keeps_attributes=True, notify=True)
        listener = seccomp.install(code, listener=True)
    except OSError:  # there is one already, of whoever runs us: then these calls fail
        seccomp.install(seccomp.program(inet=network, keeps_attributes=True))
    else:
        assert listener is not None
        socket.send_fds(supervisor, [b"."], [listener])


if __name__ == "__main__":
    main()
