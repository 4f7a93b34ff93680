"""Two clients, one session; clients that go; chats that are more than the pool holds."""

from __future__ import annotations

import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from radchat.protocol import Event
from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Home, Shell, finish, spoken, until
from tests.waiting import wait_until


def test_two_clients_at_one_head_make_two_branches_and_each_is_told(terminal: Shell) -> None:
    """20 times: at the same moment, or one a little later; and that moment is met."""
    home = terminal.home
    met = 0
    for number in range(20):
        base = terminal.quick(f"start {number}")
        session, head = base["session"], base["message"]
        both = threading.Barrier(2)

        def ask(who: str, session: str = session, both: threading.Barrier = both) -> list[Event]:
            both.wait()
            asked = {"text": f"from {who}", "dtype": "fp32", "session": session}
            options = {"temperature": 0, "max_tokens": 6}
            with terminal.stream(**asked, new_session=False, options=options) as events:
                return list(events)

        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(ask, ("one", "two")))
        answers = [events[-1].data["branches"][0] for events in ended]
        told = [sum(e.data.get("code") == "branched" for e in events) for events in ended]
        with home.store() as store:
            shape = {m.id: m for m in store.messages(session)}
            branches = {b.name: b.message for b in store.branches(session)}
        assert len(shape) == 6
        asked = [shape[answer["parent"]] for answer in answers]
        assert [message.text for message in asked] == ["from one", "from two"]
        parents = [message.parent for message in asked]
        if parents == [head, head]:  # side by side
            met += 1
            assert set(branches) == {"main", "main-2"}
            assert [branches[a["branch"]] for a in answers] == [a["message"] for a in answers]
            assert sorted(told) == [0, 1]
        else:  # one after the other: a plain chat
            first = parents.index(head)
            assert parents[1 - first] == answers[first]["message"]
            assert branches == {"main": answers[1 - first]["message"]}
            assert told == [0, 0]
    assert met > 0
    home.assert_balanced()


def test_a_turn_sent_while_the_last_one_is_answered_goes_beside_it(terminal: Shell) -> None:
    """Nothing is interleaved, nothing is left over when the session goes."""
    home = terminal.home
    base = terminal.ask("start", "--max-tokens", "2")
    with terminal.stream(
        text="a long one", new_session=False, dtype="fp32", session=base["session"]
    ) as running:
        seen = until(running, "delta", 5)
        second = terminal("ask", "-c", "and meanwhile?", *EXACT, "--max-tokens", "3")
        assert "main has moved on: this turn is on its own branch main-2" in second.err
        assert terminal.texts()[-2:] == [
            ("user", "and meanwhile?"), ("assistant", second.out.rstrip("\n"))
        ]  # fmt: skip
        until(running, "delta", 5)
    init = next(event for event in seen if event.name == "init")
    home.assert_balanced()
    with home.store() as store:
        long_one = store.message(init.data["messages"][0])
        assert store.branch(base["session"], "main").message == long_one.id
        assert long_one.finish_reason == "abort"
    terminal("sessions", "rm", base["session"], "-y")
    home.assert_balanced()
    with home.store() as store:
        assert base["session"] not in {s.session.id for s in store.sessions()}


def test_a_session_removed_in_mid_answer_leaves_nothing_behind(terminal: Shell) -> None:
    home = terminal.home
    asking = terminal.start("ask", "say much", *EXACT, "--max-tokens", "3000")
    wait_until(lambda: home.status()["running"] == 1)
    name = terminal.json("sessions", "show")["id"]
    removed = terminal("sessions", "rm", name, "-y", code=75)
    assert "an answer is running in say-much" in removed.err
    asking.send_signal(signal.SIGINT)
    assert finish(asking).code == 130
    home.assert_balanced()
    terminal("sessions", "rm", name, "-y")
    with home.store() as store:
        assert store.running() == []


def test_an_answer_whose_branch_was_taken_back_meanwhile_gets_one_of_its_own(
    terminal: Shell,
) -> None:
    base = terminal.ask("start", "--max-tokens", "2")
    with terminal.stream(
        text="a long one", new_session=False, dtype="fp32",
        options={"temperature": 0, "max_tokens": 600},
    ) as running:  # fmt: skip
        until(running, "delta", 2)
        terminal.call("undo")
        rest = list(running)
    notices = [event.data for event in rest if event.name == "notice"]
    assert [notice["code"] for notice in notices] == ["branched"]
    done = rest[-1].data["branches"][0]
    assert done["branch"] == "main-2"
    tree = terminal.tree()
    assert tree["branches"] == {"main": base["message"], "main-2": done["message"]}
    terminal.home.assert_balanced()


