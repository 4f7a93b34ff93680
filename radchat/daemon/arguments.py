"""What a client may ask of ``generate``. Types are checked by body.py before anything happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from radchat.daemon.grammar_asked import GrammarAsked
from radchat.daemon.tools import Result, Tool, ToolChoice, check_tools
from radchat.engine.request import MAX_CHOICES
from radchat.errors import InvalidInput, UsageError
from radchat.protocol import Where

Kind = Literal["turn", "retry", "edit", "continue", "what-if"]
Role = Literal["system", "user", "assistant", "tool"]
ID_LEN = 16  # of a request
MAX_BRANCHES = 64  # of a what-if: as many as the engine runs side by side


class Options(TypedDict, total=False):
    """Sampling options of a command; null = not given. Ranges are the engine's to check."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    max_tokens: int | None
    num_ctx: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logprobs: int | None
    stop: list[str] | None
    stop_ids: list[int] | None  # besides the model's own
    logit_bias: dict[str, float] | None  # by token id, as JSON has only texts for keys


class FileText(TypedDict):
    """A loaded file: its text goes before the prompt's, under its name."""

    name: str
    text: str


class Given(TypedDict):
    """A message as the store keeps it, of somebody who tells a conversation himself."""

    role: Role
    parts: list[dict[str, Any]]


class ChatHead(TypedDict):
    """The HEAD an open chat holds itself; the stored one is somebody else's."""

    branch: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Generate:
    """One generating command. Which session and where in it; what is said; how it is sampled."""

    where: Where
    kind: Kind = "turn"
    text: str = ""
    texts: Sequence[str] = ()  # of a what-if: a branch each
    before: str = ""  # of a what-if: said before each of its texts, a blank line between
    files: Sequence[FileText] = ()
    system: str | None = None
    session: str | None = None
    new_session: bool = False
    name: str | None = None  # of the new session
    ephemeral: bool = False
    passing: bool = False  # of a client that keeps the conversation itself: nobody else sees it
    at: str | None = None  # REF the turn follows; default HEAD
    ref: str | None = None  # REF to retry, edit or continue; default the last one
    branch: str | None = None  # the name of the branch this makes
    head: ChatHead | None = None
    n: int = 1
    named: bool = True  # answers are on branches; else nothing has a name, and HEAD stays
    model: str | None = None
    dtype: str | None = None
    think: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    grammar: GrammarAsked | None = None  # what each answer must be of
    jump: bool = True  # what the grammar forces is taken without drawing it
    tools: Sequence[Tool] = ()  # that the model may call
    tool_choice: ToolChoice = "auto"
    parallel: bool = True  # several calls in one answer
    call_parts: bool = False  # calls are told as they are written, too
    messages: Sequence[Given] = ()  # all that is new, in order; nothing else is said then
    all_told: bool = False  # tools too: where none are given there are none, whatever came before
    key: str = ""  # whose sessions and KV these are; "": the owner's, who may see all
    results: Sequence[Result] = ()  # of the calls of the last answer: said before ``text``
    facts: str = ""  # what holds now and is worth knowing: it goes with the words
    only_terminal: bool = False
    request: str | None = None  # its id, where the client has made one: to `cancel` it unheard
    default_system: str | None = None  # the model's own, where a path begins and none is given

    def __post_init__(self) -> None:
        if self.request is not None and not (
            self.request.isalnum() and len(self.request) == ID_LEN
        ):
            raise InvalidInput(f"request: want {ID_LEN} letters and digits", field="request")
        if not 1 <= self.n <= MAX_CHOICES:
            raise InvalidInput(f"n: want 1 to {MAX_CHOICES} (got {self.n})", field="n")
        says = bool(self.text.strip() or self.files)
        if self.messages:
            self._check_messages(says=says)
        elif self.kind in ("turn", "edit") and not (says or self.results):
            raise InvalidInput("nothing to say: the message is empty", field="text")
        self._check_tools(says=says)
        if self.kind == "continue" and self.n != 1:
            raise InvalidInput("continue goes on with one answer: n must be 1", field="n")
        if self.kind == "continue" and self.grammar is not None:
            raise UsageError("continue goes on under the grammar that the answer has, if any")
        if self.key and any(":" in ref for ref in (self.at, self.ref) if ref is not None):
            raise InvalidInput("a REF with a key stays in its session: no SESSION:REF", field="at")
        if not self.named and (self.kind in ("continue", "what-if") or self.branch is not None):
            raise UsageError("answers without branches are to something that is said, or retried")
        if self.kind == "what-if":
            self._check_what_if()
        elif self.texts or self.before:
            raise UsageError(
                "several texts are for a what-if, also with one before each: others say one"
            )

    @property
    def namespace(self) -> str:
        """Of its KV: what one key has read is not found with another, nor by the clock."""
        return f"key:{self.key}" if self.key else ""

    def _check_messages(self, *, says: bool) -> None:
        if self.kind != "turn" or says or self.results or self.facts or self.system is not None:
            raise InvalidInput("messages are a turn's, and all that it says", field="messages")
        for index, message in enumerate(self.messages):
            if index and message["role"] == "system":
                raise InvalidInput(
                    f"messages[{index}]: a system message begins a conversation", field="messages"
                )

    def _check_tools(self, *, says: bool) -> None:
        check_tools(self.tools)
        if self.tools and self.grammar is not None:
            raise UsageError("an answer is held to a grammar, or may call tools: not both")
        choice = self.tool_choice
        if choice not in ("auto", "none") and not self.tools:
            raise InvalidInput("tool_choice: there are no tools to call", field="tool_choice")
        if isinstance(choice, dict) and choice["name"] not in {t["name"] for t in self.tools}:
            raise InvalidInput(f"tool_choice: no tool {choice['name']!r}", field="tool_choice")
        if self.results and self.kind != "turn":
            raise InvalidInput("results go with a turn", field="results")
        if self.facts and not says:
            raise InvalidInput("facts go with words: there are none", field="facts")

    def _check_what_if(self) -> None:
        if self.text or self.ref is not None or self.branch is not None:
            raise UsageError(
                "a what-if says its texts at HEAD, or at a REF (--at), on branches named after "
                "them: no other text, REF or name goes with it"
            )
        if not self.texts or not all(text.strip() for text in self.texts):
            raise UsageError("what if what? Say one text or more, none of them empty")
        if len(self.texts) > 1 and self.n > 1:
            raise UsageError(
                "several texts get one answer each: say one text with -N, or several without"
            )
        num = len(self.texts) * self.n
        if num > MAX_BRANCHES:
            raise UsageError(
                f"{num} branches are too many to run side by side: at most {MAX_BRANCHES}"
            )
