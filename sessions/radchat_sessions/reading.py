"""A document of ours, read with distrust: whatever it says, only a sound one becomes a session.

Nothing of it is believed: references, the order of things, every digest, and the type of all that
is read back later (shapes.py) are checked before the store sees it. The words of an error name the
place, never what stands there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radchat_sessions import shapes
from radchat_sessions.content import Json, clean, digest, pack_ids
from radchat_sessions.errors import Unreadable
from radchat_sessions.scores import read as read_score


@dataclass(frozen=True, slots=True)
class Document:
    """A session as written by ``export``; its references hold and its digests are right."""

    session: Mapping[str, Any]
    head: Mapping[str, Any]
    branches: Mapping[str, str | None]
    labels: Sequence[Mapping[str, Any]]
    messages: Sequence[Mapping[str, Any]]  # parents before children; without their prompts
    prompts: Sequence[Mapping[str, Any]]  # each after what it stands on

    @property
    def ids(self) -> set[str]:
        """Of the session, its messages and its prompts."""
        return {self.session["id"], *(m["id"] for m in self.messages)} | {
            prompt["id"] for prompt in self.prompts
        }

    def renamed(self, new: Mapping[str, str]) -> Document:
        """The same with other ids. Digests don't cover ids, so they stay."""

        def other(value: Json) -> Json:
            if isinstance(value, str):
                return new.get(value, value)
            if isinstance(value, dict):
                return {key: other(item) for key, item in value.items()}
            return [other(item) for item in value] if isinstance(value, list) else value

        def renewed(record: Mapping[str, Any]) -> dict[str, Any]:
            words = ("parts", "holds", "digest", "tail", "out")  # what was said stays as it is
            return {k: v if k in words else other(v) for k, v in record.items()}

        return Document(
            session={**self.session, "id": new[self.session["id"]]},
            head=other(dict(self.head)),
            branches={name: other(message) for name, message in self.branches.items()},
            labels=[{**label, "message": other(label["message"])} for label in self.labels],
            messages=[renewed(record) for record in self.messages],
            prompts=[renewed(prompt) for prompt in self.prompts],
        )


def read(value: Json, records: Sequence[Json]) -> Document:
    """A header and the records of its messages. Raises Unreadable."""
    header = shapes.an_object(value, "the header")
    if header.get("version") != 1:
        raise Unreadable("it was written by a newer radchat: this one reads version 1")
    messages = [_message(record, number) for number, record in enumerate(records, 1)]
    prompts = sorted(
        (prompt for message in messages for prompt in message.pop("prompts")),
        key=lambda prompt: prompt["order"],
    )
    document = Document(
        shapes.fields(header.get("session"), "the session", shapes.SESSION),
        shapes.fields(header.get("head"), "head", shapes.HEAD),
        _branches(header.get("branches")),
        _labels(header.get("labels")),
        messages,
        prompts,
    )
    _check_tree(document)
    _check_prompts(document)
    _check_names(document)
    return document


# -- records ---------------------------------------------------------------------------------------


def _message(value: Any, number: int) -> dict[str, Any]:
    where = f"message {number}"
    record = shapes.fields(value, where, shapes.MESSAGE, shapes.MESSAGE_MAY)
    if ("prompt" in record) != ("out" in record):
        raise Unreadable(f"{where} has ids without a prompt, or a prompt without ids")
    if "out" in record and record["role"] != "assistant":
        raise Unreadable(f"{where} has ids and is no answer")
    if record.get("stopped") and not record.get("out"):
        raise Unreadable(f"{where} ends with a stop id and has no ids")
    prompts = [
        {**shapes.fields(p, f"a prompt of {where}", shapes.PROMPT), "message": record["id"]}
        for p in record.get("prompts", ())
    ]
    return {**record, "prompts": prompts}


def _branches(value: Any) -> dict[str, str | None]:
    branches = shapes.an_object(value, "branches")
    if not all(map(shapes.maybe(shapes.is_id), branches.values())):
        raise Unreadable("a branch does not name a message")
    return dict(clean(branches))


