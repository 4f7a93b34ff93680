"""`-m ollama:NAME` through real processes: converted once, with the settings that come with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Homes
from tests.e2e.harness import Terminal
from tests.e2e.homes import Shell
from tests.models.others import ollama_model, tiny_gguf
from tests.waiting import PATIENCE

PARAMS = {"temperature": 0, "num_predict": 9, "mirostat": 1}


@pytest.fixture
def shell(homes: Homes, tmp_path: Path) -> Shell:
    """A terminal of somebody who has ollama, with one model in it."""
    home = homes(HOME=str(tmp_path))
    gguf = tiny_gguf(tmp_path / "tiny.gguf")
    store = tmp_path / ".ollama" / "models"
    ollama_model(store, "library/tiny:latest", gguf, params=PARAMS, system="Be brief.")
    return Shell(home, "1")


def test_a_model_of_ollamas_answers_with_its_own_settings_and_system_prompt(shell: Shell) -> None:
    first = shell("ask", "hello", "-m", "ollama:tiny", "--dtype", "fp32", "--json")
    assert "Q8_0" in first.err
    assert "converted once" in first.err
    assert "mirostat: left out" in first.err
    answer = first.json
    assert answer["model"] == "ollama-tiny-latest"
    assert answer["usage"]["output_tokens"] <= 9
    log = shell.json("log")["messages"]
    assert [(m["role"], m["text"]) for m in log[:2]] == [("system", "Be brief."), ("user", "hello")]

    again = shell("ask", "hello", "-m", "ollama:tiny", "--dtype", "fp32", "--json")
    assert "converted" not in again.err
    assert again.json["text"] == answer["text"]  # temperature 0 came along
    own = ("-s", "", "--max-tokens", "12", "--temp", "0", "--dtype", "fp32", "--ephemeral")
    shell("ask", "hello", "-m", "ollama:tiny", *own, "--new-session", "none")
    said = shell.json("log", "--session", "none")["messages"]
    assert said[0]["role"] == "user"

    # the session goes on with it by its name, and a system prompt is for the first turn only
    shell.json("ask", "and?", "-c", "-m", "tiny", "--max-tokens", "5")
    back = shell.json("ask", "again?", "-c", "-m", "ollama-tiny-latest", "--max-tokens", "5")
    assert back["model"] == "ollama-tiny-latest"
    assert [m["role"] for m in shell.json("log")["messages"]].count("system") == 1


def test_an_open_chat_goes_to_a_model_of_ollamas(shell: Shell) -> None:
    env = {**shell.env, "TERM": "xterm-256color"}
    command = [sys.executable, "-P", "-m", "radchat", "chat", "--exact", "--max-tokens", "6"]
    with Terminal(command, env, cwd=shell.folder, rows=40) as terminal:
        terminal.wait_for("> ", PATIENCE)
        terminal.type("/model ollama:tiny\r")
        terminal.wait_for("model ollama-tiny-latest", PATIENCE)
        assert "converted once" in terminal.text
        terminal.type("hello\r")
        terminal.wait_for("first token", PATIENCE)  # six at once have no speed
        terminal.type("/model tiny\r")
        terminal.wait_for("model tiny", PATIENCE)
        terminal.type("/bye\r")
        terminal.wait_end(PATIENCE)
    assert [m["name"] for m in shell.json("models", "ps")["models"]] == [
        "tiny",
        "ollama-tiny-latest",
    ]
