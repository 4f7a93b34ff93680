"""The seccomp filter: which system calls a sandboxed process may make.

Written here as BPF, of which it needs four instructions, so that it works wherever Python does.
Landlock and mounts keep files safe; this keeps what they don't see: sockets, io_uring (whose
requests no filter sees), new namespaces, keys, and what root could do to the machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from radchat.agent.sandbox.syscalls import ARCHES, numbers

ALLOW, KILL, ERRNO, NOTIFY = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
NO = ERRNO | errno.EPERM
LOAD, IF_EQUAL, IF_AT_LEAST, IF_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NR, ARCH, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
X32 = 0x40000000  # x86_64 has a second table of calls at these numbers

NAMESPACES = 0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
NEW_TIME = 0x80  # of unshare alone: in clone these bits are a signal
AF_INET, AF_INET6, AF_NETLINK = 2, 10, 16  # a resolver asks its own kernel by netlink
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # typing into a terminal

REFUSED = (
    "acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init",
    "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "io_uring_enter",
    "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kexec_file_load", "kexec_load",
    "keyctl", "mount", "mount_setattr", "move_mount", "open_by_handle_at", "open_tree",
    "open_tree_attr", "perf_event_open", "pivot_root", "quotactl", "quotactl_fd", "reboot",
    "request_key", "setdomainname", "sethostname", "setns", "settimeofday", "swapoff", "swapon",
    "syslog", "umount2", "userfaultfd",
)  # fmt: skip

# Landlock sees none of these: they are asked of the supervisor (attributes.py), which knows paths
BY_PATH = ("chmod", "chown", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "lchown",
           "utimensat")  # fmt: skip
UNSEEN = ("file_setattr", "fremovexattr", "fsetxattr", "futimesat", "lremovexattr", "lsetxattr",
          "removexattr", "removexattrat", "setxattr", "setxattrat", "utime", "utimes")  # fmt: skip

Code = list[tuple[int, int, int, int]]  # operation, steps if true, steps if not, constant


def program(
    *, inet: bool, keeps_attributes: bool, notify: bool = False, machine: str | None = None
) -> bytes:
    """``inet``: the internet's sockets are allowed. ``keeps_attributes``: modes, owners and times
    of files are not to change by themselves; ``notify``: a listener decides on those.
    """
    machine = machine or os.uname().machine
    known = numbers(machine)
    code: Code = [
        (LOAD, 0, 0, ARCH),
        (IF_EQUAL, 1, 0, ARCHES[machine]),
        (RETURN, 0, 0, KILL),  # 32-bit programs have numbers of their own
        (LOAD, 0, 0, NR),
    ]
    if machine == "x86_64":
        code += [(IF_AT_LEAST, 0, 1, X32), (RETURN, 0, 0, NO)]
    for name, block in _blocks(inet, keeps_attributes, notify).items():
        if name in known:
            code += [(IF_EQUAL, 0, len(block), known[name]), *block]
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *each) for each in code)


def _blocks(inet: bool, keeps_attributes: bool, notify: bool) -> dict[str, Code]:
    """What is done about each call; every block ends by itself."""
    blocks: dict[str, Code] = {name: [(RETURN, 0, 0, NO)] for name in REFUSED}
    blocks["clone"] = _refuse_bits(0, NAMESPACES)
    blocks["unshare"] = _refuse_bits(0, NAMESPACES | NEW_TIME)
    blocks["clone3"] = [(RETURN, 0, 0, ERRNO | errno.ENOSYS)]  # its flags can't be read: use clone
    blocks["ioctl"] = _refuse_values(1, (TIOCSTI, TIOCLINUX))
    blocks["kill"] = _refuse_values(0, (0xFFFFFFFF,))  # -1: everybody
    blocks["socket"] = _allow_values(0, (AF_INET, AF_INET6, AF_NETLINK) if inet else ())
    blocks["prlimit64"] = [  # limits of another process may be read, not set
        *_if(0, 0, ALLOW),
        (LOAD, 0, 0, _argument(2)),
        (IF_EQUAL, 1, 0, 0),
        (RETURN, 0, 0, NO),
        *_if(2, 0, ALLOW, upper=True),
        (RETURN, 0, 0, NO),
    ]
    if keeps_attributes:
        told = NOTIFY if notify else NO
        blocks |= {name: [(RETURN, 0, 0, told)] for name in BY_PATH}
        blocks |= {name: [(RETURN, 0, 0, ERRNO | errno.EOPNOTSUPP)] for name in UNSEEN}
    return blocks


def _argument(index: int, upper: bool = False) -> int:
    """Where an argument's lower 32 bits are (little endian, as both machines)."""
    return ARGUMENTS + 8 * index + (4 if upper else 0)


def _if(index: int, value: int, then: int, upper: bool = False) -> Code:
    return [(LOAD, 0, 0, _argument(index, upper)), (IF_EQUAL, 0, 1, value), (RETURN, 0, 0, then)]


def _refuse_bits(index: int, bits: int) -> Code:
    return [
        (LOAD, 0, 0, _argument(index)),
        (IF_BITS, 0, 1, bits),
        (RETURN, 0, 0, NO),
        (RETURN, 0, 0, ALLOW),
    ]


def _refuse_values(index: int, values: Sequence[int]) -> Code:
    return [each for value in values for each in _if(index, value, NO)] + [(RETURN, 0, 0, ALLOW)]


def _allow_values(index: int, values: Sequence[int]) -> Code:
    return [each for value in values for each in _if(index, value, ALLOW)] + [(RETURN, 0, 0, NO)]


# -- into the kernel -------------------------------------------------------------------------------

SET_FILTER, NEW_LISTENER, KILLABLE = 1, 0x08, 0x20


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def install(code: bytes, listener: bool = False) -> int | None:
    """For this process and all that come of it; no_new_privs must be set. The listener, or None."""
    held = ctypes.create_string_buffer(code, len(code))
    given = _Program(len(code) // 8, ctypes.cast(held, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
    flags = (NEW_LISTENER | KILLABLE, NEW_LISTENER) if listener else (0,)
    for flag in flags:  # a kernel before 5.19 does not know the first
        found = int(libc.syscall(number, SET_FILTER, flag, ctypes.byref(given)))
        if found >= 0:
            return found if listener else None
    raise OSError(ctypes.get_errno(), "seccomp: " + os.strerror(ctypes.get_errno()))
