"""chmod, chown and times of files, which Landlock does not see: done for the sandboxed, by paths.

The filter leaves such a call waiting and tells the supervisor (seccomp_unotify(2)), who opens the
file that is meant, looks where it is, and does it on what it has opened: nothing can be swapped
in between.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Sequence

from radchat.agent.sandbox.syscalls import numbers

RECEIVE, SEND, IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
NOTICE = struct.Struct("=QIIiIQ6Q")  # id, pid, flags; number, arch, instruction, arguments
AT_FDCWD = -100
NO_FOLLOW, EMPTY_PATH = 0x100, 0x1000
LONGEST, PAGE = 4096, 4096

_libc = ctypes.CDLL(None, use_errno=True)


class Attributes:
    """Answers the calls of everything that runs below one filter."""

    def __init__(self, listener: int, writable: Sequence[str]) -> None:
        self.listener = listener
        self._writable = tuple(writable)
        self._names = {number: name for name, number in numbers(os.uname().machine).items()}

    def answer(self) -> None:
        """One call that waits."""
        notice = bytearray(NOTICE.size)
        try:
            fcntl.ioctl(self.listener, RECEIVE, notice)
        except OSError:
            return  # who asked has ended
        key, pid, _, number, _, _, *arguments = NOTICE.unpack(notice)
        try:
            self._do(key, pid, self._names.get(number, ""), arguments)
            failed = 0
        except OSError as error:
            failed = -(error.errno or errno.EPERM)
        try:
            fcntl.ioctl(self.listener, SEND, struct.pack("=QqiI", key, 0, failed, 0))
        except OSError:
            return

    def _do(self, key: int, pid: int, name: str, arguments: list[int]) -> None:
        fd, path, rest, flags = _sorted_out(name, arguments)
        if flags & ~(NO_FOLLOW | EMPTY_PATH):
            raise OSError(errno.EINVAL, "")
        given = _text(pid, path) if path else b""
        if path and not given and not flags & EMPTY_PATH:
            raise OSError(errno.ENOENT, "")
        times = _memory(pid, rest[0], 32) if name == "utimensat" and rest[0] else None
        held = _opened(pid, fd, given, follow=not flags & NO_FOLLOW)
        try:
            fcntl.ioctl(self.listener, IS_VALID, struct.pack("=Q", key))  # still the one who asked
            real = os.readlink(f"/proc/self/fd/{held}")  # noqa: PTH115 - pathlib takes 20 ms
            if not self._is_ours(real):
                raise OSError(errno.EPERM, "")
            it = f"/proc/self/fd/{held}".encode()
            if name == "utimensat":
                done = _libc.utimensat(AT_FDCWD, it, times, 0)
            elif "chmod" in name:
                done = _libc.chmod(it, ctypes.c_uint(rest[0] & 0o7777))
            else:
                done = _libc.chown(it, ctypes.c_uint(rest[0]), ctypes.c_uint(rest[1]))
            if done:
                raise OSError(ctypes.get_errno(), "")
        finally:
            os.close(held)

    def _is_ours(self, real: str) -> bool:
        return any(real == root or real.startswith(root + "/") for root in self._writable)


def _sorted_out(name: str, given: list[int]) -> tuple[int, int, list[int], int]:
    """Descriptor, address of the path (0: the descriptor is meant), the rest, and flags."""
    fd = ctypes.c_int(given[0]).value
    if name in ("fchmod", "fchown"):
        return fd, 0, [each & 0xFFFFFFFF for each in given[1:3]], 0
    if name in ("chmod", "chown", "lchown"):
        flags = NO_FOLLOW if name == "lchown" else 0
        return AT_FDCWD, given[0], [each & 0xFFFFFFFF for each in given[1:3]], flags
    if name == "utimensat":
        return fd, given[1], given[2:3], given[3] & 0xFFFFFFFF
    rest = [each & 0xFFFFFFFF for each in given[2:4]]
    more = {"fchmodat": 0, "fchmodat2": given[3], "fchownat": given[4]}.get(name)
    if more is None:
        raise OSError(errno.ENOSYS, "")
    return fd, given[1], rest, more & 0xFFFFFFFF


def _opened(pid: int, fd: int, path: bytes, *, follow: bool) -> int:
    """What a process means by it, held; nothing is done to it by being held."""
    is_path = os.O_PATH | os.O_CLOEXEC
    place = "cwd" if fd == AT_FDCWD else f"fd/{fd}"
    try:
        base = os.open(f"/proc/{pid}/{place}", is_path)
    except OSError:
        raise OSError(errno.EBADF, "") from None
    if not path:
        return base
    for own in (b"/proc/self/", b"/proc/thread-self/"):
        if path.startswith(own):
            path = b"/proc/%d/" % pid + path[len(own) :]
    try:
        return os.open(path, is_path | (0 if follow else os.O_NOFOLLOW), dir_fd=base)
    finally:
        os.close(base)


def _memory(pid: int, address: int, count: int) -> bytes:
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(memory, count, address)
        finally:
            os.close(memory)
    except (OSError, OverflowError):
        raise OSError(errno.EFAULT, "") from None


def _text(pid: int, address: int) -> bytes:
    """Up to its NUL, a page at a time: the next may not be there."""
    found = b""
    while len(found) < LONGEST:
        at = address + len(found)
        part = _memory(pid, at, PAGE - at % PAGE)
        end = part.find(b"\0")
        if end >= 0:
            return found + part[:end]
        found += part
        if not part:
            break
    raise OSError(errno.ENAMETOOLONG, "")
