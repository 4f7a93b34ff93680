"""`/compact` and `/context` with real daemons: a branch from a summary; figures to the token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from radchat.daemon.compact_plan import REQUEST
from radchat.errors import ContextOverflow, InvalidInput
from radchat.protocol import Event
from tests.e2e.conftest import POOL, Homes
from tests.e2e.homes import Home, Shell, until
from tests.e2e.tiny_models import converted
from tests.engine.text_toys import TEMPLATES
from tests.waiting import wait_until

OPTIONS = {"temperature": 0, "max_tokens": 8, "num_ctx": 2000}
LONG = "much more of it " * 16  # 256 tokens


def say(shell: Shell, text: str = "", session: str | None = None, **args: Any) -> dict[str, Any]:
    options = {**OPTIONS, **args.pop("options", {})}
    args = {"new_session": session is None, "dtype": "fp32", **args}
    with shell.stream(text=text, session=session, options=options, **args) as events:
        return dict(list(events)[-1].data["branches"][0])


def talk(shell: Shell, **args: Any) -> dict[str, Any]:
    """Three long turns, two short ones."""
    answer = say(shell, f"the secret word is plum. {LONG}", **args)
    for number in (1, 2):
        answer = say(shell, f"{LONG} {number}", answer["session"])
    for text in ("short", "shorter"):
        answer = say(shell, text, answer["session"])
    return answer


def compact(shell: Shell, session: str, **args: Any) -> list[Event]:
    args = {"dtype": "fp32", "options": OPTIONS, **args}
    client = shell.home.client()
    with client.stream("compact", where=shell.where, session=session, **args) as events:
        return list(events)


def everything(home: Home, session: str) -> dict[str, Any]:
    """All that a session's tree is, but when it was used."""
    with home.store() as store:
        return {
            "messages": [m.id for m in store.messages(session)],
            "branches": store.branches(session),
            "labels": store.labels(session),
            "head": store.head(session),
            "running": store.running(session),
        }


