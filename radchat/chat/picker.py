"""`/tree` and Esc Esc: the session's tree on the whole screen, to walk in and to go on from."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from radchat.chat.footer import counted
from radchat.chat.picker_paint import paint
from radchat.chat.picker_state import Picker, Wish
from radchat.errors import Busy, NotFound, RadchatError

if TYPE_CHECKING:
    from radchat.chat.repl import Chat

NAMED_KEYS = (
    "up", "down", "left", "right", "pageup", "pagedown", "home", "end", "enter", "tab", "escape",
    "backspace", "c-c", "c-d", "c-u",
)  # fmt: skip


def pick(chat: Chat) -> None:
    """Until a place is chosen or the picker is left; the chat then stands there."""
    from radchat.chat.screen import Screen  # prompt_toolkit

    work = _Work(chat)

    def press(key: str) -> None:
        if work.press(key):
            screen.end(None)

    keys: dict[str, Callable[[], None]] = {key: partial(press, key) for key in NAMED_KEYS}
    screen: Screen[None] = Screen(
        lambda columns, rows: paint(work.picker, columns, rows),
        keys,
        typed=press,
        pasted=work.picker.paste,
        colors=chat.host.paints(sys.stdout),
    )
    try:
        screen.run()
    finally:
        chat.prompt.hold()  # typed for where the chat was
    if work.result is not None:
        chat.moved(work.result)


class _Work:
    """What the picker wishes for, done by the daemon."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self.picker = Picker(self._tree())
        self.result: dict[str, Any] | None = None  # where the chat goes
        self._digest = ""  # of what was asked about

    def _tree(self) -> dict[str, Any]:
        try:
            return self._chat.call("tree", show_cache=True)
        except Busy:  # a long step: the cache can't be looked into, the tree can
            return self._chat.call("tree")

    def press(self, key: str) -> bool:
        """True: that was all."""
        wish = self.picker.press(key)
        while wish is not None:
            asked = wish
            try:
                if wish.what != "prune":
                    return self._do(wish)
                wish = self._prune(wish)
            except RadchatError as error:
                if isinstance(error, NotFound):  # gone, or renamed, meanwhile
                    with contextlib.suppress(RadchatError):
                        self.picker.renew(self._tree())
                self.picker.again(asked, error.message)
                return False
        return False

    def _do(self, wish: Wish) -> bool:
        if wish.what == "go":
            is_own = self.picker.messages[wish.message]["role"] == "user"
            if is_own or wish.message != self.picker.head:
                self.result = self._chat.call("switch", ref=self._ref(wish.message))
        elif wish.what == "fork":
            self.result = self._chat.call("fork", ref=wish.message, name=wish.text or None)
        elif wish.what == "label":
            self._chat.call("branch.label", ref=wish.message, text=wish.text)
            self.picker.renew(self._tree())
        elif wish.what == "count":
            told = self._pruned(wish, dry_run=True)
            self._digest = told["digest"]
            self.picker.ask(f"{wish.text}delete {_what(told)} for good?")
        return wish.what in ("go", "fork", "leave")

    def _ref(self, message: str) -> str:
        """A branch that ends there is gone to as a branch; of a message of one's own the text is
        wanted.
        """
        branches = self.picker.tree.get("branches") or {}
        if self.picker.messages[message]["role"] == "user":
            return message
        return next((name for name, end in branches.items() if end == message), message)

    def _pruned(self, wish: Wish, *, dry_run: bool) -> dict[str, Any]:
        return self._chat.call(
            "sessions.prune",
            marked=list(wish.marked),
            dry_run=dry_run,
            head=self._chat.head,
            **({} if dry_run else {"digest": self._digest}),
        )

    def _prune(self, wish: Wish) -> Wish | None:
        try:
            done = self._pruned(wish, dry_run=False)
        except Busy as error:
            if not error.data.get("changed"):
                raise
            return self.picker.changed(self._tree())
        after = self.picker.pruned(self._tree())
        self.picker.say(f"deleted {_what(done)}")
        return after


def _what(done: dict[str, Any]) -> str:
    """`5 messages, 1,204 tokens, 1 branch`"""
    parts = [counted(done["messages"], "message"), counted(done["tokens"], "token")]
    if done["thoughts"]:
        parts[0] += f" ({counted(done['thoughts'], 'thought')})"
    if done["branches"]:
        parts.append(counted(len(done["branches"]), "branch"))
    if done["labels"]:
        parts.append(counted(done["labels"], "label"))
    return ", ".join(parts)
