"""A tool of an MCP server as one of the agent's: what it is named, and what came of a call."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from radchat.agent.types import Call, Context, Kind, Outcome, Preview
from radchat.chat.text import one_line

if TYPE_CHECKING:
    from mcp import types

MAX_NAME = 120  # the daemon takes 128
MAX_WORDS = 1000  # characters of a description
MAX_TITLE = 200
_OTHER = re.compile(r"[^A-Za-z0-9_.-]")


class Caller(Protocol):
    """Where calls go."""

    def call(self, server: str, tool: str, call: Call, context: Context) -> Outcome: ...


def server_word(name: str) -> str:
    """In names of tools and rules. No two underscores: they end it."""
    return re.sub(r"_+", "_", _OTHER.sub("_", name)).strip("_") or "server"


def tool_name(server: str, tool: str) -> str:
    return f"mcp__{server_word(server)}__{_OTHER.sub('_', tool)}"[:MAX_NAME]


@dataclass(frozen=True, slots=True)
class McpTool:
    name: str
    description: str
    parameters: Mapping[str, Any]
    server: str  # as it is configured
    tool: str  # as the server has it
    caller: Caller
    kind: Kind = "other"
    is_poll: bool = False

    def preview(self, call: Call, context: Context) -> Preview:  # noqa: ARG002
        said = json.dumps(dict(call.arguments), ensure_ascii=False)
        body = json.dumps(dict(call.arguments), ensure_ascii=False, indent=2)
        return Preview(f"{self.name} {said}"[:MAX_TITLE], body)

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:  # noqa: ARG002
        return self.caller.call(self.server, self.tool, call, context)


def description_of(tool: types.Tool, server: str) -> str:
    words = one_line(tool.description or tool.title or "")[:MAX_WORDS]
    return words or f"{one_line(tool.name)} of {server}"


def outcome_of(result: types.CallToolResult) -> Outcome:
    texts = [_text(item) for item in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(texts)
    if not text.strip():
        text = "(no output)"
    return Outcome(text, "error" if result.is_error else "ok")


def _text(item: Any) -> str:
    """What of an item a model can read; of the rest, what it is and how large."""
    match item.type:
        case "text":
            return str(item.text)
        case "image" | "audio":
            return f"[{item.type} {one_line(item.mime_type)}: {_size(item.data):,} bytes]"
        case "resource_link":
            return f"[resource {one_line(str(item.uri))}]"
        case "resource":
            inner = item.resource
            if getattr(inner, "text", None) is not None:
                return str(inner.text)
            kind = one_line(inner.mime_type or "of no type")
            return f"[resource {one_line(str(inner.uri))}, {kind}: {_size(inner.blob):,} bytes]"
        case other:
            return f"[{one_line(str(other))}]"


def _size(data: str) -> int:
    try:
        return len(base64.b64decode(data))
    except ValueError:
        return len(data)
