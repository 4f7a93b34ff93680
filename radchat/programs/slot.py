"""A variable whose value may still be on its way."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Condition
from typing import Any

from radchat.programs.errors import ProgramError


class Slot:
    """Set once, or failed once; whoever reads waits for that."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._pieces: list[str] = []
        self._value: Any = None
        self._error: ProgramError | None = None
        self._is_done = False
        self.meta: dict[str, Any] = {}  # how it ended, its scores, its tokens

    @classmethod
    def of(cls, value: Any) -> Slot:
        slot = cls()
        slot.set(value, {})
        return slot

    @property
    def error(self) -> ProgramError | None:
        return self._error

    def hear(self, text: str) -> None:
        """A piece of what is coming."""
        with self._changed:
            self._pieces.append(text)
            self._changed.notify_all()

    def set(self, value: Any, meta: dict[str, Any]) -> None:
        with self._changed:
            if not self._is_done:
                self._value, self.meta, self._is_done = value, meta, True
                self._changed.notify_all()

    def fail(self, error: ProgramError) -> None:
        with self._changed:
            if not self._is_done:
                self._error, self._is_done = error, True
                self._changed.notify_all()

    def wait(self) -> None:
        """Until it is there, or will never be."""
        with self._changed:
            while not self._is_done:
                self._changed.wait()

    def get(self) -> Any:
        """The value; raises what it failed with."""
        self.wait()
        if self._error is not None:
            raise self._error.told_again()
        return self._value

    def pieces(self) -> Iterator[str]:
        """Its text as it comes."""
        at = 0
        while True:
            with self._changed:
                while at == len(self._pieces) and not self._is_done:
                    self._changed.wait()
                new = self._pieces[at:]
            if not new:
                break
            at += len(new)
            yield from new
        value = self.get()
        if not at and value is not None:  # it came in one piece: a choice, a value of one's own
            yield str(value)