def test_an_answer_can_be_cancelled_by_its_id_and_its_reader_is_told(terminal: Shell) -> None:
    with terminal.stream(text="a long one", dtype="fp32") as running:
        seen = until(running, "delta", 3)
        request = next(event.data["request"] for event in seen if event.name == "init")
        assert terminal.home.client().call("cancel", request=request) == {"cancelled": True}
        seen += running
    assert seen[-1].name == "done"
    answer = seen[-1].data["branches"][0]
    assert answer["finish_reason"] == "abort"
    assert answer["text"] == spoken(seen) == terminal.texts()[-1][1]
    assert terminal.home.client().call("cancel", request=request) == {"cancelled": False}
    terminal.home.assert_balanced()


def test_another_model_answers_while_the_first_one_does(terminal: Shell) -> None:
    other = Shell(terminal.home, f"{terminal.name}-2", EXACT)
    with terminal.stream(
        text="a long one", dtype="fp32", options={"temperature": 0, "max_tokens": 300}
    ) as running:
        until(running, "start")
        answer = other.ask("and you?", "-m", "other")
        assert answer["model"] == "other"
        assert list(running)[-1].data["usage"]["output_tokens"] == 300
    assert terminal.ask("back", "-m", "tiny")["model"] == "tiny"
    terminal.home.assert_balanced()


