"""How a model writes tool calls: plain data, learned from its template or our own.

    open  begin NAME middle ARGUMENTS end  between  begin NAME middle ARGUMENTS end  close

ARGUMENTS is a JSON object. Where the template shows its tools and writes calls so, the model was
taught that form and it is read off (``tool_probe.py``). Else the tools stand in a block of our own
in the system prompt, and calls are in the form that most models know, Hermes': docs/adr/0028.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ToolForm:
    begin: str = '<tool_call>\n{"name": "'
    middle: str = '", "arguments": '
    end: str = "}\n</tool_call>"
    between: str = "\n"
    open: str = ""
    close: str = ""
    before_id: str = ""  # where a call's id stands in its end: between these two
    after_id: str = ""
    is_single: bool = False  # one call an answer
    source: Literal["template", "block"] = "block"
    results: Literal["tool", "user"] = "tool"  # the role that brings a result, of a block

    @property
    def name(self) -> str:
        """What ``models show`` calls it."""
        if self.source == "block":
            return "a block of ours"
        if (self.begin, self.middle, self.end) == (HERMES.begin, HERMES.middle, HERMES.end):
            return "Hermes"
        if self.begin == '{"name": "' and self.middle == '", "parameters": ':
            return "Llama 3 JSON"
        return "the template's own"

    @property
    def trigger(self) -> str:
        """Text with which calls begin: it stands in no words for the user."""
        start = self.open + self.begin
        ends = [at + 1 for at in (start.find(">"), start.find("]")) if at >= 0]
        return start[: min(ends)] if ends and start[0] in "<[" else start

    @property
    def has_id(self) -> bool:
        return bool(self.before_id)

    def written(self, name: str, arguments: str) -> str:
        """One call, with its arguments as JSON text, alone in an answer."""
        return f"{self.open}{self.begin}{name}{self.middle}{arguments}{self.end}{self.close}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


HERMES = ToolForm()
