"""Chat templates as they expect to be run: the environment that model makers write them for.

White space is trimmed around blocks, loops know break and continue, ``tojson`` writes plain JSON
(Jinja's own escapes HTML), ``raise_exception`` refuses a conversation, ``strftime_now`` is told the
session's time, ``generation`` marks are read over. Templates come from strangers: they run in a
sandbox and see copies of plain data only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from radchat.errors import InvalidInput, ModelBroken

# Given to every rendering by us, so never a switch of the template's own.
GIVEN_NAMES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception"}
)
# Beside those that any program makes: a division by zero, a macro that calls itself for ever.
_FAULTS = (ArithmeticError, RecursionError)


class _GenerationMarks(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks what a trainer learns; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class CompiledTemplate:
    """A template's source, ready to be rendered.

    ``mutable`` lets it change the lists it is given (it only gets copies): some append to their own
    lists, which the strict sandbox refuses.
    """

    def __init__(
        self, source: str, constants: Mapping[str, str] | None = None, *, mutable: bool = False
    ) -> None:
        kind = (
            jinja2.sandbox.SandboxedEnvironment
            if mutable
            else jinja2.sandbox.ImmutableSandboxedEnvironment
        )
        self._env = kind(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationMarks, jinja2.ext.loopcontrols],
        )
        self._env.filters["tojson"] = _to_json
        self._env.globals["raise_exception"] = _raise_exception
        self._constants = dict(constants or {})
        try:
            tree = self._env.parse(source)
            self._template = self._env.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelBroken(f"chat template does not compile: {error}") from error
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree)) - GIVEN_NAMES
        self.literals = _literals(tree)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        opening: bool,
        clock: datetime,
        switches: Mapping[str, Any] | None = None,
    ) -> str:
        """The text; InvalidInput with the template's own words if it refuses."""
        try:
            return self._template.render(
                {
                    **self._constants,
                    **_plain(switches or {}),
                    "messages": _plain(messages),
                    "tools": _plain(tools),
                    "documents": None,
                    "add_generation_prompt": opening,
                    "strftime_now": clock.strftime,
                }
            )
        except jinja2.TemplateError as error:
            raise InvalidInput(f"chat template: {error.message or error}") from error
        except (TypeError, ValueError, LookupError, AttributeError, *_FAULTS) as error:
            # a template is a program of a stranger's; its faults are about this conversation
            raise InvalidInput(f"chat template: {type(error).__name__}: {error}") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _plain(value: Any) -> Any:
    """A fresh copy of JSON-like data: nothing of ours is reachable from a template."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise InvalidInput(f"chat template: cannot be given a {type(value).__name__}")


def _literals(tree: jinja2.nodes.Template) -> tuple[str, ...]:
    """Every text that the template itself can write or compare with."""
    texts = [node.data for node in tree.find_all(jinja2.nodes.TemplateData)]
    texts += [
        node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)
    ]
    return tuple(texts)