def _labels(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise Unreadable("labels is not a list")
    return [shapes.fields(each, f"label {n}", shapes.LABEL) for n, each in enumerate(value, 1)]


# -- what holds it together ------------------------------------------------------------------------


def _check_tree(document: Document) -> None:
    """Every parent is there and comes first; every digest is that of its words and ids."""
    digests: dict[str, str] = {}
    for number, record in enumerate(document.messages, 1):
        if record["id"] in digests:
            raise Unreadable(f"message {number} is there twice")
        parent = record["parent"]
        if parent is not None and parent not in digests:
            raise Unreadable(f"the message before message {number} is missing or comes after it")
        out = None if "out" not in record else pack_ids(record["out"])
        right = digest(digests.get(parent), record["role"], record["parts"], out)
        if record["digest"] != right:
            raise Unreadable(
                f"message {number} ({record['id'][:8]}) is not what was said: its digest differs"
            )
        digests[record["id"]] = right


def _check_prompts(document: Document) -> None:
    """Each stands on what comes before it and keeps no more ids than that has."""
    messages = {record["id"]: record for record in document.messages}
    lengths: dict[str, int] = {}
    for number, prompt in enumerate(document.prompts, 1):
        where = f"prompt {number}"
        base_message, base_prompt = prompt["base_message"], prompt["base_prompt"]
        if prompt["id"] in lengths or (base_message is not None and base_prompt is not None):
            raise Unreadable(f"{where} is there twice, or stands on two things")
        available = lengths.get(base_prompt, -1) if base_prompt is not None else 0
        if base_message is not None:
            answer = messages.get(base_message, {})
            available = lengths.get(answer.get("prompt", ""), -1)
            available += len(answer.get("out", ())) if available >= 0 else 0
        if available < 0:
            raise Unreadable(f"{where} stands on something that is not there")
        if prompt["kept"] > available:
            raise Unreadable(f"{where} keeps more ids than there are")
        lengths[prompt["id"]] = prompt["kept"] + len(prompt["tail"])
        if not lengths[prompt["id"]]:
            raise Unreadable(f"{where} has no ids")
        if prompt["points"][-1][2] > lengths[prompt["id"]]:
            raise Unreadable(f"points of {where} lie outside it")
        _check_shares(prompt, lengths[prompt["id"]], messages, where)
    ends = {prompt["id"]: prompt["message"] for prompt in document.prompts}
    for number, record in enumerate(document.messages, 1):
        if "prompt" in record and ends.get(record["prompt"]) != record["parent"]:
            raise Unreadable(f"the prompt of message {number} is missing or ends elsewhere")


def _check_shares(
    prompt: Mapping[str, Any], length: int, messages: Mapping[str, Any], where: str
) -> None:
    seen = set()
    for message, start, stop in prompt["shares"]:
        if message not in messages or message in seen or not start <= stop <= length:
            raise Unreadable(f"a share of {where} is of no message, or lies outside it")
        seen.add(message)


def _check_names(document: Document) -> None:
    known = {record["id"] for record in document.messages}
    if len(document.ids) != 1 + len(known) + len(document.prompts):
        raise Unreadable("two things have one id")
    ends = [*document.branches.values(), document.head["message"]]
    ends += [label["message"] for label in document.labels]
    if any(end is not None and end not in known for end in ends):
        raise Unreadable("a branch, label or HEAD names a message that is not there")
    scores = [label for label in document.labels if label["kind"] == "score"]
    named = [name for label in scores if (name := read_score(label["value"]).name) is not None]
    if len(set(named)) < len(named) or len({each["message"] for each in scores}) < len(scores):
        raise Unreadable("two messages have the name of one thought, or one message two scores")
    for number, record in enumerate(document.messages, 1):
        came = record.get("extra", {}).get("compacted")
        if came is not None and came["message"] not in known:
            raise Unreadable(f"extra of message {number} names a message that is not there")
    branch, message = document.head["branch"], document.head["message"]
    if branch is not None and (branch not in document.branches or message is not None):
        raise Unreadable("HEAD is on a branch that is not there")
