"""A model with 4-bit weights in the daemon: an engine of its own beside the plain one's."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Quant

from radchat.engine.convert import convert
from radchat.errors import ConfigInvalid, UsageError
from tests.daemon.services import House, house, notices, run
from tests.models.making import gguf_file, model

TEXT = "a ferry has carried people, carts and sheep across the river for ninety years " * 2


def add_model(home: House, folder: Path) -> None:
    """``four``, from a GGUF file in Q4_1."""
    config, weights = model("llama", max_position_embeddings=4096)
    path = gguf_file(folder / "four.gguf", config, weights, quant=Quant.Q4_1)
    convert(path, home.places.models / "four-00000004", {"name": "four"})


def test_it_shares_kv_with_its_own_branches_and_with_no_other_dtype(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            add_model(home, tmp_path)
            four = {"model": "four", "dtype": "int4"}
            events = await home.ask(TEXT, new_session="a", **four)
            assert notices(events).count("slow_dtype") == 1
            first = events[-1].data
            told = first["branches"][0]
            assert (told["model"], told["dtype"]) == ("four", "int4")
            assert first["usage"]["cached_input_tokens"] == 0
            for text in ("go on", "or else"):
                fork = await home.say(text, session="a", at=told["message"], **four)
                assert fork["usage"]["cached_input_tokens"] > len(TEXT)
            events = await home.ask("go on", session="a", model="four", dtype="bf16")
            assert "slow_dtype" not in notices(events)
            plain = events[-1].data
            assert plain["usage"]["cached_input_tokens"] == 0
            assert await home.loaded() == ["four bf16", "four int4"]
            again = await home.say("go on", session="a", at=told["message"], **four)
            assert again["usage"]["cached_input_tokens"] > len(TEXT)

    run(main())


def test_a_model_without_4_bits_is_refused_and_what_is_loaded_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(TEXT, new_session=True)
            with pytest.raises(UsageError, match="tiny has no 4-bit weights"):
                await home.say("x", dtype="int4")
            assert await home.loaded() == ["tiny fp32"]

    run(main())


def test_where_the_setting_asks_for_4_bits_the_refusal_names_the_setting(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "h" / "config" / "config.toml"
        file.parent.mkdir(parents=True, mode=0o700)
        file.write_text('dtype = "int4"\n')
        async with house(tmp_path) as home:
            wanted = rf"dtype = 'int4' \(from {file}\): tiny has no 4-bit weights"
            with pytest.raises(ConfigInvalid, match=wanted):
                await home.say("x", new_session=True, dtype=None)
            with pytest.raises(UsageError, match=r"^tiny has no 4-bit weights"):
                await home.say("x", new_session=True, dtype="int4")
            await home.say("x", new_session=True)  # what is asked for goes before it

    run(main())
