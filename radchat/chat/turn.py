"""One turn of a chat: its stream followed, Ctrl+C turned into a cancel, and what is left of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

from radchat.chat.view import Answer, View
from radchat.client import Client
from radchat.errors import (
    Busy,
    ConfigInvalid,
    ContextOverflow,
    InvalidInput,
    ModelBroken,
    NotFound,
    RadchatError,
    Unreachable,
)
from radchat.wire import EventStream

END_S = 30.0  # for a cut-off answer to end: a step of the model's is not broken off
SETTLE_S = 3.0  # then, for one of which words were heard to be found: another daemon reads it anew
LAST_WORDS_S = 0.07  # how long a cancelled answer may take to say how it ended
AGAIN_S = 0.02  # between two questions
BEGIN_S = 3.0  # for the daemon to say whether a turn was begun


def run_turn(
    client: Client, payload: dict[str, Any], view: View, *, last_words_s: float = LAST_WORDS_S
) -> tuple[Answer, bool]:
    """Follow one answer; (what was said, whether Ctrl+C ended it).

    A cancelled answer has ``last_words_s`` seconds to say how it ended, then is hung up on; but
    whether it was begun is waited for. Raises KeyboardInterrupt where there is no daemon to ask,
    else the answer's error.
    """
    request = os.urandom(8).hex()
    with _Cancel(client, view, request, last_words_s) as cancel:
        try:
            with client.stream("generate", **payload, request=request) as stream:
                cancel.attach(stream)
                view.follow(stream)
        except RadchatError:
            view.finish()
            if not cancel.is_asked:
                raise
    return view.answer, view.is_cancelled


def was_kept(client: Client, asked: dict[str, Any], answer: Answer) -> bool:
    """Is an answer that was cut off a message? Waits for it to end, and to be written down.

    ``asked``: the session, and from where one asks.
    """
    deadline = time.monotonic() + END_S
    while client.call("cancel", request=answer.init.get("request"))["cancelled"]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    deadline = time.monotonic() + (SETTLE_S if answer.heard else 0.0)
    while True:
        try:
            client.call("log", **asked, n=1, head=answer.begun)
        except NotFound:
            if time.monotonic() > deadline:
                return False
        else:
            return True
        time.sleep(AGAIN_S)


PASSING = (Busy, Unreachable, ContextOverflow, ConfigInvalid, ModelBroken, InvalidInput)


def may_pass(error: BaseException) -> bool:
    """The words may be sent again, or changed first: they are not to be typed anew."""
    return isinstance(error, (KeyboardInterrupt, *PASSING))


class _Cancel:
    """SIGINT while an answer comes: ask the daemon to end it, listen for its last words, go on.

    Until ``init`` is heard the turn may have begun or not: the daemon tells by ``init``, or by
    ending the stream without it.
    """

    def __init__(self, client: Client, view: View, request: str, last_words_s: float) -> None:
        self._client = client
        self._request = request
        self._last_words_s = last_words_s
        self._view = view
        self._stream: EventStream | None = None
        self._before: Any = None
        self._is_over = threading.Event()
        self._ending = threading.Lock()  # held while it ends, or is given up
        self._is_there = True  # the daemon answers
        self._is_given_up = False
        self.is_asked = False

    def attach(self, stream: EventStream) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_error: object) -> None:
        with self._ending:
            self._is_over.set()
        signal.signal(signal.SIGINT, self._before)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_given_up:
            raise KeyboardInterrupt
        if self.is_asked:  # the second of two quick ones
            return
        self.is_asked = self._view.is_cancelled = True
        for work in (self._ask, self._hang_up):
            threading.Thread(target=work, daemon=True).start()

    def _ask(self) -> None:
        """Until it is ended: a request that is on its way to the daemon is not known there yet."""
        while self._is_there and not self._is_over.wait(0):
            init = self._view.answer.init
            told = self._client.glance(
                "cancel", BEGIN_S, request=init.get("request", self._request)
            )
            self._is_there = told is not None
            if init or (told and told["cancelled"]):
                return
            time.sleep(AGAIN_S)

    def _hang_up(self) -> None:
        deadline = time.monotonic() + BEGIN_S
        self._is_over.wait(self._last_words_s)
        while not self._view.answer.init and self._is_there and time.monotonic() < deadline:
            if self._is_over.wait(AGAIN_S):
                return
        with self._ending:
            if self._stream is not None:
                self._stream.close()
            elif not self._is_over.is_set():  # the main thread waits for a daemon
                self._is_given_up = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
