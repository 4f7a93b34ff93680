"""Those who go: clients before the first word, twenty at once; a command with a child at work."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.e2e.conftest import Homes
from tests.e2e.homes import Shell, until
from tests.e2e.tiny_models import CHATML
from tests.models.making import hf_folder
from tests.waiting import alive, wait_until


def test_twenty_long_prompts_cancelled_before_the_first_word_hold_up_nobody(
    terminal: Shell,
) -> None:
    """CO-03, by hanging up and by asking, in turn."""
    home = terminal.home
    terminal.quick("the model is there")
    before = home.stats()["steps"]
    for number in range(20):
        text = f"{number} " + "word " * 700  # seven steps of a prompt: a cancel comes in between
        with terminal.stream(text=text, dtype="fp32", only_terminal=True) as events:
            seen = until(events, "init")
            if number % 2:
                request = seen[-1].data["request"]
                home.client().call("cancel", request=request)
                seen += events
                answer = seen[-1].data["branches"][0]
                assert (answer["text"], answer["message"]) == ("", None)
                assert answer["finish_reason"] == "abort"
        assert "delta" not in [event.name for event in seen]
    short = terminal.quick("and now?")
    assert short["usage"]["output_tokens"] == 8
    taken = home.stats()["steps"] - before
    assert taken < 20 * 4 + 8 + 2, "the cancelled prompts were read to their ends"
    home.assert_balanced()
    with home.store() as store:
        assert store.running() == []


def children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for one in lists for child in one.read_text().split()]


@pytest.mark.slow
def test_a_converter_ends_with_the_command_it_works_for(homes: Homes, tmp_path: Path) -> None:
    """DM-03: kill -9 of `models pull` leaves no child and no half model; the next one works."""
    home = homes({})
    shell = Shell(home, "1")
    source = tmp_path / "source"
    weights = hf_folder(source)
    save_file(weights, source / "model.safetensors")
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    pulling = shell.start("models", "pull", str(source))
    wait_until(lambda: children(pulling.pid))
    found = children(pulling.pid)
    os.kill(pulling.pid, signal.SIGKILL)
    pulling.wait()
    wait_until(lambda: not any(alive(pid) for pid in found))
    assert shell.json("models", "ls")["models"] == []
    shell("models", "pull", str(source))
    assert len(shell.json("models", "ls")["models"]) == 1
    names = os.listdir(home.places.models)  # noqa: PTH208
    assert len([name for name in names if "source" in name]) == 1, names
