"""`--engine URL`, as a person has it: the same commands, and another program's numbers."""

from __future__ import annotations

from pathlib import Path

from radchat.chat.context_view import lines as context_lines
from tests.e2e.conftest import Homes
from tests.e2e.homes import Shell
from tests.remote.fakes import SAYS, serving

ASK = ("--max-tokens", "400")


def test_a_session_lives_on_another_programs_engine(homes: Homes, tiny: Path) -> None:
    terminal = Shell(homes(), "remote")
    with serving("sglang", tiny) as fake:
        engine = ("--engine", fake.url)
        unknown = terminal(*engine, "ask", "hello", code=66)
        assert "-m" in unknown.err
        assert fake.url in unknown.err
        first = terminal.json(*engine, "ask", "-m", "tiny", "hello", *ASK)
        assert first["text"] == SAYS
        assert first["dtype"] == "remote"
        assert first["cache"]["remote"] == first["usage"]["cached_input_tokens"] == 0
        assert first["cache"]["computed"] == first["usage"]["input_tokens"]
        entry = next(m for m in terminal.json("models", "ls")["models"] if m["engine"])
        assert entry["engine"]["dialect"] == "sglang"
        assert entry["name"] == first["model"]

        second = terminal.json("ask", "-c", "and then?", *ASK)  # the session keeps its model
        usage = second["usage"]
        whole = first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
        assert usage["cached_input_tokens"] >= whole - 1
        three = terminal.json("what-if", "one", "two", "three", *ASK)
        assert [body["text"] for body in three["branches"]] == [SAYS] * 3
        fork = terminal.json("fork", first["message"][:8], "another way", "-n", "side", *ASK)
        assert fork["branches"][0]["usage"]["cached_input_tokens"] >= whole - 1
        shown = terminal("tree", "--show-cache").out
        rows = [line for line in shown.splitlines() if " user " in line or " asst " in line]
        assert rows
        assert all("   R   " in row for row in rows)
        assert "R remote" in shown
        tree = terminal.json("tree", "--show-cache")
        assert all(m["cached"]["remote"] is None for m in tree["messages"])

        assert "its KV is there" in terminal("cache", "pin", code=42).err
        assert "its KV is there" in terminal("cache", "warm", code=42).err
        why = terminal("cache", "why").out
        assert "remote" in why
        assert "its engine knows" in why
        context = terminal.call("context")
        assert context["cached"]["remote"] is context["computed"] is None
        assert "its engine knows" in "".join(context_lines(context, 80))
        row = next(line for line in terminal("models", "ls").out.splitlines() if fake.url in line)
        assert " 0M " not in row
        assert terminal("daemon", "status").out.count("remote")

        terminal("daemon", "stop")
        again = terminal.json("ask", "-c", "still there?", *ASK)
        assert again["model"] == first["model"]
        assert again["usage"]["cached_input_tokens"] > whole

        fake.faults.cut_after = [4]
        lost = terminal("ask", "-c", "and now?", code=1)
        assert "is kept" in lost.err
        assert fake.url in lost.err
        kept = terminal.texts()[-1]
        assert SAYS.startswith(kept[1])
        assert kept[1]
        fake.faults.tells_cached = False
        untold = terminal.json("ask", "-c", "once more", *ASK)
        assert untold["usage"]["cached_input_tokens"] is None
        assert untold["cache"]["computed"] is None
    gone = terminal("ask", "-c", "anybody?", code=1)
    assert fake.url in gone.err
    assert "another model with -m" in gone.err


def test_a_text_server_says_so_and_reads_the_conversation(homes: Homes, tiny: Path) -> None:
    terminal = Shell(homes(), "text")
    with serving("openai", tiny) as fake:
        name = terminal("models", "pull", fake.url, "-m", "tiny").out.strip()
        said = terminal("ask", "-m", name, "hello", *ASK)
        assert said.out.strip() == SAYS
        assert "takes text, not token ids" in said.err
        second = terminal("ask", "-c", "and then?", *ASK)
        assert "takes text" not in second.err
        assert [m["role"] for m in fake.asked[-1]["messages"]] == ["user", "assistant", "user"]
        assert fake.asked[-1]["messages"][1]["content"] == SAYS


def test_radchat_on_radchat(homes: Homes, tiny: Path) -> None:
    """A daemon that serves, and another whose model it is: ids go over the wire and back."""
    there, here = Shell(homes(), "there"), Shell(homes(), "here")
    serve = there.start("serve", "--port", "0")
    assert serve.stdout is not None
    url = serve.stdout.readline().strip()
    here.env["RADCHAT_ENGINE_KEY"] = (there.home.places.state / "api-key").read_text().strip()
    wrong = here("--engine", url, "ask", "-m", "tiny", "hello", code=1, RADCHAT_ENGINE_KEY="nobody")
    assert "RADCHAT_ENGINE_KEY" in wrong.err
    assert here.env["RADCHAT_ENGINE_KEY"] not in wrong.err
    exact = ("--temp", "0", "--max-tokens", "9")
    first = here.json("--engine", url, "ask", "-m", "tiny", "hello", *exact)
    assert first["dtype"] == "remote"
    usage = first["usage"]
    assert (usage["cached_input_tokens"], usage["output_tokens"]) == (0, 9)
    second = here.json("ask", "-c", "and then?", "-o", "logprobs=2", *exact)
    whole = usage["input_tokens"] + usage["output_tokens"]
    assert second["usage"]["cached_input_tokens"] >= whole - 1
    # the same conversation on that machine itself says the same
    own = there.json("ask", "hello", *exact)
    assert own["text"] == first["text"]
    assert here.json("config", "list")["engine_key"]["value"] == "(set)"
    assert here.env["RADCHAT_ENGINE_KEY"] not in here.home.places.log.read_text()
    serve.terminate()
    serve.wait()
    there.home.assert_balanced()
