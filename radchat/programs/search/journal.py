"""A search is resumed by being run again: what it asked before is answered from the session.

The algorithm is the same, its seeds are the same, and so it asks the same; an ask is known by the
message it follows and what is said there. Nothing else needs to be remembered: what was chosen,
pruned and spent comes out again, to the ask at which the search ended or was killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radchat.errors import InvalidInput
from radchat.programs.search.asks import Answer, Ask, Asks, Failed, OnDelta, Output
from radchat.programs.search.settings import Search


@dataclass(frozen=True, slots=True)
class Stored:
    """A search as it began, with the settings it was last given."""

    problem: str
    task: str
    search: Search
    run: int  # how often its settings have changed: what is stored need not be of these

    @classmethod
    def of(cls, opened: Mapping[str, Any]) -> Stored:
        """``opened``: of a search that was opened to be resumed."""
        told = [_search(message) for message in opened["found"]["messages"]]
        told = [each for each in told if "settings" in each]
        try:
            last = max(told, key=lambda each: int(each["run"]))
            search = Search.of_json(last["settings"])
            return cls(str(last["problem"]), str(last["task"]), search, int(last["run"]))
        except (ValueError, KeyError, TypeError):
            name = f"s{opened['number']}"
            raise InvalidInput(
                f"search {name} can't be resumed: its messages don't say how it began"
            ) from None


class Journal:
    """``asks`` with what is stored before it."""

    def __init__(self, asks: Asks, *, is_paid: bool) -> None:
        """``is_paid``: all that is stored counts as spent already, whether it is used or not."""
        found = asks.opened.get("found") or {"at": asks.opened.get("at"), "messages": []}
        self.opened, self._asks, self._is_paid = asks.opened, asks, is_paid
        self._at = found["at"]
        self._messages: dict[str, Mapping[str, Any]] = {m["id"]: m for m in found["messages"]}
        self._marks = {m["id"]: _mark(m) for m in found["messages"]}
        self._answers: dict[tuple[str | None, str], list[Mapping[str, Any]]] = defaultdict(list)
        for message in found["messages"]:
            above = self._messages.get(message["parent"])
            if message["role"] == "assistant" and above is not None:
                self._answers[above["parent"], above["text"]].append(message)
        self._unreleased: list[str] = []
        self._is_replay = bool(found["messages"])

    # -- what is there -----------------------------------------------------------------------------

    @property
    def tokens(self) -> int:
        """That were generated for what the search asked."""
        return sum(
            message["tokens"]
            for message in self._messages.values()
            if message["role"] == "assistant" and _search(self._messages.get(message["parent"], {}))
        )

    def outputs(self, ask: Ask) -> list[Output] | None:
        """Of an ask that is stored, whole."""
        told = [each for each in self._said(ask.at, ask.text) if _is_whole(each)]
        if ask.names is not None:
            named = {each["name"]: each for each in told}
            told = [named[name] for name in ask.names if name in named]
        if len(told) < ask.num_answers:
            return None
        return [
            Output(m["id"], m["text"], m["tokens"], m["logprob"]) for m in told[: ask.num_answers]
        ]

    def asked(self, at: str | None, text: str) -> str | None:
        """The user's message that says it there."""
        place = self._at if at is None else at
        said = (m for m in self._messages.values() if m["role"] == "user" and m["text"] == text)
        return next((str(m["id"]) for m in said if m["parent"] == place), None)

    def is_paid(self, ask: Ask) -> bool:
        return self._is_paid and self.outputs(ask) is not None

    def answer_tokens(self, answer_text: Callable[[Sequence[str]], str]) -> int:
        """That were generated for final answers, whole or not, after any of the thoughts."""
        texts = {m["name"]: m["text"] for m in self._messages.values() if m["name"]}
        num_tokens = 0
        for message in self._messages.values():
            name = message["name"]
            if name and message["role"] == "assistant":
                parts = name.split(".")
                names = [".".join(parts[:end]) for end in range(2, len(parts) + 1)]
                if all(each in texts for each in names):
                    said = self._said(message["id"], answer_text([texts[each] for each in names]))
                    num_tokens += sum(each["tokens"] for each in said)
        return num_tokens

    def _said(self, at: str | None, text: str) -> list[Mapping[str, Any]]:
        return self._answers.get((self._at if at is None else at, text), [])

    # -- Asks --------------------------------------------------------------------------------------

    def ask(self, asks: Sequence[Ask], on_delta: OnDelta) -> list[Answer | Failed]:
        stored = [self.outputs(ask) for ask in asks]
        missing = [number for number, outputs in enumerate(stored) if outputs is None]
        fresh: dict[int, Answer | Failed] = {}
        if missing:
            self.catch_up()

            def tell(number: int, choice: int, text: str) -> None:
                on_delta(missing[number], choice, text)

            asked = self._asks.ask([asks[number] for number in missing], tell)
            fresh = dict(zip(missing, asked, strict=True))
        return [
            fresh[number] if outputs is None else Answer(outputs)
            for number, outputs in enumerate(stored)
        ]

    def score(self, at: str | None, text: str, choices: Sequence[str]) -> Mapping[str, Any]:
        return self._asks.score(at, text, choices)

    def mark(self, marks: Mapping[str, str]) -> None:
        new = {each: mark for each, mark in marks.items() if self._marks.get(each) != mark}
        if new:
            self._asks.mark(new)

    def release(self, messages: Sequence[str]) -> int:
        """In a replay, when it has caught up: most of it was released before."""
        if self._is_replay:
            self._unreleased += messages
            return 0
        return self._asks.release(messages)

    def close(self) -> None:
        self._asks.close()

    def catch_up(self) -> None:
        self._is_replay = False
        if self._unreleased:
            self._asks.release(self._unreleased)
            self._unreleased = []


def _search(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a message says of the search it was asked by."""
    told = message.get("extra", {}).get("search")
    return told if isinstance(told, Mapping) else {}


def _is_whole(message: Mapping[str, Any]) -> bool:
    return message["finish_reason"] not in (None, "abort", "error")


def _mark(message: Mapping[str, Any]) -> str | None:
    name, score = message["name"], message["score"]
    return name if score is None else f"{name}={score:.4g}"
