"""Going back, going on, and naming places: every command that moves or branches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import EXACT
from tests.e2e.homes import Shell

SEEDED = ("--exact", "--temp", "1", "--seed", "7")  # the same draws every time


def branches(shell: Shell) -> dict[str, str]:
    return dict(shell.tree()["branches"])


def head(shell: Shell) -> tuple[str | None, str | None]:
    tree = shell.tree()
    return tree["branch"], tree["head"]


@pytest.fixture
def talked(terminal: Shell) -> list[dict[str, Any]]:
    """Three turns in the terminal's session."""
    first = terminal.quick("turn one")
    texts = ("turn two", "turn three")
    return [first, *(terminal.quick(text, first["session"]) for text in texts)]


def last_asked(shell: Shell) -> str:
    """The last user message on the path."""
    return str([m for m in shell.call("log")["messages"] if m["role"] == "user"][-1]["id"])


def users(shell: Shell) -> list[str]:
    return [text for role, text in shell.texts() if role == "user"]


def test_retry_answers_again_beside_the_first_and_shares_its_prompt(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    again = terminal.json("retry", "--exact", "--temp", "1", "--max-tokens", "8")["branches"][0]
    assert again["parent"] == talked[2]["parent"]
    assert again["message"] != talked[2]["message"]
    assert again["usage"]["input_tokens"] == talked[2]["usage"]["input_tokens"]
    assert again["cache"]["computed"] == 1
    assert head(terminal) == ("main", again["message"])
    with terminal.home.store() as store:
        prompts = {store.message(a["message"]).prompt for a in (again, talked[2])}
        assert len(prompts) == 1
    other = terminal.json("retry", "--exact", "--temp", "1", "--max-tokens", "8")["branches"][0]
    assert other["seed"] != again["seed"]  # a new draw
    earlier = terminal.json("retry", "2", *EXACT)["branches"][0]
    assert earlier["text"] == talked[1]["text"]
    assert users(terminal) == ["turn one", "turn two"]
    assert head(terminal)[0] != "main"


def test_retry_k_times_makes_k_branches_with_names_and_ids_of_their_own(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    answers = terminal.json("retry", "-N", "3", *SEEDED, "--max-tokens", "6")
    made = {a["branch"]: a["message"] for a in answers["branches"]}
    assert len(made) == 3
    for name, message in made.items():
        assert branches(terminal)[name] == message
    # a draw may end by itself before the limit
    lengths = [a["usage"]["output_tokens"] for a in answers["branches"]]
    assert all(1 <= n <= 6 for n in lengths)
    assert answers["usage"]["output_tokens"] == sum(lengths)
    done = terminal("retry", "-N", "2", *SEEDED, "--max-tokens", "6")
    assert done.out.count("[1]") == done.out.count("[2]") == 1
    assert "moved on" not in done.err


def test_edit_makes_a_sibling_and_keeps_what_was_there(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    changed = terminal.json("edit", "2", "turn two, but other", *EXACT)
    assert users(terminal) == ["turn one", "turn two, but other"]
    with terminal.home.store() as store:
        asked = store.message(changed["parent"])
        assert asked.parent == talked[0]["message"]
        assert len(store.messages(changed["session"])) == 8
    # nothing of turn one is computed again
    kept = len(terminal.home.ids(talked[0]["message"]))
    assert changed["usage"]["cached_input_tokens"] >= kept - 1
    terminal("switch", talked[2]["message"][:10])
    assert users(terminal) == ["turn one", "turn two", "turn three"]
    piped = terminal("edit", "1", *EXACT, stdin="from a pipe")
    assert "·" in piped.err
    assert users(terminal) == ["from a pipe"]
    terminal("edit", "9", "no such turn", *EXACT, code=66)
    terminal("edit", "1", "   ", *EXACT, code=2)


def test_continue_goes_on_token_for_token_and_refuses_what_is_complete(terminal: Shell) -> None:
    whole = terminal.ask("tell me all", "--max-tokens", "30")
    terminal.ask("tell me all", "--max-tokens", "11")
    longer = terminal.json("continue", *EXACT, "--max-tokens", "10")
    assert terminal.home.out_ids(longer["message"]) == terminal.home.out_ids(whole["message"])[:21]
    assert longer["usage"]["cached_input_tokens"] >= whole["usage"]["input_tokens"] + 10
    last = terminal.json("continue", *EXACT, "--max-tokens", "9")
    assert last["parent"] == longer["parent"] == last_asked(terminal)
    assert terminal.home.out_ids(last["message"]) == terminal.home.out_ids(whole["message"])
    assert last["text"] == whole["text"]
    assert head(terminal) == ("main", last["message"])
    assert len(terminal.texts()) == 2
    terminal.ask("end by yourself", "-m", "other", "--max-tokens", "600")
    refused = terminal("continue", *EXACT, code=42)
    assert "complete" in refused.err
    stopped = terminal.ask("tell me all", "--max-tokens", "30", "--stop", whole["text"][9:12])
    assert stopped["text"] == whole["text"][:9]  # ended by a string of ours, not by itself
    on = terminal.json("continue", *EXACT, "--max-tokens", "6")
    assert whole["text"].startswith(on["text"])
    assert len(on["text"]) > 9
    terminal("continue", "HEAD~1", *EXACT, code=66)


def test_undo_and_redo_go_back_and_forth_and_delete_nothing(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    back = terminal.json("undo")
    assert back["head"] == talked[1]["message"]
    assert back["text"] == "turn three"
    assert terminal.json("undo", "2")["head"] is None
    assert terminal.json("redo")["head"] == talked[1]["message"]
    assert terminal.json("redo")["head"] == talked[2]["message"]
    assert "nothing to redo" in terminal("redo", code=66).err
    terminal("undo", "2")
    other = terminal.say("turn two, another way")
    assert "nothing to redo" in terminal("redo", code=66).err
    assert users(terminal) == ["turn one", "turn two, another way"]
    with terminal.home.store() as store:
        assert len(store.messages(other["session"])) == 8
    terminal("switch", talked[2]["message"])
    assert users(terminal) == ["turn one", "turn two", "turn three"]
    terminal("undo", "7", code=66)
    terminal("undo", "0", code=2)


def test_fork_makes_a_branch_where_one_says_and_goes_there(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    plain = terminal.json("fork")
    assert plain["branch"] == "main-2"
    assert plain["head"] == talked[2]["message"]
    named = terminal("fork", "HEAD~1", "-n", "price")
    assert f"price@{talked[1]['message'][:4]}" in named.err
    assert "go on" in named.err
    assert head(terminal) == ("price", talked[1]["message"])
    before_two = terminal.json("fork", "2", "-n", "two")  # a user's turn: the point before it
    assert (before_two["head"], before_two["text"]) == (talked[0]["message"], "turn two")


def test_every_kind_of_ref_leads_fork_to_its_place(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    terminal("branch", "side", "HEAD~1")
    terminal("branch", "--label", talked[0]["message"][:8], "seen")
    session = talked[0]["session"]
    places = [None, *(answer["message"] for answer in talked)]
    refs = {
        "HEAD": 3, "HEAD~1": 2, "HEAD~2": 1, "main": 3, "side": 2, "seen": 1, "3": 2, "1": 0,
        "-": 2, talked[1]["message"][:6]: 2, f"{session}:main": 3, f"{session[:8]}:side": 2,
    }  # fmt: skip
    for number, (ref, turns) in enumerate(refs.items()):
        terminal("switch", "side")
        terminal("switch", "main")
        made = terminal.json("fork", ref, "-n", f"here{number}")
        assert made["head"] == places[turns], ref
        assert made["branch"] == f"here{number}"
        assert len(users(terminal)) == turns
    answer = terminal.say("and on")
    assert answer["branch"] == f"here{len(refs) - 1}"
    assert users(terminal) == ["turn one", "turn two", "and on"]


def test_fork_with_a_prompt_asks_it_there_even_at_head(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    here = terminal.json("fork", "and what if not?", *EXACT)
    assert [(a["branch"]) for a in here["branches"]] == ["main-2"]
    assert branches(terminal)["main"] == talked[2]["message"]
    assert len(users(terminal)) == 4
    named = terminal.json("fork", "1", "an other beginning", "-n", "fresh", *EXACT)
    assert named["branches"][0]["branch"] == "fresh"
    assert users(terminal) == ["an other beginning"]
    taken = terminal("fork", "main", "what then?", "-n", "fresh", *EXACT, code=2)
    assert "fresh already" in taken.err
    terminal("fork", "main", "-n", "12", code=2)
    terminal("fork", "nowhere", code=66)


def test_a_fork_into_a_session_of_its_own_shares_the_past_and_nothing_after(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    """SF-02: also after a restart in between."""
    name = f"own-{terminal.name}"
    fork = terminal.json("fork", "2", "--new-session", name, "down another road", *EXACT)
    own = fork["branches"][0]
    assert own["session"] != talked[0]["session"]
    kept = len(terminal.home.ids(talked[0]["message"]))
    assert own["usage"]["cached_input_tokens"] >= kept - 1
    terminal.ask("main goes on", "--session", talked[0]["session"])
    terminal("daemon", "restart")
    rows = {row["id"]: row for row in terminal.json("sessions", "ls")["sessions"]}
    assert rows[own["session"]]["name"] == name
    assert rows[own["session"]]["parent"] == talked[0]["session"]
    assert rows[own["session"]]["fork_message"] == talked[0]["message"]
    assert rows[talked[0]["session"]]["parent"] is None
    shown = terminal.json("sessions", "show", name)
    assert shown["parent"] == talked[0]["session"]
    assert shown["fork_message"] == talked[0]["message"]
    assert [t for r, t in terminal.texts(session=name) if r == "user"] == [
        "turn one", "down another road"
    ]  # fmt: skip
    assert [t for r, t in terminal.texts(session=talked[0]["session"]) if r == "user"] == [
        "turn one", "turn two", "turn three", "main goes on"
    ]  # fmt: skip
    assert terminal.ask("on", "-r", name)["session"] == own["session"]


def test_switch_goes_to_branches_messages_and_back(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    terminal("branch", "side", "HEAD~1")
    assert head(terminal)[0] == "main"  # branch makes, and stays
    moved = terminal("switch", "side")
    assert f"side@{talked[1]['message'][:4]}" in moved.err
    assert terminal.json("switch", "-")["branch"] == "main"
    assert terminal.json("switch", "-")["branch"] == "side"
    at_user = terminal.json("switch", "main:2".removeprefix("main:"))
    assert at_user["text"] == "turn two"
    assert at_user["head"] == talked[0]["message"]
    assert at_user["branch"] is None
    answer = terminal.say("from a point without a name")
    assert answer["branch"] not in ("main", "side", None)
    assert branches(terminal)["main"] == talked[2]["message"]
    assert terminal("checkout", "main").code == 0
    ambiguous = terminal("switch", "zz", code=66)
    assert "zz" in ambiguous.err


def test_branches_are_listed_renamed_and_deleted_and_messages_stay(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    terminal("branch", "one", "HEAD~1")
    terminal("branch", "two", "HEAD~2")
    listed = terminal.json("branch", "-l")["branches"]
    assert {b["name"]: b["current"] for b in listed} == {"main": True, "one": False, "two": False}
    assert all(name in terminal("branch").out for name in ("main", "one", "two"))
    terminal("branch", "-m", "one", "uno")
    terminal("branch", "-d", "two")
    assert set(branches(terminal)) == {"main", "uno"}
    assert "HEAD is on main" in terminal("branch", "-d", "main", code=2).err
    terminal("branch", "-d", "nothing", code=66)
    terminal("branch", "-m", "uno", "main", code=2)
    terminal("branch", "uno", "HEAD", code=2)
    for bad in ("7", "HEAD", "a b", "-x", "a:b"):
        terminal("branch", "--", bad, code=2)
    assert len(terminal.tree()["messages"]) == 6
    terminal("branch", "--label", "2", "good")
    labelled = [m for m in terminal.tree()["messages"] if m["labels"] == ["good"]]
    assert [m["text"] for m in labelled] == ["turn two"]
    assert "good" in terminal("tree").out


def test_log_is_the_path_to_a_place_in_the_form_asked_for(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    assert len(terminal.json("log", "HEAD~1")["messages"]) == 4
    assert [m["text"] for m in terminal.json("log", "-n", "1")["messages"]] == [
        "turn three", talked[2]["text"]
    ]  # fmt: skip
    assert terminal("log", "-r").out.rstrip("\n") == talked[2]["text"].rstrip()
    piped = terminal("log").out
    assert piped.index("turn one") < piped.index("turn two") < piped.index("turn three")
    assert "\x1b" not in piped
    terminal("log", "-x", code=42)
    terminal("log", "nowhere", code=66)


def test_a_command_that_moves_says_where_to_and_q_says_nothing(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    for command in (("undo",), ("redo",), ("switch", "HEAD~1"), ("fork", "-n", "q1"), ("retry",)):
        flags = EXACT if command[0] == "retry" else ()
        said = terminal(*command, *flags).err.splitlines()
        assert sum(" · " in line and "@" in line for line in said) == 1, command
    assert terminal("-q", "switch", "main").err == ""


def test_an_answer_says_where_it_stands_in_the_tree(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    rows = {m["id"]: m for m in terminal.tree()["messages"]}
    for answer in talked:
        assert rows[answer["message"]]["parent"] == answer["parent"]
        assert rows[answer["message"]]["text"] == answer["text"]
        assert rows[answer["parent"]]["role"] == "user"
    assert terminal.json("tree", "HEAD~1")["num_messages"] == 3
    assert terminal.json("tree", talked[0]["session"])["num_messages"] == 6
    assert len(terminal.json("tree", "--filter", "user-only")["messages"]) == 3
    assert len(terminal.json("tree", "--depth", "2")["messages"]) == 2
    terminal("tree", "nowhere", code=66)


def test_a_what_if_answers_beside_head_and_its_branches_go_by_number(
    terminal: Shell, talked: list[dict[str, Any]]
) -> None:
    flags = ("--exact", "--temp", "1", "--max-tokens", "4", "--seed-base", "7")
    answers = terminal.json("what-if", "one way", "another way", "--at", "2", *flags)
    assert [a["branch"] for a in answers["branches"]] == ["one-way", "another-way"]
    assert [a["seed"] for a in answers["branches"]] == [7, 8]
    assert {"session", "parent", "usage", "cache", "shared"} <= set(answers)
    assert head(terminal) == ("main", talked[2]["message"])
    piped = terminal("what-if", *flags, stdin="one way\nanother way\n")
    told = [line for line in piped.out.splitlines() if line.startswith("[")]
    assert [line.partition("@")[0] for line in told] == ["[1] one-way-2", "[2] another-way-2"]
    assert "2 branches · shared " in piped.err
    terminal("switch", "2")
    assert head(terminal)[0] == "another-way-2"
    assert users(terminal) == ["turn one", "turn two", "turn three", "another way"]
