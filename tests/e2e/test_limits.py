"""What is asked for and cannot be: told by name and number, before anything is said."""

from __future__ import annotations

import json

import pytest

from radchat.errors import ContextOverflow, RadchatError
from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Shell, finish, spoken, until


@pytest.mark.parametrize("most", [1, 2, 7])
def test_max_tokens_is_what_one_gets(terminal: Shell, most: int) -> None:
    """AP-03"""
    answer = terminal.ask("count", "--max-tokens", str(most))
    assert answer["usage"]["output_tokens"] == most
    assert answer["finish_reason"] == "length"
    assert len(terminal.home.out_ids(answer["message"])) == most


def test_without_max_tokens_an_answer_ends_with_the_context(terminal: Shell) -> None:
    """AP-03, and prompt + max_tokens over the context: clipped, finish reason length."""
    for flags in ((), ("--max-tokens", "1000000")):
        done = terminal(
            "ask", "go on and on", "--exact", "--temp", "0", "--ctx", "120", *flags, "--json"
        )
        answer = done.json
        assert answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"] == 120
        assert answer["finish_reason"] == "length"
        assert "cut off after" in done.err


BAD_OPTIONS = [
    (("--max-tokens", "0"), "max_tokens", 42),
    (("--max-tokens", "-3"), "max_tokens", 42),
    (("--max-tokens", "many"), "max-tokens", 2),
    (("--temp", "-1"), "temperature", 42),
    (("--temp", "nan"), "temperature", 42),
    (("--top-p", "0"), "top_p", 42),
    (("--top-p", "1.5"), "top_p", 42),
    (("--top-k", "-1"), "top_k", 42),
    (("--top-k", "0.01"), "top-k", 2),
    (("--min-p", "2"), "min_p", 42),
    (("--seed", "-1"), "seed", 42),
    (("--seed", str(2**64)), "seed", 42),
    (("--stop", ""), "stop", 42),
    (("--stop=x",) * 70, "stop", 42),
    (("--ctx", "0"), "num_ctx", 42),
    (("--ctx", "-5"), "num_ctx", 42),
    (("-o", "repetition_penalty=0"), "repetition_penalty", 42),
    (("-o", "presence_penalty=9"), "presence_penalty", 42),
    (("-o", "frequency_penalty=nan"), "frequency_penalty", 42),
    (("-o", "logprobs=900"), "logprobs", 42),
    (("-o", "no_such_option=1"), "no_such_option", 2),
    (("--dtype", "int3"), "dtype", 2),
]


@pytest.mark.parametrize("part", range(4))
def test_a_bad_option_is_named_and_hurts_nobody_else(terminal: Shell, part: int) -> None:
    """AP-06. Nothing of the refused command stays: no session, no message."""
    home = terminal.home
    alone = terminal.quick("a neighbour", max_tokens=30)["text"]
    with terminal.stream(text="a neighbour", dtype="fp32") as neighbour:
        seen = until(neighbour, "delta")
        count = terminal.num_sessions()
        for flags, field, code in BAD_OPTIONS[part::4]:
            refused = terminal("ask", "hello", "--exact", *flags, "--json", code=code)
            assert field in refused.json["error"]["message"]
            assert refused.json["error"]["exit_code"] == code
        assert terminal.num_sessions() == count
        request = next(event.data["request"] for event in seen if event.name == "init")
        home.client().call("cancel", request=request)
        seen += neighbour
    assert seen[-1].name == "done"
    assert spoken(seen).startswith(alone)
    home.assert_balanced()


def test_odd_but_right_options_work(terminal: Shell) -> None:
    for flags in (("--temp", "0.0001"), ("--top-k", "1"), ("--top-p", "1e-9"), ("--min-p", "1")):
        greedy = terminal.ask("hello")
        answer = terminal.ask("hello", "--temp", "1", *flags)
        assert answer["text"] == greedy["text"], flags


