"""The language, over a remote that is not there: order, waiting, failures, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from radchat.errors import ContextOverflow
from radchat.programs import State, assistant, gen, program, run_batch, select, system, user
from radchat.programs.errors import ProgramError
from radchat.programs.trace import Call
from tests.programs.fake_remote import FakeRemote
from tests.waiting import wait_until

HERE = Path(__file__)


def line_of(mark: str) -> int:
    """Where in this file ``# mark`` stands."""
    lines = HERE.read_text(encoding="utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def no_threads() -> bool:
    return not any(thread.name.startswith("program") for thread in threading.enumerate())


def test_text_and_holes_are_said_in_order_and_are_variables() -> None:
    @program
    def main(s: State, text: str) -> Any:
        s += system("Be short.")
        s += user(text)
        s += assistant(
            "A: " + gen("a", max_tokens=3, stop="\n") + ", B: " + select("b", ["x", "y"])
        )
        s["mine"] = 3
        return s["a"] + s["b"]

    remote = FakeRemote()
    state = main.run(text="Hi", remote=remote)
    assert state.result == "oky"
    assert state.variables == {"a": "ok", "b": "y", "mine": 3}
    assert state.messages() == [
        {"role": "system", "text": "Be short."},
        {"role": "user", "text": "Hi"},
        {"role": "assistant", "text": "A: ok, B: y"},
    ]
    assert remote.texts[1] == "<system>Be short.<user>HiA: ok, B: y"
    assert remote.asked == [{"options": {"stop": ["\n"]}, "n": 1, "max_tokens": 3}]
    assert state.meta("b")["scores"] == {"x": -2.0, "y": -1.0}
    assert state.usage["input_tokens"] == 20
    assert state.cache["computed"] == 4
    assert remote.is_closed
    assert remote.dropped == [1]


def test_forks_run_at_once_and_know_what_was_before() -> None:
    meet = threading.Barrier(3, timeout=30)

    def answer(text: str) -> str:
        if text[-2] == "?":
            meet.wait()  # all three are asked before one is answered
        return f"[{text[-2:]}]"

    @program
    def main(s: State) -> Any:
        s += user("header")
        s += assistant(gen("before"))
        forks = s.fork(3)
        for i, f in enumerate(forks):
            f += user(f"?{i}")
            f += assistant(gen("x"))
            (inner,) = f.fork()
            inner += assistant(gen("y"))
            f["y"] = inner["before"]
        forks.join()
        return forks["x"], forks["y"], "x" in s

    result = main.run(remote=FakeRemote(answer)).result
    assert result == (["[?0]", "[?1]", "[?2]"], ["[er]"] * 3, False)
    wait_until(no_threads)


def test_without_parallel_all_is_done_where_it_is_written() -> None:
    @program
    def main(s: State) -> Any:
        f = s.fork(2)
        f += user("a")
        f += assistant(gen("x"))
        return threading.active_count(), f["x"]

    before = threading.active_count()
    assert main.run(remote=FakeRemote(), parallel=False).result == (before, ["ok", "ok"])


def test_a_failed_call_ends_its_branch_and_tells_the_line_that_asked() -> None:
    @program
    def main(s: State) -> Any:
        forks = s.fork(3)
        for i, f in enumerate(forks):
            f += user(f"{i}")
            f += assistant(gen("x"))  # failing
            f += assistant(gen("after"))
        with pytest.raises(ContextOverflow) as caught:
            forks.join()
        forks.join(errors="keep")
        return caught.value, forks["x"], forks["after"], forks[1].error

    def answer(text: str) -> str | Exception:
        return ContextOverflow("too long", limit=3) if text == "<user>1" else "ok"

    error, values, after, own = main.run(remote=FakeRemote(answer)).result
    assert error.message == f'{HERE}:{line_of("failing")}: gen("x"): too long'
    assert (error.exit_code, error.data, type(error).__mro__[1]) == (56, {"limit": 3}, ProgramError)
    assert values == ["ok", None, "ok"]
    assert after == ["ok", None, "ok"]
    assert own.message == error.message


def test_a_failure_that_nobody_read_fails_the_run() -> None:
    @program
    def main(s: State) -> None:
        s += user("refuse")  # refused

    with pytest.raises(ProgramError, match=r"user 'refuse': the template refuses it") as caught:
        main.run(remote=FakeRemote())
    assert f":{line_of('refused')}: " in caught.value.message
    assert caught.value.exit_code == 42


def test_a_branch_that_failed_unread_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    @program
    def main(s: State) -> int:
        f = s.fork(2)
        one = f[0]
        one += user("refuse")  # unread
        return 1

    assert main.run(remote=FakeRemote()).result == 1
    said = capsys.readouterr().err
    assert said.startswith("a branch failed, and nothing was read from it: ")
    assert f":{line_of('unread')}: user 'refuse'" in said


def test_a_variable_that_nothing_sets_is_an_error_at_once() -> None:
    @program
    def main(s: State) -> None:
        s += user("a")
        s += assistant(gen("x"))
        assert s.get("y", 3) == 3
        s["y"]  # unset

    with pytest.raises(ProgramError, match=r"nothing here is called 'y'.*there is: x") as caught:
        main.run(remote=FakeRemote())
    assert f":{line_of('unset')}: " in caught.value.message


def test_what_goes_together_and_what_does_not() -> None:
    with pytest.raises(TypeError, match="not int 3"):
        gen("a") + 3
    with pytest.raises(TypeError, match="the model speaks in assistant"):
        user(gen("a"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="write str"):
        system(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="its own"):
        user("a") + assistant("b")
    with pytest.raises(ValueError, match="twice"):
        gen("a") + gen("a")
    with pytest.raises(ValueError, match="one of regex"):
        gen("a", regex="a", choices=["a"])
    with pytest.raises(TypeError, match="list of texts"):
        select("a", "yes")
    with pytest.raises(ValueError, match="whole number"):
        gen("a", max_tokens=0)
    with pytest.raises(TypeError, match=r"gen\(\"a\"\): unknown .*did you mean temperature"):
        gen("a", temprature=0)
    assert gen("a", repetition_penalty=1.1).options == {"repetition_penalty": 1.1}

    @program
    def mixed(s: State) -> None:
        s += "Once" + gen("a")
        s += user("b")

    with pytest.raises(ProgramError, match="don't go together"):
        mixed.run(remote=FakeRemote())
    with pytest.raises(TypeError, match="can't be called model"):
        program(lambda s, model: None)
    with pytest.raises(TypeError, match=r"mixed\.run"):
        mixed("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="mixed: got an unexpected"):
        mixed.run(x=1, remote=FakeRemote())


def test_the_same_name_again_is_the_later_one_and_raw_text_is_raw() -> None:
    @program
    def main(s: State) -> Any:
        first = []
        for _ in range(2):
            s += "Q" + gen("x")
            first.append(s["x"])
        return first

    remote = FakeRemote(lambda text: str(len(text)))
    state = main.run(remote=remote)
    assert state.result == ["1", "3"]
    assert state["x"] == "3"
    assert state.messages() == [{"role": "raw", "text": "Q1Q3"}]


def test_a_state_whose_program_has_ended_is_read_and_not_gone_on_with() -> None:
    @program
    def main(s: State) -> None:
        s += user("a")
        s += assistant(gen("x"))

    state = main.run(remote=FakeRemote())
    assert state.error is None
    state += assistant(gen("y"))
    assert state["x"] == "ok"
    with pytest.raises(ProgramError, match="the program has ended"):
        state["y"]


def test_programs_call_programs_on_their_state_or_one_of_their_own() -> None:
    @program
    def inner(s: State, text: str) -> Any:
        s += user(text)
        s += assistant(gen(text))
        return s[text]

    @program
    def main(s: State) -> Any:
        return inner(s, "a"), inner.run("b").result, s.messages()

    remote = FakeRemote()
    state = main.run(remote=remote, options={"seed": 1})
    assert state.result[:2] == ("ok", "ok")
    assert [message["text"] for message in state.result[2]] == ["a", "ok"]
    assert [call["kind"] for call in state.trace.json()["calls"]] == ["program"]
    assert [call["kind"] for call in state.trace.json()["calls"][0]["calls"]] == ["say", "gen"]


def test_seeds_depend_on_the_place_in_the_program_alone() -> None:
    @program
    def main(s: State) -> None:
        for f in s.fork(3):
            f += user("a")
            f += assistant(gen("x") + gen("y") + gen("z", seed=5))

    def seeds(seed: int, **settings: Any) -> list[int]:
        remote = FakeRemote()
        main.run(remote=remote, options={"seed": seed}, **settings)
        return sorted(asked["options"]["seed"] for asked in remote.asked)

    assert seeds(1) == seeds(1, parallel=False) != seeds(2)
    assert len(set(seeds(1))) == 7


def test_output_under_a_grammar_is_its_value_or_an_error() -> None:
    @program
    def main(s: State) -> Any:
        s += user("a")
        s += assistant(gen("x", schema={"type": "object"}, n=2))
        return s["x"]

    remote = FakeRemote()
    remote.output = {"data": {"a": 1}}
    assert main.run(remote=remote).result == [{"a": 1}] * 2
    assert remote.asked[0]["grammar"]["kind"] == "json_schema"
    remote = FakeRemote()
    remote.output = {"finish_reason": "length"}
    with pytest.raises(ProgramError, match=r'gen\("x"\): it is no whole JSON, no tokens were left'):
        main.run(remote=remote)


def test_a_batch_keeps_its_order_and_a_failing_row_its_error() -> None:
    @program
    def main(s: State, text: str) -> Any:
        s += user(text)
        s += assistant(gen("x"))
        if text == "2":
            raise ValueError("mine")
        return s["x"]

    remote, done = FakeRemote(lambda text: text[-1]), []
    rows = [{"text": str(i)} for i in range(9)]
    states = run_batch(
        main, rows, at_once=3, remote=remote, on_done=lambda i, _state: done.append(i)
    )
    assert [state.error is None and state.result for state in states] == [
        str(i) if i != 2 else False for i in range(9)
    ]
    with pytest.raises(ValueError, match="mine"):
        _ = states[2].result
    assert sorted(done) == list(range(9))
    assert remote.is_closed
    with pytest.raises(TypeError, match="row 1: main: missing"):
        run_batch(main, [{"text": "a"}, {}], remote=remote)
    wait_until(no_threads)


def test_text_is_heard_as_it_comes() -> None:
    heard = threading.Event()

    def pieces(say: Any) -> None:
        say("o")
        assert heard.wait(30)  # the first is heard while the second is still to come
        say("k")

    @program
    def main(s: State) -> Any:
        s += user("a")
        s += assistant(gen("x") + select("y", ["n"]))
        got = []
        for piece in s.stream("x"):
            got.append(piece)
            heard.set()
        return got, list(s.stream("y"))

    remote = FakeRemote()
    remote.pieces = pieces
    assert main.run(remote=remote).result == (["o", "k"], ["n"])


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_exception_of_the_function_ends_what_runs_and_what_waits(error: BaseException) -> None:
    remote = FakeRemote()
    begun = threading.Event()

    def pieces(_say: Any) -> None:
        begun.set()
        assert remote.gone.wait(30)
        raise ConnectionError("closed")

    remote.pieces = pieces
    kept: list[State] = []

    @program
    def main(s: State) -> None:
        kept.extend(s.fork(2))
        for f in kept:
            f += user("a")
            f += assistant(gen("x") + gen("y"))
        assert begun.wait(30)
        raise error

    with pytest.raises(type(error)):
        main.run(remote=remote)
    wait_until(no_threads)
    assert 1 <= len(remote.asked) <= 2  # no y
    with pytest.raises(ProgramError, match="main"):
        kept[0]["y"]


def test_ctrl_c_ends_a_wait_at_once() -> None:
    def interrupted() -> FakeRemote:
        remote = FakeRemote()

        def pieces(_say: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            assert remote.gone.wait(30)
            raise ConnectionError("closed")

        remote.pieces = pieces
        return remote

    @program
    def main(s: State) -> Any:
        s += user("a")
        s += assistant(gen("x"))
        return s["x"]

    with pytest.raises(KeyboardInterrupt):
        main.run(remote=interrupted())
    with pytest.raises(KeyboardInterrupt):
        main.run_batch([{}, {}], at_once=1, remote=interrupted())
    wait_until(no_threads)


def test_the_trace_and_what_is_saved() -> None:
    @program
    def main(s: State) -> None:
        s += user("a\x1b[31m")
        forks = s.fork(2)
        forks += assistant(gen("x"))
        forks.join()

    state = main.run(remote=FakeRemote(), save="kept")
    assert state.saved == {"session": "s1", "name": "kept"}
    fork = state.trace.json()["calls"][1]
    assert (fork["kind"], fork["usage"]["cached_input_tokens"], fork["cache"]["computed"]) == (
        "fork", 16, 4,
    )  # fmt: skip
    assert state.trace.count("gen") == 2

    from rich.console import Console

    console = Console(width=100, no_color=True)
    with console.capture() as shown:
        console.print(state.trace.tree())
    assert "\x1b" not in shown.get()
    assert "gen x  cached 8/10 · said 2 (forced 1)" in shown.get()
    assert shown.get().splitlines()[2].split()[1] == "fork"


def test_a_fork_and_its_branches_took_as_long_as_what_is_in_them() -> None:
    top = Call("program", "main", calls=[])
    fork = top.add("fork", "2", "")
    for began in (1.0, 3.0):
        inner = fork.add("branch", "0", "").add("gen", "x", "")
        inner._began, inner.seconds = began, 1.5
    fork._began, fork.seconds = 0.5, 0.25
    body = fork.json()
    assert (body["seconds"], [each["seconds"] for each in body["calls"]]) == (4.0, [1.5, 1.5])
    assert Call("branch", "0").json()["seconds"] is None

    from rich.console import Console

    console = Console(width=100, no_color=True)
    with console.capture() as shown:
        console.print(fork.tree())
    assert "fork 2  4.0 s" in shown.get()


def test_a_branch_of_forks_grows_by_its_number_and_is_no_other() -> None:
    @program
    def main(s: State) -> Any:
        s += user("a")
        forks = s.fork(2)
        forks[0] += assistant("one")
        forks[1] += assistant(gen("x"))
        with pytest.raises(TypeError, match="grows in place"):
            forks[0] = forks[1]
        return forks[1]["x"]

    assert main.run(remote=FakeRemote()).result == "ok"


def test_it_is_imported_without_what_it_does_not_need() -> None:
    code = (
        "import sys, radchat.programs\n"
        "print([n for n in ('torch', 'numpy', 'rich', 'llguidance', 'jsonschema', 'asyncio', "
        "'concurrent.futures', 'radchat.engine', 'radchat.client') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
