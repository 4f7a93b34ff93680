"""A session that goes to another model and back; two terminals with two models."""

from __future__ import annotations

from pathlib import Path

import pytest

from radchat.config import Size
from radchat.engine.model import needs
from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Home, Shell, finish
from tests.e2e.tiny_models import converted

OTHER_TEMPLATE = (
    "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant: {% endif %}"
)
TALK = "a talk of some length. " * 20


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another tokenizer and another template."""
    folder = tmp_path_factory.mktemp("foreign") / "models"
    return converted(folder, "foreign", seed=2, template=OTHER_TEMPLATE, backwards=True)


def _home(homes: Homes, tiny: Path, foreign: Path, **env: str) -> Home:
    return homes({"tiny": tiny, "foreign": foreign}, **env)


def _room_for_one(*folders: Path) -> str:
    """RADCHAT_MEMORY that holds one of these, in fp32."""
    return str(max(needs(folder, "fp32", Size(tokens=4096)).least for folder in folders))


def test_a_session_that_goes_to_another_model_and_back_finds_its_prompts_and_all_their_kv(
    homes: Homes, tiny: Path, foreign: Path
) -> None:
    """A → B → A, other ids and other words around them: what A read is there, and so is its KV."""
    home = _home(homes, tiny, foreign)
    shell = Shell(home, "1", EXACT)
    first = shell.ask(TALK)
    swap = shell("ask", "-c", "go on", "-m", "foreign", *EXACT)
    assert "takes the place of" not in swap.err
    away = shell.json("log")["messages"][-1]["id"]
    assert home.prompt_ids(away) != home.prompt_ids(first["message"])
    assert [m["name"] for m in shell.json("models", "ps")["models"]] == ["foreign", "tiny"]

    # the branch that A knows: its next prompt is A's ids and the tail, all but the tail cached
    shell("switch", first["message"])
    done = shell("ask", "-c", "go on", "-m", "tiny", "--json", *EXACT)
    back = done.json
    assert "recomputes" not in done.err
    known = home.ids(first["message"])
    assert home.prompt_ids(back["message"])[: len(known)] == known
    # the last sampled token was never computed: its KV comes with the next turn
    assert back["usage"]["cached_input_tokens"] >= len(known) - 1

    # the branch that B went on with: A reads B's words for the first time, and its own as they were
    shell("switch", away)
    third = shell.ask("and you?", "-c", "-m", "tiny")
    assert home.prompt_ids(third["message"])[: len(known)] == known
    assert third["usage"]["cached_input_tokens"] >= len(known) - 1

    # and B again: its own prompt and answer are cached just so
    shell("switch", away)
    last = shell.ask("and you?", "-c", "-m", "foreign")
    theirs = home.ids(away)
    assert home.prompt_ids(last["message"])[: len(theirs)] == theirs
    assert last["usage"]["cached_input_tokens"] >= len(theirs) - 1
    home.assert_balanced()


def test_where_memory_holds_one_a_switch_is_told_in_one_line_and_the_stored_ids_stay(
    homes: Homes, tiny: Path, foreign: Path
) -> None:
    home = _home(homes, tiny, foreign, RADCHAT_MEMORY=_room_for_one(tiny, foreign))
    shell = Shell(home, "1", EXACT)
    first = shell.ask(TALK)
    swap = shell("ask", "-c", "go on", "-m", "foreign", *EXACT)
    notes = [line for line in swap.err.splitlines() if "takes the place of" in line]
    assert len(notes) == 1
    assert "foreign fp32 takes the place of tiny fp32" in notes[0]
    assert "cached tokens go" in notes[0]
    assert home.status()["model"] == "foreign"
    shell("switch", first["message"])
    back = shell.say("go on", "-m", "tiny")
    known = home.ids(first["message"])
    assert home.prompt_ids(back["message"])[: len(known)] == known
    assert (back["cache"]["device"], back["cache"]["disk"]) == (0, len(known) - 1)
    assert shell.json("sessions", "show")["model"] == "tiny"


@pytest.mark.parametrize("both_fit", [True, False])
def test_two_terminals_with_two_models_both_go_on_and_lose_nothing(
    homes: Homes, tiny: Path, foreign: Path, both_fit: bool
) -> None:
    env = {} if both_fit else {"RADCHAT_MEMORY": _room_for_one(tiny, foreign)}
    home = _home(homes, tiny, foreign, **env)
    panes = [Shell(home, "1", (*EXACT, "-m", "tiny")), Shell(home, "2", (*EXACT, "-m", "foreign"))]
    swaps = 0
    for turn in range(2):
        flags = ("-c",) if turn else ()
        running = [
            pane.start("ask", f"turn {turn}", *flags, *pane.flags, "--max-tokens", "40", "--json")
            for pane in panes
        ]
        for pane, process in zip(panes, running, strict=True):
            done = finish(process)
            assert done.code == 0, done.err
            swaps += done.err.count("takes the place of")
            assert done.json["model"] == pane.flags[-1]
            assert done.json["usage"]["output_tokens"] == 40
    for pane in panes:
        roles = [role for role, _ in pane.texts()]
        assert roles == ["user", "assistant"] * 2
    assert (swaps == 0) is both_fit
    home.assert_balanced()


def test_ps_load_and_stop_speak_of_each_model(homes: Homes, tiny: Path, foreign: Path) -> None:
    home = _home(homes, tiny, foreign, RADCHAT_KEEP_ALIVE="-1")
    shell = Shell(home, "1", EXACT)
    assert shell("models", "ps").err.strip() == "no model is loaded"
    assert "tiny is not loaded" in shell("stop", "tiny", code=66).err
    assert "loaded foreign fp32" in shell("models", "load", "foreign", "--dtype", "fp32").err
    shell.ask(TALK)
    rows = shell("ps").out.splitlines()
    assert [row.split()[0] for row in rows] == ["name", "tiny", "foreign"]
    assert all(row.endswith("for ever") for row in rows[1:])
    loaded = {m["name"]: m for m in shell.json("ps")["models"]}
    assert loaded["tiny"]["kv_tokens"] > len(TALK) - 16
    assert 0 < loaded["tiny"]["kv_used_bytes"] < loaded["tiny"]["kv_bytes"]
    assert (loaded["foreign"]["kv_tokens"], loaded["foreign"]["until_s"]) == (0, None)
    assert shell("stop", "foreign").err.startswith("unloaded foreign ")
    assert [m["name"] for m in shell.json("ps")["models"]] == ["tiny"]
    assert shell.json("stop")["models"] == ["tiny"]
    assert shell("stop").err.strip() == "no model is loaded"


def test_a_dtype_and_exact_are_engines_of_their_own(homes: Homes) -> None:
    shell = Shell(homes(), "1", EXACT)
    exact = shell.ask("say it", "--max-tokens", "12")
    assert exact["dtype"] == "fp32"
    bf16 = ("--temp", "0", "--dtype", "bf16", "--max-tokens", "12")
    other = shell("ask", "say it", *bf16, "--json")
    assert other.json["dtype"] == "bf16"
    assert other.json["usage"]["cached_input_tokens"] == 0
    assert "takes the place of" not in other.err
    for flags in (EXACT, bf16, ("--dtype", "fp32", "--temp", "0", "--max-tokens", "2")):
        again = shell.json("ask", "say it", *flags)
        usage = again["usage"]
        assert usage["cached_input_tokens"] == usage["input_tokens"] - 1
    assert shell.ask("say it", "--max-tokens", "12")["text"] == exact["text"]
