"""What is known of a chat template: plain data, kept by the hash of template and tokenizer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radchat.engine.conversation import Settings, Turn
from radchat.engine.rendering import Form
from radchat.engine.tokenizer import Tokenizer
from radchat.engine.tool_form import ToolForm

FORMAT = 3  # part of the cache key: another meaning of the facts, another number
KEEP_SWITCHES: Mapping[str, bool] = {
    "clear_thinking": False,
    "preserve_thinking": True,
    "keep_past_thinking": True,
    "truncate_history_thinking": False,
    "drop_thinking": False,
    "preserved_thinking": True,
}


@dataclass(frozen=True, slots=True)
class Facts:
    form: Form = field(default_factory=Form)
    mutable: bool = False  # needs a sandbox in which its own lists may change
    roles: Mapping[str, str] = field(default_factory=dict)  # case → shown | dropped | refused
    trims: tuple[str, ...] = ()  # roles whose text loses white space at its ends
    clock: str = "never"  # never | always | default system prompt
    tools: str = "dropped"  # the list of tools: shown | dropped | refused
    results: str = "dropped"  # a tool's result
    two_calls: str = "raw"  # two calls in one answer
    tool_form: ToolForm = field(default_factory=ToolForm)
    think_switch: str = ""
    keep_switch: str = ""
    switches: Mapping[str, str] = field(default_factory=dict)  # name → what changing it costs
    openings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # role → texts
    closings: Mapping[str, str] = field(default_factory=dict)  # answer | call → text when newest
    stops: tuple[str, ...] = ()  # control tokens that end an answer
    moves: Mapping[str, str] = field(default_factory=dict)  # case → what moves
    drops: tuple[str, ...] = ()  # after what reasoning vanishes

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """What ``to_json`` wrote, also after a trip through a JSON file."""
        values = dict(data)
        values["form"] = Form(**values["form"])
        values["tool_form"] = ToolForm(**values["tool_form"])
        values["openings"] = {k: tuple(v) for k, v in values["openings"].items()}
        for name in ("trims", "stops", "drops"):
            values[name] = tuple(values[name])
        return cls(**values)


def moves_case(turns: Sequence[Turn], settings: Settings) -> str:
    """The key of ``Facts.moves`` for a conversation."""
    system = "system" if turns and turns[0].role in ("system", "developer") else "plain"
    tools = bool(settings.tools) or any(turn.tool_calls for turn in turns)
    return f"{system}+tools" if tools else system


def facts_key(source: str, tokenizer: Tokenizer, constants: Mapping[str, str]) -> str:
    """Names the facts of a template with a tokenizer, for whoever keeps them."""
    text = json.dumps([FORMAT, source, tokenizer.hash, dict(sorted(constants.items()))])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def special_tokens(folder: Path, tokenizer: Tokenizer) -> tuple[dict[str, str], frozenset[int]]:
    """Names that templates may use (bos_token, eos_token …), and the ids that end a text."""
    names: dict[str, str] = {}
    eos: set[int] = set()
    for file in ("config.json", "generation_config.json"):
        path = folder / file
        data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for kind in ("bos", "eos", "pad"):
            value = data.get(f"{kind}_token_id")
            ids = [value] if isinstance(value, int) else list(value or ())
            if ids:
                names[f"{kind}_token"] = tokenizer.decode(ids[:1])
            if kind == "eos":
                eos.update(ids)
    path = folder / "tokenizer_config.json"
    data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for name, value in data.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            names[name] = text
    return names, frozenset(eos)