def test_a_summary_is_asked_for_on_the_cached_path_and_begins_a_branch(terminal: Shell) -> None:
    before = talk(terminal, system="be brief")
    session, home = before["session"], terminal.home
    old = home.ids(before["message"])
    texts = terminal.texts(session=session)
    events = compact(terminal, session, text="Mind the plum.")
    done = events[-1].data
    cost = next(e.data for e in events if e.name == "notice")
    assert events[0].data is cost  # before anything else
    assert cost["cached"] >= len(old) - 1
    assert cost["computed"] <= len(f"{REQUEST}\n\nMind the plum.") + 40
    assert done["usage"]["cached_input_tokens"] == cost["cached"]
    assert done["usage"]["input_tokens"] == cost["cached"] + cost["computed"]
    summary = "".join(e.data["text"] for e in events if e.name == "delta").strip()
    assert summary == done["summary"] != ""
    assert terminal.texts(session=session) == [
        texts[0],
        ("user", f"{REQUEST}\n\nMind the plum."),
        ("assistant", summary),
        *texts[-2 * (done["kept_messages"] // 2) :],
    ]
    assert done["kept_messages"] == 4
    assert (done["branch"], done["label"]) == ("compact", "before-compact")
    assert terminal.texts("before-compact", session) == texts
    assert terminal.texts("main", session) == texts
    after = say(terminal, "and on", session)
    assert after["branch"] == "compact"
    assert after["usage"]["input_tokens"] == done["after"] + len("and on")
    back = say(terminal, "as it was", session, at="before-compact")
    assert home.ids(back["message"])[: len(old)] == old
    assert back["usage"]["cached_input_tokens"] >= len(old) - 1
    home.assert_balanced()


@pytest.mark.parametrize("how", ["undo", "switch"])
@pytest.mark.parametrize("in_chat", [False, True])
def test_undo_and_switch_go_back_to_where_it_was_and_redo_returns(
    terminal: Shell, how: str, in_chat: bool
) -> None:
    before = talk(terminal)
    session = before["session"]
    head = {"branch": "main", "message": before["message"]} if in_chat else None
    done = compact(terminal, session, head=head)[-1].data
    at = {"branch": done["branch"], "message": done["head"]} if in_chat else None
    args: dict[str, Any] = {"session": session, "head": at}
    moved = terminal.call(how, **args, **({"ref": "-"} if how == "switch" else {}))
    assert (moved["branch"], moved["head"]) == ("main", before["message"])
    assert moved.get("text") is None  # no turn was taken back
    with terminal.home.store() as store:
        stored = store.head(session)
        assert (stored.branch, stored.message) == ("main", before["message"])
        assert store.branch(session, "compact").message == done["head"]
    if how == "undo":
        now = {"branch": "main", "message": before["message"]} if in_chat else None
        again = terminal.call("redo", session=session, head=now)
        assert (again["branch"], again["head"]) == ("compact", done["head"])
        with terminal.home.store() as store:
            assert store.head(session).branch == "compact"


def test_a_chat_that_stands_elsewhere_goes_back_alone(terminal: Shell) -> None:
    """Its own HEAD is not the stored one: that stays where somebody else has put it."""
    before = talk(terminal)
    session = before["session"]
    terminal.call("switch", session=session, ref="1")
    head = {"branch": "main", "message": before["message"]}
    done = compact(terminal, session, head=head)[-1].data
    with terminal.home.store() as store:
        stored = store.head(session)
        assert stored.branch is None
    own = {"branch": done["branch"], "message": done["head"]}
    back = terminal.call("undo", session=session, head=own)
    assert (back["branch"], back["head"]) == ("main", before["message"])
    again = terminal.call("redo", session=session, head=head)
    assert (again["branch"], again["head"]) == (done["branch"], done["head"])
    with terminal.home.store() as store:
        assert store.head(session) == stored


def test_an_ephemeral_session_is_compacted_and_nothing_of_it_is_stored(terminal: Shell) -> None:
    session = talk(terminal, ephemeral=True)["session"]
    assert compact(terminal, session)[-1].data["branch"] == "compact"
    assert say(terminal, "and on", session)["branch"] == "compact"
    with terminal.home.store() as store:
        assert session not in {each.session.id for each in store.sessions()}


def test_a_second_compaction_has_names_of_its_own(terminal: Shell) -> None:
    session = talk(terminal)["session"]
    compact(terminal, session)
    for number in range(3):
        say(terminal, f"again and again {LONG} {number}", session)
    done = compact(terminal, session)[-1].data
    assert (done["branch"], done["label"]) == ("compact-2", "before-compact-2")
    first = terminal.texts("before-compact", session)[0]
    assert first == ("user", f"the secret word is plum. {LONG}")


def test_a_context_that_is_full_is_read_as_far_as_it_leaves_room(terminal: Shell) -> None:
    """Wholly full: whole turns are left out and stay as they are, and that is said."""
    session = talk(terminal)["session"]
    full = say(terminal, "and now all you know", session, options={"max_tokens": 5000})
    assert full["usage"]["input_tokens"] + full["usage"]["output_tokens"] == 2000
    with pytest.raises(ContextOverflow):
        say(terminal, "no room", session)
    texts = terminal.texts(session=session)
    events = compact(terminal, session)
    done = events[-1].data
    text = next(e.data["text"] for e in events if e.name == "notice")
    assert "the last 2 messages leave no room for it: they stay as they are" in text
    assert done["kept_messages"] >= 2
    assert terminal.texts(session=session)[2:] == texts[-done["kept_messages"] :]
    assert done["after"] < done["before"]
    assert done["usage"]["cached_input_tokens"] > 800
    assert say(terminal, "room", session)["usage"]["output_tokens"] == 8


def test_a_single_turn_that_fills_the_context_is_read_without_its_end(terminal: Shell) -> None:
    options = {"num_ctx": 1000, "max_tokens": 5000}
    full = say(terminal, "tell me everything", options=options)
    session = full["session"]
    events = compact(terminal, session, options=options)
    text = next(e.data["text"] for e in events if e.name == "notice")
    assert "the end of the last answer leaves no room for it and is not read" in text
    assert events[-1].data["usage"]["input_tokens"] == 1000 - 62
    assert events[-1].data["after"] < 500
    huge = say(terminal, "w" * 900, options=options)
    tree = everything(terminal.home, huge["session"])
    with pytest.raises(ContextOverflow, match="fork from an earlier turn"):
        compact(terminal, huge["session"], options=options)
    assert everything(terminal.home, huge["session"]) == tree


def test_what_would_save_nothing_or_has_no_answer_changes_nothing(terminal: Shell) -> None:
    session = say(terminal, "hello")["session"]
    tree = everything(terminal.home, session)
    with pytest.raises(InvalidInput, match="this path is too short to compact") as refused:
        compact(terminal, session)
    shown = terminal.call("context", session=session, options={"num_ctx": 2000})["tokens"]
    numbers = re.search(r"it is (\d+) tokens .* would be (\d+) with", refused.value.message)
    assert numbers is not None
    assert int(numbers[1]) == shown <= int(numbers[2])
    assert everything(terminal.home, session) == tree
    fresh = terminal.call("sessions.open", new=True)["id"]
    with pytest.raises(InvalidInput, match="no answer on this path yet"):
        compact(terminal, fresh)


def test_a_summary_that_is_cut_off_leaves_the_tree_as_it_was(homes: Homes) -> None:
    """In the middle of it the client goes, the daemon is told to end, the daemon is killed."""
    home = homes()
    shell = Shell(home, "1")
    session = talk(shell)["session"]
    tree = everything(home, session)
    ends = (lambda: None, lambda: home.client().call("stop", force=True), home.kill)
    for end in ends:
        if not home.is_up:
            shell("daemon", "start")
        asked = {"where": shell.where, "session": session, "dtype": "fp32"}
        with home.client().stream("compact", **asked, options={"temperature": 0}) as events:
            until(events, "delta", 1)
            end()
        if end is ends[1]:
            wait_until(lambda: not home.is_up)
        if home.is_up:
            home.assert_balanced()
        assert everything(home, session) == tree
    shell("daemon", "start")
    assert compact(shell, session)[-1].data["branch"] == "compact"
    used = say(shell, "and on", session)["usage"]
    exact = shell.call("context", session=session)
    home.client().call("models.unload")
    told = shell.call("context", session=session)
    assert home.status()["model"] is None  # none is loaded to look
    assert (exact["exact"], told["exact"]) == (True, False)
    assert told["used"] == exact["used"] == used["input_tokens"] + used["output_tokens"]
    assert sum(told["parts"].values()) == told["used"]
    assert told["limit"] is None


@pytest.fixture(scope="module")
def strict(sources: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Templates that want user and assistant in turn; Gemma's refuses a system prompt, Nemo's
    writes it with the last message.
    """
    models = tmp_path_factory.mktemp("strict") / "models"
    added = {
        "gemma": ("<start_of_turn>", "<end_of_turn>"),
        "nemo": ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
    }
    made = {
        name: converted(
            models,
            name,
            template=(TEMPLATES / f"{name}.jinja").read_text(),
            added=tokens,
            favours=("d", "e"),
        )
        for name, tokens in added.items()
    }
    home = Home(sources, made, RADCHAT_KV_DEVICE=POOL, RADCHAT_CHECK="1")
    yield home
    home.close()


@pytest.mark.parametrize(("model", "system"), [("gemma", None), ("nemo", None), ("nemo", "brief")])
def test_a_compaction_suits_templates_that_want_roles_in_turn(
    strict: Home, model: str, system: str | None
) -> None:
    shell = Shell(strict, f"{model}{system}")
    given = {"model": model, "system": system} if system else {"model": model}
    session = talk(shell, **given)["session"]
    done = compact(shell, session)[-1].data
    texts = shell.texts(session=session)
    assert texts[:1] == ([("system", system)] if system else [("user", REQUEST)])
    told = shell.call("context", session=session, text="and on")
    assert told["parts"]["system"] == len(system or "")
    assert sum(told["parts"].values()) == told["tokens"]
    assert told["parts"]["user"] >= len(REQUEST) + len("and on")
    after = say(shell, "and on", session)
    assert after["branch"] == "compact"
    assert after["usage"]["input_tokens"] == told["tokens"] == done["after"] + len("and on")
    strict.assert_balanced()


# -- what fills it ---------------------------------------------------------------------------------


def test_what_fills_the_context_adds_up_to_the_ids_of_the_next_prompt(terminal: Shell) -> None:
    files = [{"name": "a.txt", "text": "plums and pears\n"}]
    answer = say(terminal, "what is in it?", system="be brief", files=files)
    answer = say(terminal, "más, por favor ☃", answer["session"])
    session = answer["session"]
    told = terminal.call("context", session=session, text="next")
    parts = told["parts"]
    assert parts["system"] == len("be brief")
    assert parts["files"] == len("a.txt:\n\nplums and pears")
    assert parts["user"] == len("what is in it?") + len("más, por favor ☃".encode()) + len("next")
    assert parts["answers"] == 16
    assert parts["reasoning"] == parts["tools"] == 0
    assert sum(parts.values()) == told["tokens"]
    assert told["used"] == answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"]
    assert told["free"] == told["limit"] - told["tokens"]
    assert [m["tokens"] for m in told["messages"]][-2:] == [8, 8]
    assert told["messages"][0]["files"] == ["a.txt"]
    assert told["cached"]["device"] + told["computed"] == told["tokens"]
    following = say(terminal, "next", session)
    assert following["usage"]["input_tokens"] == told["tokens"]
    assert following["usage"]["cached_input_tokens"] == told["cached"]["device"]


def test_a_summary_is_drawn_with_the_settings_of_config_toml(homes: Homes) -> None:
    shell = Shell(homes(), "1")
    shell("config", "set", "temperature", "0")
    session = talk(shell)["session"]
    summaries = []
    for _ in range(2):
        summaries.append(compact(shell, session, options={"num_ctx": 2000})[-1].data["summary"])
        shell("switch", "before-compact", "--session", session)
    assert summaries[0] == summaries[1]