@pytest.mark.parametrize("many", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_first_commands_at_once_all_succeed_in_one_daemon(homes: Homes, many: int) -> None:
    """DM-01, PS-06"""
    home = homes()
    shells = [Shell(home, str(number), EXACT) for number in range(many)]
    asking = [shell.start("ask", f"from {shell.name}", *EXACT, "--json") for shell in shells]
    answers = [finish(process).json for process in asking]
    assert len({answer["session"] for answer in answers}) == many
    assert home.log().count("listening at") == 1
    home.assert_balanced()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended_ends_its_answer_and_keeps_what_came(
    terminal: Shell, number: signal.Signals
) -> None:
    home = terminal.home
    asking = terminal.start("ask", "say much", *EXACT, "--max-tokens", "3000")
    assert asking.stdout is not None
    shown = asking.stdout.read(12)
    asking.send_signal(number)
    rest = finish(asking)
    assert rest.code == (-number if number == signal.SIGKILL else 128 + number)
    home.assert_balanced()
    last = terminal.json("log")["messages"][-1]
    assert last["finish_reason"] == "abort"
    assert last["text"].startswith((shown + rest.out).rstrip("\n"))
    after = terminal.say("go on", "--max-tokens", "2")  # the same client can ask again at once
    assert after["usage"]["cached_input_tokens"] >= len(last["text"]) - 1


def test_a_chat_can_be_gone_on_with_from_two_terminals(terminal: Shell) -> None:
    """SF-01: resume keeps the id, and each sees the other's turns; a fork has an id of its own."""
    base = terminal.ask("start", "--new-session", f"both-{terminal.name}")
    other = Shell(terminal.home, f"{terminal.name}-2", EXACT)
    before = terminal.num_sessions()
    second = other.ask("from the second", "-r", f"both-{terminal.name}")
    assert second["session"] == base["session"]
    third = terminal.say("from the first")
    assert third["session"] == base["session"]
    asked = [text for role, text in other.texts() if role == "user"]
    assert asked == ["start", "from the second", "from the first"]
    assert terminal.num_sessions() == before
    fork = terminal.json("fork", "--new-session")
    assert fork["session"] != base["session"]
    shown = terminal.json("sessions", "show")
    assert (shown["parent"], shown["fork_message"]) == (base["session"], third["message"])
    assert terminal.num_sessions() == before + 1


def test_a_fork_that_stays_open_does_not_hold_its_parent(terminal: Shell) -> None:
    """SF-03"""
    base = terminal.ask("start")
    other = Shell(terminal.home, f"{terminal.name}-2", EXACT)
    other("fork", "HEAD", "--new-session", f"fork-{terminal.name}", "--session", base["session"])
    with other.stream(text="talk in the fork", new_session=False, dtype="fp32") as talking:
        until(talking, "delta", 2)
        assert terminal.say("the parent goes on")["session"] == base["session"]
    assert [t for r, t in terminal.texts() if r == "user"] == ["start", "the parent goes on"]


def test_a_side_question_leaves_the_main_line_cached(terminal: Shell) -> None:
    """SF-04"""
    base = terminal.ask("a long talk. " * 120, "--max-tokens", "20")
    tip = len(terminal.home.ids(base["message"]))
    terminal.json("fork", "HEAD", "sum it up please", *EXACT, "--max-tokens", "9")
    terminal("switch", "-")
    main = terminal.say("now for something else")
    assert main["branch"] == "main"
    assert main["usage"]["cached_input_tokens"] >= tip - 1


def test_idle_chats_that_are_more_than_the_pool_all_make_progress(homes: Homes) -> None:
    home = homes(RADCHAT_KV_DEVICE="512tok")
    shells = [Shell(home, str(number), EXACT) for number in range(20)]
    lengths, sessions = {}, []
    for number, shell in enumerate(shells):
        answer = shell.quick(f"chat {number} " + "word " * 20)
        sessions.append(answer["session"])
        lengths[number] = answer["usage"]["input_tokens"]
    assert sum(lengths.values()) > 3 * 512
    for number, shell in enumerate(shells):
        answer = shell.quick(f"again {number}", sessions[number])
        assert answer["usage"]["output_tokens"] == 8
        cache = answer["cache"]
        assert sum(cache.values()) == answer["usage"]["input_tokens"]
    long = shells[0].ask("y" * 440, "--max-tokens", "8")
    assert long["usage"]["output_tokens"] == 8
    home.assert_balanced()


def test_more_answers_than_the_pool_holds_all_end(homes: Homes) -> None:
    """They wait or are put back; the words have no gap and no repeat."""
    home = homes(RADCHAT_KV_DEVICE="512tok")
    shells = [Shell(home, str(number), EXACT) for number in range(4)]
    shells[0]("models", "load", "tiny", "--dtype", "fp32")
    asking = [
        shell.start("ask", f"question {shell.name} " + "x" * 60, *EXACT, "--max-tokens", "150",
                    "--json")
        for shell in shells
    ]  # fmt: skip
    together = [finish(process).json for process in asking]
    assert home.status()["pid"] == home.pid
    for answer in together:
        assert answer["finish_reason"] == "length"
        assert answer["usage"]["output_tokens"] == 150
    home.assert_balanced()
    for shell, answer in zip(shells, together, strict=True):
        shell("cache", "clear", "-y")
        alone = shell.json("retry", *EXACT, "--max-tokens", "150")["branches"][0]
        assert alone["text"] == answer["text"]
        assert home.out_ids(alone["message"]) == home.out_ids(answer["message"])


def test_a_reader_that_closes_its_pipe_ends_the_answer_quietly(terminal: Shell) -> None:
    """`ask … | head -c 1`"""
    home = terminal.home
    asking = terminal.start("ask", "say much", *EXACT, "--max-tokens", "3000")
    assert asking.stdout is not None
    reader = subprocess.Popen(
        ["head", "-c", "1"], stdin=asking.stdout, stdout=subprocess.PIPE, text=True
    )
    asking.stdout.close()
    assert len(reader.communicate()[0]) == 1
    assert asking.stderr is not None
    assert asking.stderr.read() == ""
    assert asking.wait() == 0
    home.assert_balanced()
    assert terminal.json("log")["messages"][-1]["finish_reason"] == "abort"


def test_what_is_streamed_is_what_is_stored(terminal: Shell) -> None:
    with terminal.stream(
        text="tell me", dtype="fp32", options={"temperature": 0, "max_tokens": 60}
    ) as events:
        seen = list(events)
    done = seen[-1].data
    assert spoken(seen) == done["branches"][0]["text"] == terminal.texts()[-1][1]
    assert [event.name for event in seen if event.name in ("init", "start", "message", "done")] == [
        "init", "start", "message", "done"
    ]  # fmt: skip


def test_one_daemon_served_them_all_and_its_log_holds_no_words(shared: Home) -> None:
    assert shared.log().count("listening at") == 1
    assert "Traceback" not in shared.log()
    for words in ("say much", "meanwhile", "from one"):
        assert words not in shared.log()
