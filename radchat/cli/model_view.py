"""`radchat models show`: all that is settled about a model, and where each thing comes from.

Read from the converted folder's small files: nothing is loaded and no daemon asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radchat.architectures import SAMPLING
from radchat.chat.footer import size
from radchat.chat.text import one_line
from radchat.config import DEFAULT_TEMPERATURE, DEFAULT_TOP_P

if TYPE_CHECKING:
    from radchat.config import Config
    from radchat.models.registry import ModelEntry

# where neither a setting, nor the model, nor its source says
FALLBACK = {"temperature": DEFAULT_TEMPERATURE, "top_p": DEFAULT_TOP_P}
_RUNS_ON = {
    "decoder": "radchat's own decoder",
    "remote": "another program's engine",
    "transformers": "transformers' classes, with radchat's attention and KV (slower)",
}


def about(entry: ModelEntry, config: Config) -> dict[str, Any]:
    """What the folder's files say beyond radchat.json, as JSON."""
    return {
        "generation": generation(entry, config),
        "system": entry.defaults.get("system"),
        "template": entry.template,
        "files": {
            path.name: path.stat().st_size
            for path in sorted(entry.folder.iterdir())
            if path.is_file()
        },
        "source_now": source_now(entry),
    }


def generation(entry: ModelEntry, config: Config) -> dict[str, dict[str, Any]]:
    """Each setting in force for a new answer: its value, and who says so."""
    models = _json(entry.folder / "generation_config.json")
    given = {key: models[key] for key in SAMPLING if models.get(key) is not None}
    found = {key: {"value": v, "from": "radchat"} for key, v in FALLBACK.items()}
    found |= {key: {"value": v, "from": "generation_config.json"} for key, v in given.items()}
    store = entry.source.partition(":")[0]
    own = {key: v for key, v in entry.defaults.items() if key != "system"}
    found |= {key: {"value": v, "from": store} for key, v in own.items()}
    settings = config.sampling.items()
    return found | {key: {"value": v, "from": config.sources[key]} for key, v in settings}


def template_lines(entry: ModelEntry) -> list[str]:
    """What the chat template does, as it was found when the model was converted."""
    facts = entry.template
    if not (entry.folder / "chat_template.jinja").is_file():
        return ["none: it can complete, not chat"]
    if facts is None:
        return ["not looked at: converted by an earlier radchat"]
    if "problem" in facts:
        return [str(facts["problem"])]
    lines = [f"system prompt {facts['roles'].get('system', 'dropped')}, tools {facts['tools']}"]
    if form := facts.get("tool_form"):
        lines.append(f"calls of tools: {_tool_form(form)}")
    if facts["think_switch"]:
        lines.append(f"thinking switched by {facts['think_switch']} (--think)")
    if facts["drops"]:
        lines.append(f"drops earlier reasoning after {', '.join(facts['drops'])}")
    if facts["clock"] != "never":
        lines.append(f"says the date: {facts['clock']}")
    lines += [f"moves {what}: {case}" for case, what in facts["moves"].items()]
    if facts["stops"]:
        lines.append(f"an answer ends with {', '.join(facts['stops'])}")
    return lines


def _tool_form(form: dict[str, Any]) -> str:
    """How they are written, in a line."""
    is_own = form.get("source") == "template"
    how = "as its template writes them" if is_own else "in a block of ours (its template has none)"
    begin = " ".join(str(form.get("open", "")).split() + str(form.get("begin", "")).split())
    return f"{how}, {begin}...; {'one' if form.get('is_single') else 'several'} an answer"


def source_now(entry: ModelEntry) -> str | None:
    """Whether what it was converted from is still there and the same; None: it lies elsewhere."""
    from radchat.errors import RadchatError
    from radchat.models import stores
    from radchat.models.sources import state_of

    if stores.is_ref(entry.source):
        try:
            state = stores.resolve(entry.source).state
        except RadchatError:
            return "gone"
    elif entry.source.startswith("/"):
        if not Path(entry.source).exists():
            return "gone"
        state = state_of(Path(entry.source))
    else:
        return None
    return "unchanged" if state == entry.source_state else "changed since"


def show_lines(entry: ModelEntry, config: Config) -> list[str]:
    facts = about(entry, config)
    now = facts["source_now"]
    lines = [
        f"name          {entry.name}",
        f"architecture  {one_line(entry.architecture)}, {entry.parameters:,} parameters",
        f"runs on       {_RUNS_ON.get(entry.runs_on, one_line(entry.runs_on))}",
        f"context       {one_line(entry.context_limit or f'{entry.context_length:,} tokens')}",
        *_weights(entry),
        f"on disk       {size(entry.bytes)} in {one_line(str(entry.folder))}",
        f"licence       {one_line(entry.license or 'not stated')}",
        f"source        {one_line(entry.source)}{f' ({now})' if now else ''}",
    ]
    lines += [f"how           {one_line(step)}" for step in entry.steps]
    for name, setting in facts["generation"].items():
        value = json.dumps(setting["value"], ensure_ascii=False)
        lines.append(f"setting       {name} {one_line(value)}, from {one_line(setting['from'])}")
    if facts["system"]:
        lines.append(f"system        {one_line(facts['system'])}")
    lines += [f"template      {one_line(line)}" for line in template_lines(entry)]
    lines += [f"file          {one_line(name)} {size(n)}" for name, n in facts["files"].items()]
    return lines


def _weights(entry: ModelEntry) -> list[str]:
    if entry.engine is not None:
        told = ", ".join(str(entry.engine[name]) for name in ("model", "dialect", "url"))
        return [f"engine        {one_line(told)}"]
    return [
        f"weights       from {one_line(entry.dtype_source)}, sha256 {entry.weights_sha256}",
        f"dtypes        {', '.join(entry.dtypes)}{_no_int4(entry)}",
    ]


def _no_int4(entry: ModelEntry) -> str:
    return "" if "int4" in entry.dtypes else "; int4 is of a .gguf in Q4_0 or Q4_1"


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
