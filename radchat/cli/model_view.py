"""`radchat models show`: all that is settled about a model, and where each thing comes from.

Read from the converted folder's small files: nothing is loaded and no daemon asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radchat.chat.footer import size
from radchat.chat.text import one_line

if TYPE_CHECKING:
    from radchat.models.registry import ModelEntry

# where neither the model nor its source says: daemon/options.py
FALLBACK = {"temperature": 0.7, "top_p": 0.95}
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_RUNS_ON = {
    "decoder": "radchat's own decoder",
    "transformers": "transformers' classes, with radchat's attention and KV (slower)",
}
_MARKS = (  # what of a template's text tells which feature it has
    ("tools", "tools"),
    ("enable_thinking", "thinking can be switched (--think)"),
    ("<think>", "writes its reasoning first"),
    ("raise_exception", "refuses some orders of messages"),
    ("strftime_now", "says the date"),
)


def about(entry: ModelEntry) -> dict[str, Any]:
    """What the folder's files say beyond radchat.json, as JSON."""
    return {
        "generation": generation(entry),
        "system": entry.defaults.get("system"),
        "template": template(entry.folder),
        "files": {
            path.name: path.stat().st_size
            for path in sorted(entry.folder.iterdir())
            if path.is_file()
        },
        "source_now": source_now(entry),
    }


def generation(entry: ModelEntry) -> dict[str, dict[str, Any]]:
    """Each setting in force for a new answer: its value, and who says so."""
    config = _json(entry.folder / "generation_config.json")
    given = {key: config[key] for key in SAMPLING if config.get(key) is not None}
    found = {key: {"value": v, "from": "radchat"} for key, v in FALLBACK.items()}
    found |= {key: {"value": v, "from": "generation_config.json"} for key, v in given.items()}
    store = entry.source.partition(":")[0]
    own = {key: v for key, v in entry.defaults.items() if key != "system"}
    return found | {key: {"value": v, "from": store} for key, v in own.items()}


def template(folder: Path) -> dict[str, Any] | None:
    """The chat template: how long, and what it knows of. None: there is none."""
    try:
        text = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except OSError:
        return None
    return {"characters": len(text), "features": [words for mark, words in _MARKS if mark in text]}


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


def show_lines(entry: ModelEntry) -> list[str]:
    facts = about(entry)
    now = facts["source_now"]
    lines = [
        f"name          {entry.name}",
        f"architecture  {one_line(entry.architecture)}, {entry.parameters:,} parameters",
        f"runs on       {_RUNS_ON.get(entry.runs_on, one_line(entry.runs_on))}",
        f"context       {one_line(entry.context_limit or f'{entry.context_length:,} tokens')}",
        f"weights       from {one_line(entry.dtype_source)}, sha256 {entry.weights_sha256}",
        f"on disk       {size(entry.bytes)} in {one_line(str(entry.folder))}",
        f"licence       {one_line(entry.license or 'not stated')}",
        f"source        {one_line(entry.source)}{f' ({now})' if now else ''}",
    ]
    lines += [f"found by      {one_line(step)}" for step in entry.steps]
    for name, setting in facts["generation"].items():
        value = json.dumps(setting["value"], ensure_ascii=False)
        lines.append(f"setting       {name} {one_line(value)}, from {one_line(setting['from'])}")
    if facts["system"]:
        lines.append(f"system        {one_line(facts['system'])}")
    if facts["template"] is None:
        lines.append("template      none: it can complete, not chat")
    else:
        words = "; ".join(facts["template"]["features"]) or "plain"
        lines.append(f"template      {facts['template']['characters']:,} characters: {words}")
    lines += [f"file          {one_line(name)} {size(n)}" for name, n in facts["files"].items()]
    return lines


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
