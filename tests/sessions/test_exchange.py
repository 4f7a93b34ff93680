"""Out of a store and into another: the same tree to the last id; and no bad file gets in."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radchat_sessions import imports
from radchat_sessions.content import digest, pack_ids
from radchat_sessions.errors import Unreadable
from radchat_sessions.messages import NewAnswer, NewMessage
from radchat_sessions.names import Names
from radchat_sessions.rendering import closed, render
from radchat_sessions.store import Store
from tests.sessions.talk import Clock, Talk

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
NAMES = st.sampled_from(["main", "side", "über", "b-2"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), TEXTS, NAMES),
        st.tuples(st.just("retry"), TEXTS, st.booleans()),
        st.tuples(st.just("fork"), st.integers(0, 99), NAMES),
        st.tuples(st.just("undo"), st.integers(1, 2), NAMES),
        st.tuples(st.just("label"), st.integers(0, 99), st.sampled_from(["good", "bad"])),
        st.tuples(st.just("note"), TEXTS, st.sampled_from(["system", "tool", "assistant"])),
        st.tuples(st.just("session"), st.integers(0, 99), NAMES),
    ),
    max_size=12,
)


@contextmanager
def memory() -> Iterator[Store]:
    store = Store.open(":memory:", clock=Clock())
    try:
        yield store
    finally:
        store.close()


def live(store: Store, steps: list[tuple[str, Any, Any]]) -> str:
    """A session with any kind of tree in it."""
    talk = Talk(store)
    for what, one, two in steps:
        messages = store.messages(talk.id)
        branch = store.head(talk.id).last_branch
        if what == "turn":
            talk.turn(one, f"to {one}", branch)
        elif what == "retry" and talk.head and store.message(talk.head).out_len is not None:
            talk.retry(one, expected=talk.head, branch=branch if two else None)
        elif what == "fork" and messages:
            at = messages[one % len(messages)].id
            if store.find_branch(talk.id, two) is None:
                store.create_branch(talk.id, two, at)
            store.move_head(talk.id, branch=two)
        elif what == "undo" and sum(m.role == "user" for m in store.path(talk.head)) >= one:
            store.undo(talk.id, one)
        elif what == "label" and messages:
            store.add_label(talk.id, messages[one % len(messages)].id, two)
        elif what == "note":
            new = [NewMessage.of(two, one)]
            store.append(talk.id, parent=talk.head, new=new, branch=branch)
        elif what == "session" and messages:  # what it shares with its parent is in its document
            at = messages[one % len(messages)].id
            talk = Talk(store, store.create_session(clock="2026-01-02", fork_of=(talk.id, at)))
    return talk.id


def read(text: str) -> list[Any]:
    return imports.parse(text.encode(), "file")


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """Ids by the order in which they stand in it."""
    names: dict[str, str] = {document["session"]["id"]: "session"}
    for number, record in enumerate(document["messages"]):
        names[record["id"]] = f"m{number}"
        for prompt in record.get("prompts", ()):
            names[prompt["id"]] = f"p{prompt['order']}"

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: named(item) for key, item in value.items()}
        if isinstance(value, list):
            return [named(item) for item in value]
        return names.get(value, value) if isinstance(value, str) else value

    return dict(named(document))


@given(STEPS, st.sampled_from(["json", "jsonl"]))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_session_comes_back_as_it_was(steps: list[tuple[str, Any, Any]], form: Any) -> None:
    with memory() as store, memory() as other:
        session = live(store, steps)
        document = store.export(session)
        text = render(document, form)
        prompts = {p["id"] for m in document["messages"] for p in m.get("prompts", ())}
        (taken,) = other.take_in(read(text))
        assert (taken.session, taken.renewed) == (session, False)
        assert other.export(session) == document
        assert other.verify() == []
        for message in store.messages(session):
            assert message.out_len is None or other.ids(message.id) == store.ids(message.id)
            span = store.span(message.id)
            if span is not None and span.prompt in prompts:  # else another session's answers had it
                assert other.span(message.id) == span
        (again,) = other.take_in(read(text))  # its ids are in use now
        assert again.renewed
        copied = other.export(again.session)
        assert copied["session"]["name"] != document["session"]["name"]
        copied["session"]["name"] = document["session"]["name"]
        assert plain(copied) == plain(document)
        assert other.verify() == []
        other.remove(session)
        assert other.verify() == []
        assert plain(other.export(again.session))["messages"] == plain(document)["messages"]
        render(document, "md", every=True)
        render(document, "openai", every=True)


@given(STEPS, st.integers(0, 99))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_path_of_any_session_stands_alone(steps: list[tuple[str, Any, Any]], at: int) -> None:
    with memory() as store, memory() as other:
        session = live(store, steps)
        messages = store.messages(session)
        if not messages:
            return
        end = messages[at % len(messages)].id
        (taken,) = other.take_in(read(render(store.export(session, end), "jsonl")))
        path = [m.id for m in store.path(end)]
        assert [m.id for m in other.messages(taken.session)] == path
        assert other.head(taken.session).message == end
        assert [other.ids(m) for m in path if store.message(m).out_len is not None] == [
            store.ids(m) for m in path if store.message(m).out_len is not None
        ]
        assert other.verify() == []


def test_the_path_of_a_compaction_does_not_lead_back_to_what_stays(
    talk: Talk, store: Store
) -> None:
    old = talk.turn("one", "1")
    came = {"compacted": {"branch": "main", "message": old.id}}
    short_answer = NewMessage("assistant", ({"type": "text", "text": "1"},), extra=came)
    new = [NewMessage.of("user", "in short?"), short_answer]
    store.append(talk.id, parent=None, new=new, branch="short")
    short = store.branch(talk.id, "short").message
    whole, alone = store.export(talk.id), store.export(talk.id, short)
    assert [m["extra"] for m in whole["messages"] if "extra" in m] == [came]
    assert [m.get("extra") for m in alone["messages"]] == [None, None]
    (taken,) = store.take_in(read(render(alone, "json")))  # beside the one it came from
    assert store.undo(taken.session).message is None


def test_a_running_answer_is_not_in_the_document(talk: Talk, store: Store) -> None:
    talk.turn("one", "1")
    begun = talk.begin("two", answers=[NewAnswer("main")])
    with memory() as other:
        other.take_in(read(render(store.export(talk.id), "json")))
        assert [m.text for m in other.messages(talk.id)] == ["one", "1", "two"]
        assert other.verify() == []
    store.abandon(begun.answer_ids[0])


def test_a_pin_stays_with_the_cache_it_was_set_in(talk: Talk, store: Store) -> None:
    first = talk.turn("one", "1")
    store.add_label(talk.id, first.id, "1796042051", "pin")
    store.add_label(talk.id, first.id, "s1.1=0.5", "score")
    with memory() as other:
        other.take_in(read(render(store.export(talk.id), "json")))
        assert [(m.kind, m.value) for m in other.labels(talk.id)] == [("score", "s1.1=0.5")]


def test_everything_told_about_an_answer_is_in_the_document(talk: Talk, store: Store) -> None:
    begun = store.begin(
        talk.id,
        parent=None,
        new=[NewMessage.of("user", "q")],
        prompt=talk.prompt(None, ["q"]),
        answers=[NewAnswer("main", seed=2**64 - 1, choice=0)],
        model="m",
        dtype="fp32",
        sampling={"temperature": 0.7},
    )
    told = store.finish(
        begun.answer_ids[0],
        ids=talk.prompt(None, ["x"]).tail,
        parts=[{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "a"}],
        finish_reason="length",
        usage={"input_tokens": 3},
        timing={"total_s": 0.125},
        stopped=False,
        holds="hm",
        extra={"error": "none"},
    ).message
    with memory() as other:
        other.take_in(read(render(store.export(talk.id), "json")))
        assert other.message(told.id) == told


# -- what does not get in --------------------------------------------------------------------------


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return change


def prompt_of(document: dict[str, Any], number: int) -> dict[str, Any]:
    prompts = [p for m in document["messages"] for p in m.get("prompts", ())]
    return dict.__getitem__({"p": prompts[number]}, "p")


def redone(document: dict[str, Any], number: int, **change: Any) -> None:
    """A message changed by somebody who knows how digests are made."""
    document["messages"][number].update(change)
    digests: dict[str | None, str | None] = {None: None}
    for record in document["messages"]:
        ids = pack_ids(record["out"]) if "out" in record else None
        record["digest"] = digest(digests[record["parent"]], record["role"], record["parts"], ids)
        digests[record["id"]] = record["digest"]


BAD: dict[str, Callable[[dict[str, Any]], object]] = {
    "a changed word": lambda d: d["messages"][0]["parts"][0].update(text="other"),
    "a changed id": lambda d: d["messages"][1]["out"].__setitem__(0, 7),
    "ids taken away": lambda d: (d["messages"][3].pop("out"), d["messages"][3].pop("prompt")),
    "ids without a prompt": lambda d: d["messages"][1].pop("prompt"),
    "a changed role": lambda d: d["messages"][0].update(role="system"),
    "no role": lambda d: d["messages"][0].pop("role"),
    "another role": lambda d: d["messages"][0].update(role="wizard"),
    "a parent that is not there": lambda d: d["messages"][2].update(parent="0" * 32),
    "a parent after its child": lambda d: d["messages"].reverse(),
    "a message twice": lambda d: d["messages"].append(copy.deepcopy(d["messages"][0])),
    "a message less": lambda d: d["messages"].pop(2),
    "an odd id": lambda d: d["messages"][0].update(id="../../etc/passwd"),
    "a time that is none": lambda d: d["messages"][0].update(created="now"),
    "a time beyond all": lambda d: d["messages"][0].update(created=10**400),
    "parts that are no list": lambda d: d["messages"][0].update(parts="text"),
    "a field from nowhere": lambda d: d["messages"][0].update(sql="'; DROP TABLE"),
    "a token that is none": lambda d: d["messages"][1]["out"].append(-1),
    "a token too large": lambda d: d["messages"][1]["out"].append(2**32),
    "a token that is true": lambda d: prompt_of(d, 0)["tail"].append(True),
    "a prompt that keeps too much": lambda d: prompt_of(d, 1).update(kept=10_000),
    "a prompt on nothing": lambda d: prompt_of(d, 1).update(base_message="0" * 32),
    "a prompt on itself": lambda d: prompt_of(d, 0).update(base_prompt=prompt_of(d, 0)["id"]),
    "a prompt on two things": lambda d: prompt_of(d, 1).update(base_prompt=prompt_of(d, 0)["id"]),
    "a prompt less": lambda d: d["messages"][0].pop("prompts"),
    "a prompt elsewhere": lambda d: d["messages"][3].update(prompt=prompt_of(d, 0)["id"]),
    "a share outside": lambda d: prompt_of(d, 0)["shares"][0].__setitem__(2, 999),
    "a share of nobody": lambda d: prompt_of(d, 0)["shares"][0].__setitem__(0, "0" * 32),
    "two things of one id": lambda d: d["session"].update(id=d["messages"][0]["id"]),
    "a branch to nowhere": lambda d: d["branches"].update(lost="0" * 32),
    "a branch of a bad name": lambda d: d["branches"].update({"a b": None}),
    "a session of a bad name": lambda d: d["session"].update(name="-rf"),
    "a head on no branch": lambda d: d["head"].update(branch="nowhere"),
    "a head in two places": lambda d: d["head"].update(message=d["messages"][0]["id"]),
    "a label to nowhere": lambda d: d["labels"].append(
        {"message": "0" * 32, "kind": "label", "value": "x"}
    ),
    "a label of a kind from nowhere": lambda d: d["labels"].append(
        {"message": d["messages"][0]["id"], "kind": "crown", "value": "x"}
    ),
    "two thoughts of one name": lambda d: d["labels"].extend(
        {"message": message["id"], "kind": "score", "value": value}
        for message, value in zip(d["messages"], ("s1.1", "s1.1=7"), strict=False)
    ),
    "two scores of one message": lambda d: d["labels"].extend(
        {"message": d["messages"][0]["id"], "kind": "score", "value": value}
        for value in ("s1.1", "s1.2")
    ),
    "a clock that tells no time": lambda d: d["session"].update(clock="yesterday"),
    "a session used beyond the calendar": lambda d: d["session"].update(used=10**15),
    "points that are none": lambda d: prompt_of(d, 0).update(points="garbage"),
    "no points": lambda d: prompt_of(d, 0).update(points=[]),
    "a point of two": lambda d: prompt_of(d, 0).update(points=[[0, "x"]]),
    "points in no order": lambda d: prompt_of(d, 0).update(points=[[2, "x", 2], [1, "x", 1]]),
    "a point outside": lambda d: prompt_of(d, 0).update(points=[[1, "x", 999]]),
    "a prompt of nothing": lambda d: prompt_of(d, 0).update(tail=[], shares=[]),
    "cleared that is no list": lambda d: prompt_of(d, 0)["extra"].update(cleared=5),
    "a context that is no number": lambda d: d["messages"][1].update(extra={"context": "lots"}),
    "a compaction of nothing": lambda d: d["messages"][1].update(extra={"compacted": 5}),
    "a compaction from nowhere": lambda d: d["messages"][1].update(
        extra={"compacted": {"branch": "main", "message": "0" * 32}}
    ),
    "a reuse that is a number": lambda d: d["messages"][1].update(usage={"reuse": 5}),
    "a reuse of other keys": lambda d: d["messages"][1].update(usage={"reuse": {"now": 1}}),
    "tiers that are none": lambda d: d["messages"][1].update(usage={"cache": {"device": 1}}),
    "tokens in words": lambda d: d["messages"][1].update(usage={"input_tokens": "many"}),
    "a speed in words": lambda d: d["messages"][1].update(timing={"tokens_per_s": "fast"}),
    "ids of what is no answer": lambda d: redone(d, 1, role="user"),
    "a stop id of no ids": lambda d: redone(d, 1, out=[]),
    "a text that is none": lambda d: redone(d, 1, parts=[{"type": "text", "text": 5}]),
    "a file without a name": lambda d: redone(d, 1, parts=[{"type": "file", "text": "x"}]),
    "a call that is none": lambda d: redone(d, 1, parts=[{"type": "tool_call", "call": "x"}]),
    "a result of what is no call": lambda d: redone(
        d, 1, parts=[{"type": "text", "text": "", "call": []}]
    ),
    "no session": lambda d: d.pop("session"),
    "no branches": lambda d: d.pop("branches"),
    "a later version": lambda d: d.update(version=2),
    "messages that are no list": lambda d: d.update(messages={}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_document_is_refused_and_nothing_of_the_import_stays(
    talk: Talk, store: Store, name: str
) -> None:
    talk.turn("walnut", "1")
    talk.turn("two", "2")
    document = json.loads(json.dumps(store.export(talk.id)))
    sound = copy.deepcopy(document)
    BAD[name](document)
    assert document != sound
    with memory() as other:
        before = Talk(other)
        before.turn("mine", "yes")
        with pytest.raises(Unreadable) as told:
            other.take_in([*read(json.dumps(sound)), *read(json.dumps(document))])
        assert "walnut" not in told.value.message  # nobody's words in an error
        assert [s.session.id for s in other.sessions()] == [before.id]
        assert other.verify() == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("  \n ", "empty"),
        ("not json", "not JSON"),
        ("# talk\n\n**user**\n", "an export as json or jsonl"),
        ("{", "not JSON"),
        ('{"format": "radchat-session", "version": 1}\n{"id"', "line 2 is not JSON"),
        ("[]", "no session, no list"),
        ("{}", "no session, no list"),
        ("7", "no session, no list"),
        ("[NaN]", "NaN"),
        ("[1e999]", "too large"),
        ("[" * 100_000, "nested too deeply"),
        ('[{"role": "wizard", "content": "x"}]', "message 1 has no role"),
        ('[{"role": "user", "content": 7}]', "content of message 1"),
        ('[{"role": "user", "content": [7]}]', "a part of no kind"),
        ('[{"role": "user", "content": "x"}, 7]', "message 2 is not an object"),
        ('[{"role": "assistant", "tool_calls": "x"}]', "tool_calls of message 1"),
        ('[{"role": "assistant", "tool_calls": ["x"]}]', "tool_calls of message 1"),
        ('[{"role": "user", "content": [{"type": "text", "text": 7}]}]', "a part of no kind"),
        ('[{"role": "user", "content": [{"type": "text"}]}]', "a part of no kind"),
    ],
)
def test_a_text_that_is_no_conversation_says_what_is_wrong_with_it(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read(text)
    with pytest.raises(Unreadable, match="UTF-8"):
        imports.parse(b"\xff\xfe[]", "x")


# -- OpenAI ----------------------------------------------------------------------------------------


def test_openai_messages_come_in_as_text(store: Store) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "look "},
                                     {"type": "image_url", "image_url": {"url": "x"}},
                                     {"type": "input_text", "text": "here"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
        {"role": "assistant", "content": "It is 42.", "reasoning_content": "hm"},
    ]  # fmt: skip
    for text in (
        json.dumps(messages),
        json.dumps({"model": "gpt", "messages": messages}),
        "\n".join(json.dumps(message) for message in messages),
        "\ufeff" + json.dumps(messages, indent=2),
    ):
        drafts = read(text)
        assert imports.left_out(drafts) == {"image_url": 1}
        (taken,) = store.take_in(drafts)
        path = store.path(store.head(taken.session).message)
        assert [(m.role, m.text) for m in path] == [
            ("system", "Be brief."), ("user", "look here"), ("assistant", ""), ("tool", "42"),
            ("assistant", "It is 42."),
        ]  # fmt: skip
        assert path[-1].reasoning == "hm"
        assert path[-1].model == ("gpt" if "gpt" in text else None)
        assert all(m.out_len is None and store.ids(m.id) is None for m in path)
        assert store.session(taken.session).name.startswith("look-here")
    assert store.verify() == []


def test_lines_of_conversations_are_as_many_sessions(store: Store) -> None:
    line = {"messages": [{"role": "user", "content": "hello"}]}
    assert len(store.take_in(read("\n".join([json.dumps(line)] * 3)))) == 3
    assert len(store.take_in(read(json.dumps([line, line])))) == 2


class Looks(set[str]):
    """A set that counts how often it is looked into."""

    count = 0

    def __contains__(self, name: object) -> bool:
        self.count += 1
        return super().__contains__(name)


def test_many_conversations_of_one_name_are_named_in_as_many_steps() -> None:
    taken = Looks({"hello", "hello-3", "hello-5"})
    names = Names(taken)
    assert [names.take(name) for name in ("hello", "hello-5", "hello", "other", "other")] == [
        "hello-2", "hello-4", "hello-6", "other", "other-2",
    ]  # fmt: skip
    assert len({names.take("hello") for _ in range(500)}) == 500
    assert taken.count < 2 * 500 + 20


def test_the_names_of_all_sessions_are_read_once_in_an_import(store: Store) -> None:
    asked: list[str] = []
    line = {"messages": [{"role": "user", "content": "hello"}]}
    store._db._connection.set_trace_callback(asked.append)
    store.take_in(read("\n".join([json.dumps(line)] * 20)))
    assert sum(sql.startswith("SELECT name FROM sessions") for sql in asked) == 1


def test_what_we_write_for_openai_is_what_we_read(talk: Talk, store: Store) -> None:
    talk.turn("one", "1")
    first = talk.turn("two", "2")
    store.create_branch(talk.id, "side", store.path(first.id)[1].id)
    (draft,) = read(render(store.export(talk.id), "openai"))
    (taken,) = store.take_in([draft])
    assert talk.words(store.head(taken.session).message) == ["one", "1", "two", "2"]
    assert len(read(render(store.export(talk.id), "openai", every=True))) == 2


def test_broken_surrogates_are_mended_on_the_way_in(store: Store) -> None:
    (taken,) = store.take_in(read('[{"role": "user", "content": "a \\ud83c b \\ud83c\\udf48"}]'))
    assert store.messages(taken.session)[0].text == "a \ufffd b \U0001f348"
    assert store.verify() == []


# -- Markdown --------------------------------------------------------------------------------------


def test_markdown_keeps_code_blocks_inside_their_message(talk: Talk, store: Store) -> None:
    parts = (
        {"type": "file", "name": "a.md", "text": "# in\n```\ncode\n```\n"},
        {"type": "text", "text": "open:\n```python\nx = 1"},
    )
    store.append(talk.id, parent=None, new=[NewMessage("user", parts)], branch="main")
    talk.turn("next", "answer")
    text = render(store.export(talk.id), "md")
    assert "a.md:\n\n````\n# in\n```\ncode\n```\n````\n" in text
    assert "open:\n```python\nx = 1\n```\n\n## user\n\nnext\n" in text


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        ("plain", ""),
        ("```\na\n```", ""),
        ("```\na", "```"),
        ("~~~\n```\n", "~~~"),
        ("````\n```\n", "````"),
        ("```\n````", ""),
        ("`` ` ``", ""),
        ("```a`b\n", ""),
        ("    ```\n", ""),
        ("   ```\n", "```"),
        ("```\n```py", "```"),
        ("~~~~ x\n~~~", "~~~~"),
    ],
)
def test_an_open_code_block_is_ended_and_no_other(text: str, tail: str) -> None:
    assert closed(text) == (f"{text}\n{tail}" if tail else text)


def test_all_branches_are_told_and_what_they_share_once(talk: Talk, store: Store) -> None:
    first = talk.turn("one", "1")
    talk.turn("two", "2")
    begun = talk.begin("aside", parent=first.id, branch="side", keep_head=True)
    talk.finish(begun.answer_ids[0], "3")
    text = render(store.export(talk.id), "md", every=True)
    assert text.count("\none\n") == 1
    assert text.index("# branch main") < text.index("# branch side")
    assert f"(goes on from {first.id[:4]}" in text
    assert "aside" not in render(store.export(talk.id), "md")


# -- and what nobody thought of --------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=4,
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to everything in a JSON value."""
    if isinstance(value, (dict, list)):
        inner = list(value.items() if isinstance(value, dict) else enumerate(value))
    else:
        inner = []
    found = []
    for key, item in inner:
        found += [(*path, key), *places_in(item, (*path, key))]
    return found


@given(st.integers(0, 10**6), VALUES, st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_document_changed_anywhere_is_refused_or_sound(at: int, value: Any, drop: bool) -> None:
    with memory() as store, memory() as other:
        talk = Talk(store)
        first = talk.turn("one", "1")
        talk.turn("two", "2")
        store.add_label(talk.id, first.id, "good")
        document = json.loads(json.dumps(store.export(talk.id)))
        *path, last = (places := places_in(document))[at % len(places)]
        inside: Any = document
        for key in path:
            inside = inside[key]
        if drop:
            del inside[last]
        else:
            inside[last] = value
        try:
            other.take_in(read(json.dumps(document)))
        except Unreadable:
            assert other.sessions() == []
        assert other.verify() == []


@given(VALUES | st.lists(st.dictionaries(st.sampled_from(["role", "content", "messages"]), VALUES)))
@settings(max_examples=80, deadline=None)
def test_any_json_is_a_conversation_or_refused(value: Any) -> None:
    with memory() as store:
        try:
            store.take_in(read(json.dumps(value)))
        except Unreadable:
            assert store.sessions() == []
        assert store.verify() == []
