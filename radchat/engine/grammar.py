"""What an answer may look like: a grammar, as it is asked for. Plain data, no dependency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

GrammarKind: TypeAlias = Literal["json_schema", "regex", "lark", "choices", "tools"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """``source``, by kind: a JSON schema; a regular expression; a Lark grammar (GBNF is converted);
    a JSON list of texts; a JSON list of tools, each ``{"name", "parameters"}``, or what
    ``tool_grammar`` makes of them and of the model's form of calls.
    """

    kind: GrammarKind
    source: str
    lenient: bool = False  # of a schema: what can't be enforced is left out, and said
    after: str = ""  # free text up to and with this comes first: a model that always thinks
