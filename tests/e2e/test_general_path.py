"""A model of the general path as any other: pulled, shown, talked to, forked, found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Shell
from tests.models.general_making import general_folder

pytestmark = pytest.mark.slow  # the converter and the daemon import transformers


def test_gemma3_from_its_folder_to_a_forked_talk_that_computes_only_new_words(
    homes: Homes, tmp_path: Path
) -> None:
    general_folder(tmp_path / "tiny-gemma", "gemma3")
    home = homes({}, RADCHAT_CHECK="1", RADCHAT_KV_DEVICE="2048tok")
    shell = Shell(home, "1", EXACT)
    shell("models", "pull", str(tmp_path / "tiny-gemma"))
    shown = shell.json("models", "show", "tiny-gemma")
    assert shown["runs_on"] == "transformers"
    assert "runs on       transformers' classes" in shell("models", "show", "tiny-gemma").out

    first = shell.ask("one and two and three and four and five")
    held = first["usage"]["input_tokens"] + first["usage"]["output_tokens"] - 1
    second = shell.say("six")
    assert second["cache"]["device"] == held
    forked = shell.json("fork", first["message"], "seven", *EXACT)
    assert forked["cache"]["device"] >= held, "and what the two next turns begin with alike"
    again = shell.ask("one and two and three and four and five")
    assert again["text"] == first["text"]
    assert again["cache"]["computed"] == 1, "all but the last token, which is to be drawn from"

    home.stop()
    cold = shell.ask("one and two and three and four and five")
    assert (cold["text"], cold["cache"]["device"]) == (first["text"], 0)
    home.assert_balanced()
