"""Landlock: which files a process and its children can reach, kept by the kernel.

Rules only allow, and hold for all that is below a folder: to keep one folder from being read, all
beside it is allowed by name, and likewise beside its parents. What can't be kept apart so is a
folder's list of names: those of any folder may be read.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterator, Sequence

CREATE, ADD, RESTRICT = 444, 445, 446  # the same on every machine

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1

LEAST = 3  # the first that keeps truncate(2)
HOLDS_DEVICES, HOLDS_SIGNALS = 5, 6  # the first that keeps ioctls of devices; signals to others

ALL = (1 << 16) - 1
READ = EXECUTE | READ_FILE
WRITE = ALL & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV)  # root could make a disk's device, and write it
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The kernel's ABI; 0 where it has none, or it is off."""
    return max(0, int(_libc.syscall(CREATE, None, 0, 1)))


def restrict(writable: Sequence[str], hidden: Sequence[str]) -> None:
    """From now on this process writes in ``writable``, and reads all but ``hidden``.

    All paths are real ones, none of ``hidden`` in one of ``writable``. no_new_privs must be set.
    """
    abi = version()
    handled = ALL if abi >= HOLDS_DEVICES else ALL & ~IOCTL_DEV
    scoped = ABSTRACT_SOCKETS | SIGNALS if abi >= HOLDS_SIGNALS else 0
    attributes = struct.pack("=QQQ", handled, 0, scoped)
    rules = _call(CREATE, attributes, len(attributes), 0)
    _allow(rules, "/", READ_DIR)
    for path in _beside(hidden):
        _allow(rules, path, READ)
    for path in writable:
        _allow(rules, path, WRITE, must=True)
    for path in DEVICES:
        _allow(rules, path, handled & OF_FILES & ~EXECUTE)
    _call(RESTRICT, rules, 0)
    os.close(rules)


def _beside(hidden: Sequence[str]) -> Iterator[str]:
    """What covers everything but those, whether they are there or not."""
    kept = set(hidden)
    parents = {parent for path in hidden for parent in _parents(path)}
    if not hidden:
        yield "/"
    for folder in sorted(parents - kept):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.path not in kept | parents and not entry.is_symlink():
                        yield entry.path
        except OSError:
            continue  # not there, or not for us to list


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)  # noqa: PTH120 - pathlib takes 20 ms to import
        yield path


def _allow(rules: int, path: str, rights: int, must: bool = False) -> None:
    try:
        held = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        if must:
            raise
        return  # it went meanwhile
    try:
        if not stat.S_ISDIR(os.fstat(held).st_mode):
            rights &= OF_FILES
        rule = struct.pack("=Qi", rights, held)
        _call(ADD, rules, 1, rule, 0)
    except OSError:
        if must:
            raise
    finally:
        os.close(held)


def _call(number: int, *arguments: int | bytes) -> int:
    found = int(_libc.syscall(number, *arguments))
    if found < 0:
        raise OSError(ctypes.get_errno(), "landlock: " + os.strerror(ctypes.get_errno()))
    return found
