"""The keys of the API: the home's own, made once and kept 0600, and others that `serve` was given.

A key is compared by its digest, with all keys, in the same time whatever it is.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from radchat.daemon.v1.caller import Caller
from radchat.errors import InvalidInput, RadchatError
from radchat.paths import Places, private_folder

LEAST = 8  # characters of a key that somebody chose
MOST = 512


def key_file(places: Places) -> Path:
    return places.state / "api-key"


def home_key(places: Places) -> str:
    """The owner's, made if there is none yet. Of two that make it at once both get the same."""
    path = key_file(places)
    private_folder(path.parent)
    try:
        found = _read(path)
        if not found:
            _make(path)
            found = _read(path)
    except OSError as error:
        raise RadchatError(f"the API's key can't be kept in {path}: {error.strerror}") from error
    if not found:
        raise RadchatError(f"{path} is empty: remove it, and a new key is made")
    return found


def _read(path: Path) -> str:
    """What nobody else could read: a file that others can is closed to them first."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ""
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        os.fchmod(file.fileno(), 0o600)
        return file.read(MOST).strip()


def _make(path: Path) -> None:
    """Whole or not at all: linked into its place, where another's may be by then."""
    part = path.with_name(f".api-key-{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            return
    finally:
        part.unlink(missing_ok=True)


class Keys:
    def __init__(self, home: str, others: Sequence[str] = ()) -> None:
        """Raises InvalidInput for a key that can be none; which is not said."""
        for index, key in enumerate(others):
            if not (LEAST <= len(key) <= MOST and key.isascii() and key.isprintable()):
                raise InvalidInput(
                    f"API key {index + 1}: want {LEAST} to {MOST} characters of ASCII", field="keys"
                )
            if " " in key:
                raise InvalidInput(f"API key {index + 1}: a key has no spaces", field="keys")
        self._callers = [(_digest(key), Caller(_digest(key).hex()[:16])) for key in others]
        self._callers.append((_digest(home), Caller()))  # the last: the home's own stays the owner

    def caller(self, authorization: bytes | None) -> Caller | None:
        """Who says ``Bearer KEY``; None: nobody who is known."""
        scheme, _, key = (authorization or b"").partition(b" ")
        given = hashlib.sha256(key.strip()).digest()
        found: Caller | None = None
        for digest, caller in self._callers:  # all of them, whichever fits
            if hmac.compare_digest(digest, given):
                found = caller
        return found if scheme.lower() == b"bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