@pytest.mark.parametrize("over", [0, 1, 400])
def test_a_prompt_too_long_is_refused_with_both_numbers_before_anything_streams(
    terminal: Shell, over: int
) -> None:
    """AP-04: over the context, and exactly as long. Nothing is dropped from it by itself."""
    fixed = _fixed(terminal)
    text = "q" * (200 + over - fixed)
    count = terminal.num_sessions()
    done = terminal("ask", text, "--exact", "--ctx", "200", "--json", code=56)
    error = done.json["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["limit"] == 200
    counted = error["prompt_tokens"]  # far over, it is not tokenized to the end
    assert 200 <= counted <= 200 + over if error.get("at_least") else counted == 200 + over
    assert f"{counted}" in error["message"]
    assert "200" in error["message"]
    lines = terminal(
        "ask", text, "--exact", "--ctx", "200", "--output-format", "stream-json", code=56
    ).out.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["error", "result"]
    assert terminal.num_sessions() == count
    with pytest.raises(ContextOverflow):
        terminal.stream(text=text, dtype="fp32", options={"num_ctx": 200})
    answer = terminal.ask(text[: 199 - fixed], "--ctx", "200", "--max-tokens", "9")
    assert answer["usage"]["output_tokens"] == 1
    terminal.home.assert_balanced()


def _fixed(shell: Shell) -> int:
    """Ids of a turn besides its text."""
    return int(shell.ask("qq")["usage"]["input_tokens"]) - 2


def test_a_chat_at_its_limit_is_told_and_nothing_of_it_is_lost(terminal: Shell) -> None:
    first = terminal.ask("the secret word is plum", "--ctx", "80", "--max-tokens", "20")
    texts = terminal.texts()
    refused = terminal("ask", "-c", "and the word is?", *EXACT, "--ctx", "80", code=56)
    assert "80" in refused.err
    assert "fork from an earlier turn" in refused.err
    assert terminal.texts() == texts
    after = terminal.say("and the word is?")
    ids = terminal.home.ids(first["message"])
    assert terminal.home.ids(after["message"])[: len(ids)] == ids


def test_an_answer_that_fills_the_pool_ends_and_the_next_runs(homes: Homes) -> None:
    """SC-02, SC-05: a pool of 208 tokens is the context too."""
    home = homes(RADCHAT_KV_DEVICE="200tok")
    shell = Shell(home, "1", EXACT)
    answer = shell.ask("go on", "--max-tokens", "500")
    assert answer["finish_reason"] == "length"
    assert answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"] == 208
    assert len(answer["text"]) > 100
    home.assert_balanced()
    refused = shell.json("ask", "w" * 250, "--exact", code=56)
    assert refused["error"]["limit"] == 208
    assert refused["error"]["prompt_tokens"] > 250
    assert shell.ask("short")["usage"]["output_tokens"] == 8
    told = shell("continue", answer["message"][:8], *EXACT, "--session", answer["session"], code=56)
    assert "208" in told.err


def test_a_pool_that_holds_no_page_is_refused_by_name(homes: Homes) -> None:
    home = homes(RADCHAT_KV_DEVICE="100")
    shell = Shell(home, "1", EXACT)
    for _ in range(2):
        refused = shell("ask", "hello", *EXACT, code=56)
        assert "RADCHAT_KV_DEVICE" in refused.err
        assert "8,192" in refused.err  # bytes a page
    assert shell.num_sessions() == 0
    assert home.status()["model"] is None


def test_an_error_after_words_were_sent_ends_a_stream_with_it(terminal: Shell) -> None:
    asking = terminal.start(
        "ask", "much", *EXACT, "--max-tokens", "3000", "--output-format", "stream-json"
    )
    assert asking.stdout is not None
    seen = [asking.stdout.readline() for _ in range(6)]
    terminal("daemon", "stop", "--force")
    done = finish(asking)
    lines = [json.loads(line) for line in [*seen, *done.out.splitlines()]]
    assert lines[0]["type"] == "init"
    assert [line["type"] for line in lines[-2:]] == ["error", "result"]
    assert lines[-1]["is_error"] is True
    assert done.code in (69, 75)
    sent = "".join(line["text"] for line in lines if line["type"] == "text_delta")
    assert terminal.json("log")["messages"][-1]["text"].startswith(sent)


def test_a_full_answer_is_never_an_error_to_read(terminal: Shell) -> None:
    with terminal.stream(text="x", dtype="fp32", options={"max_tokens": 5}) as events:
        seen = list(events)
    assert not any(event.name == "error" for event in seen)
    assert spoken(seen) == seen[-1].data["branches"][0]["text"]
    with pytest.raises(RadchatError, match="nothing to say"):
        terminal.stream(text="", dtype="fp32")


def test_the_kv_budget_is_a_ceiling(homes: Homes) -> None:
    """RL-02: in bytes, with three times as much traffic; the one page that is nobody's on top."""
    budget = 1 << 20
    home = homes(RADCHAT_KV_DEVICE="1MiB")
    shell = Shell(home, "1", EXACT)
    moved = 0
    while moved < 3 * budget:
        answer = shell.quick(f"{moved} " + "word " * 60)
        tiers = home.stats()["tiers"]["device"]
        assert tiers["bytes"] <= tiers["budget_bytes"] <= budget
        per_token = tiers["budget_bytes"] // tiers["budget_tokens"]
        moved += per_token * sum(answer["usage"][k] for k in ("input_tokens", "output_tokens"))
    allocated = home.status()["models"][0]["kv_bytes"]
    assert allocated <= budget + 16 * per_token
    home.assert_balanced()
