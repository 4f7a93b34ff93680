"""KV on a home's disk: a question whose answer may not depend on it, and ways to damage it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.homes import Home, Shell

BLOCK = 256  # tokens
STORY = "the keeper of the lighthouse wrote the weather into a green book. "
ASKED = "and what then?"


def story(number: int, letters: int = 700) -> str:
    """A text of so many letters, which are tokens, that no other number's begins like."""
    return (f"{number:03} " + STORY * (letters // len(STORY) + 1))[:letters]


def files(home: Home) -> list[Path]:
    """The blocks on disk, of all models."""
    return sorted(home.places.kv.glob("*/??/*.safetensors"))


def header(file: Path) -> dict[str, Any]:
    """What a block's file says of itself, every value a text."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return dict(json.loads(data[8 : 8 + size])["__metadata__"])


class Question:
    """Asked again and again at the end of one talk, exact and at temperature 0.

    Whatever the tiers did meanwhile, the answer's ids are those of the first time, and its tokens
    add up, also by what the model itself counted.
    """

    def __init__(self, shell: Shell, number: int = 0, letters: int = 700) -> None:
        self.shell, self.home = shell, shell.home
        first = shell.quick(story(number, letters), max_tokens=30)
        self.session, self.at = first["session"], first["message"]
        self.path = len(self.home.ids(self.at))  # tokens
        self.expected: list[int] | None = None
        self.done: dict[str, Any] = {}
        self.notices: list[str] = []

    def ask(self, tokens: int = 12) -> dict[str, int]:
        """How many tokens of the prompt came from which tier, and how many were computed."""
        rows = self._rows_run()
        options = {"temperature": 0, "max_tokens": tokens}
        asked = {"text": ASKED, "at": self.at, "session": self.session, "new_session": False}
        with self.shell.stream(**asked, dtype="fp32", options=options) as events:
            seen = list(events)
        self.done = seen[-1].data
        self.notices = [e.data["code"] for e in seen if e.name == "notice"]
        (answer,) = self.done["branches"]
        cache, usage = answer["cache"], answer["usage"]
        assert sum(cache.values()) == usage["input_tokens"]
        assert usage["cached_input_tokens"] == cache["device"] + cache["host"] + cache["disk"]
        assert self._rows_run() - rows == cache["computed"] + usage["output_tokens"] - 1
        ids = self.home.out_ids(answer["message"])
        assert len(ids) == tokens
        self.expected = self.expected or ids
        assert ids == self.expected, "the answer depends on where its KV came from"
        return dict(cache)

    def save(self) -> dict[str, Any]:
        return self.shell.run("cache.save", session=self.session, ref=self.at)

    def forget(self, *, disk: bool = False) -> None:
        """What is in memory, pinned or not."""
        self.shell.call("cache.clear", pinned=True, disk=disk)

    def held(self) -> dict[str, int]:
        """Tokens of the talk by their fastest tier, as ``tree --show-cache`` shows them."""
        messages = self.shell.tree(session=self.session, show_cache=True)["messages"]
        path, at = [], self.at
        by_id = {message["id"]: message for message in messages}
        while at is not None:
            path.append(by_id[at])
            at = by_id[at]["parent"]
        return {tier: sum(m["cached"][tier] for m in path) for tier in ("device", "host", "disk")}

    def _rows_run(self) -> int:
        status = self.home.status() if self.home.is_up else {}
        return int(self.home.stats()["rows_run"]) if status.get("model") else 0


# -- damage: what may have become of one block's file -------------------------------------------


def _flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def flip_header(file: Path) -> None:
    _flip(file, 12)


def flip_data(file: Path) -> None:
    """The KV begins where the header ends."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
    _flip(file, 8 + size + 1000)


def flip_ids(file: Path) -> None:
    """The path's ids end the file."""
    _flip(file, file.stat().st_size - 4 * 20)


def flip_position(file: Path) -> None:
    """One digit of the position that its header tells."""
    data = file.read_bytes()
    at = data.index(b'"start":"') + len(b'"start":"')
    _flip(file, at)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def lengthen(file: Path) -> None:
    with file.open("ab") as end:
        end.write(bytes(64))


def delete(file: Path) -> None:
    file.unlink()


def folder_instead(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "something").touch()


def lock_away(file: Path) -> None:
    file.chmod(0)


def swap(one: Path, other: Path) -> None:
    """Each under the other's name."""
    aside = one.with_suffix(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def replace_by(other: Path) -> Callable[[Path], None]:
    """Another block under this one's name."""

    def replace(file: Path) -> None:
        shutil.copyfile(other, file)

    return replace
