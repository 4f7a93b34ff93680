"""The events of an answer, shown: text on one stream, everything about it on the other.

Knows nothing of prompts or commands. Text is cleaned of control characters however it was cut
into events; reasoning, notices and the footer go to stderr (docs/cli.md, "Streams").
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from radchat.chat.footer import SEPARATOR, counted, footer, place
from radchat.chat.say import columns as columns_of
from radchat.chat.text import Cleaner, clean, one_line
from radchat.protocol import Event
from radchat.wire import EventStream

if TYPE_CHECKING:
    from radchat.chat.host import Host
    from radchat.chat.markdown import Markdown

STANDING = frozenset({"think"})  # codes of notices that are true of every answer of a chat
DIM, RESET = "\x1b[2m", "\x1b[0m"


@dataclass(slots=True)
class Answer:
    """What an answer's events have told so far."""

    heard: bool = False  # any of its words
    stays: bool = False  # HEAD does: it is answered beside it
    init: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    done: dict[str, Any] = field(default_factory=dict)
    warnings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def branches(self) -> list[dict[str, Any]]:
        return list(self.done.get("branches") or self.messages)

    @property
    def head(self) -> dict[str, Any] | None:
        """Where a chat stands now; after a cut-off, at the answer that was begun."""
        if self.done.get("head"):
            return dict(self.done["head"])
        if not self.init:
            return None
        return self.begun if self.heard else self.asked

    @property
    def asked(self) -> dict[str, Any]:
        """Where one stands as long as nothing is said: at what is new of the turn, or where one
        was.
        """
        at = {"branch": self.init.get("branch"), "message": self.init.get("user")}
        return dict(self.init.get("head") or at)

    @property
    def begun(self) -> dict[str, Any]:
        """At the answer; there is none, as long as nothing is said of it."""
        answers = self.init.get("messages") or [None]
        return {"branch": self.init.get("branch"), "message": answers[0]}


def shows_markdown(host: Host, *, raw: bool) -> bool:
    """Is Markdown shown on stdout? Else answers are as the model wrote them."""
    is_painted = host.paints(sys.stdout) and host.env.get("TERM", "") not in ("dumb", "")
    return not raw and not host.plain and host.columns is not None and is_painted


@dataclass
class View:
    out: TextIO
    err: TextIO
    note: Callable[[str], None]
    status: Callable[[str], None]
    streams: bool = True  # write text as it comes; else once, at its end
    shows_text: bool = True
    part: Callable[[str], str] | None = None  # what of a text to write; needs streams off
    shows_reasoning: bool = True
    shows_footer: bool = False
    paints: bool = False  # style on stderr
    columns: Callable[[], int] | None = None  # of stderr, for the footer; a window is resized
    dims_forced: bool = False  # text that the model had no choice in; needs renders off
    renders: bool = False  # the text's Markdown
    continues: str | None = "radchat continue"  # what to type to go on with a cut-off answer
    at_end: Callable[[], None] | None = None  # told once, before anything is said of the answer
    is_cancelled: bool = False  # by Ctrl+C
    standing: set[str] = field(default_factory=set)  # notices that hold for all of a chat, told
    answer: Answer = field(default_factory=Answer)
    _text: Cleaner = field(default_factory=Cleaner)
    _thought: Cleaner = field(default_factory=Cleaner)
    _markdown: Markdown | None = None
    _at_line_start: bool = True
    _is_thinking: bool = False

    def follow(self, events: Iterable[Event]) -> Answer:
        """Show the events to their end; raises the error they end with."""
        for event in events:
            self.show(event)
        self.finish()
        return self.answer

    def show(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event.name}", None)
        if handler is not None:  # an event of a newer daemon is no reason to fail
            handler(event.data)

    def finish(self) -> None:
        """End the line, also of an answer cut short."""
        self.status("")
        self._end_thought()
        if self.shows_text and self.streams:
            self._stream(self._text.flush())
            self._end_text()
            self._end_line()
        if self.at_end is not None:
            told, self.at_end = self.at_end, None
            told()

    def cancelled(self, session: str = "") -> str:
        """What Ctrl+C left, in a line: the daemon keeps what was said, as with a terminal that was
        closed. ``session``: told where one does not stand in it.
        """
        init = self.answer.init
        if not init:
            return "cancelled"
        if not session:
            return "cancelled: what came so far is kept"
        if not self.answer.heard:
            return self._unanswered(session)
        at = place(init.get("branch"), (init.get("messages") or [None])[0])
        on = f"; `{self.continues}` goes on" if self.continues else ""
        return f"cancelled: what came so far is kept in {session}{SEPARATOR}{at}{on}"

    def _unanswered(self, session: str) -> str:
        question = self.answer.init.get("user")
        if question is None:
            return "cancelled before an answer"
        at = f"{session}{SEPARATOR}{place(self.answer.init.get('branch'), question)}"
        on = "; `radchat retry` answers it" if self.continues else ""
        return f"cancelled before an answer: the question is kept in {at}{on}"

    # --- events ---

    def _on_notice(self, data: dict[str, Any]) -> None:
        text = str(data.get("text", ""))
        self.answer.warnings.append(data)
        if data.get("code") in STANDING:
            if text in self.standing:
                return
            self.standing.add(text)
        self._interrupt()
        self.note(text)

    def _on_progress(self, data: dict[str, Any]) -> None:
        if self._at_line_start:
            self.status(progress(data))

    def _on_init(self, data: dict[str, Any]) -> None:
        self.answer.init = data
        if self.renders and self.shows_text:
            threading.Thread(target=_prepare, daemon=True).start()
            if data.get("continues"):
                self._rendering().resume(clean(str(data["continues"])))

    def _on_reasoning(self, data: dict[str, Any]) -> None:
        self.answer.heard = True
        if not self.shows_reasoning:
            self._count(data)
            return
        self.status("")
        if not self._is_thinking:
            self._is_thinking = True
            if self.paints:
                self.err.write(DIM)
        self.err.write(self._thought.push(str(data["text"])))
        self.err.flush()

    def _on_delta(self, data: dict[str, Any]) -> None:
        self.answer.heard = True
        self._end_thought()
        if self.shows_text and self.streams:
            text = self._text.push(str(data["text"]))
            is_dim = text and self.dims_forced and data.get("forced")
            self._stream(f"{DIM}{text}{RESET}" if is_dim else text)
        else:
            self._count(data)

    def _count(self, data: dict[str, Any]) -> None:
        """How much is said of what is not shown before it is whole."""
        if tokens := data.get("tokens"):
            self.status(counted(tokens, "token"))

    def _on_message(self, data: dict[str, Any]) -> None:
        self.answer.messages.append(data)
        if self.shows_text and not self.streams:
            self.status("")
            self._end_thought()
            text = str(data["text"])
            if self.renders and self.part is None:
                self._stream(clean(text))
                self._end_text()
            else:
                self._write(clean(text if self.part is None else self.part(text)))
            self._end_line()

    def _on_done(self, data: dict[str, Any]) -> None:
        self.answer.done = data
        self.finish()
        context = data.get("context") or {}
        is_full = bool(context.get("limit")) and context["used"] >= context["limit"]
        for branch in self.answer.branches:
            if branch.get("finish_reason") == "length":
                tokens = (branch.get("usage") or {}).get("output_tokens")
                after = f" after {counted(tokens, 'token')}" if tokens is not None else ""
                on = f": {self.continues} goes on with it" if self.continues else ""
                self.note(f"cut off{after}{': the context is full' if is_full else on}")
        if self.shows_footer and self.answer.branches:
            self._write_footer(data)

    # --- writing ---

    def _write_footer(self, data: dict[str, Any]) -> None:
        line = footer(
            self.answer.branches[0],
            context=data.get("context") or {},
            saved_s=data.get("saved_s"),
            why=data.get("why_short"),
            columns=None if self.columns is None else self.columns(),
        )
        self.err.write(f"{DIM}{line}{RESET}\n" if self.paints else f"{line}\n")
        self.err.flush()

    def _stream(self, text: str) -> None:
        """Text of the answer, as it comes: as Markdown, or as it is."""
        if not self.renders or not text:
            self.status("")
            self._write(text)
            return
        shown = self._rendering().push(text)
        if shown:
            self.status("")
            self._write(shown)
        if waits := self._rendering().waits:
            self.status(waits)

    def _end_text(self) -> None:
        if self._markdown is not None:
            self._write(self._markdown.flush())
            self._markdown = None

    def _rendering(self) -> Markdown:
        if self._markdown is None:
            from radchat.chat.markdown import Markdown

            self._markdown = Markdown(lambda: columns_of(self.out))
        return self._markdown

    def _write(self, text: str) -> None:
        if text:
            self.out.write(text)
            self.out.flush()
            self._at_line_start = text.endswith("\n")

    def _interrupt(self) -> None:
        """Something else is written now: in a line of its own."""
        if self._markdown is not None:
            self._write(self._markdown.pause())
        self._end_line()

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _end_thought(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            self.err.write(self._thought.flush() + (RESET if self.paints else "") + "\n\n")
            self.err.flush()


def is_many(args: Mapping[str, Any]) -> bool:
    """Is this a call whose answers are several, each on a branch? They have a view of their own:
    many.py.
    """
    return args["kind"] == "what-if" or int(args.get("n", 1)) > 1


STAGES = {
    "load": "loading",
    "queue": "waiting",
    "extend": "reading the prompt",
    "restore": "restoring from disk",
    "verify": "verifying",
}


def end_of(
    stream: EventStream, note: Callable[[str], None], status: Callable[[str], None]
) -> dict[str, Any]:
    """What work that says no words comes to; its notices are told and its progress shown meanwhile.

    Left by an exception, Ctrl+C's too, it closes the stream: the work is cancelled.
    """
    done: dict[str, Any] = {}
    try:
        with stream as events:
            for event in events:
                if event.name == "progress":
                    status(progress(event.data))
                elif event.name == "notice":
                    note(str(event.data.get("text", "")))
                elif event.name == "done":
                    done = event.data
    finally:
        status("")
    return done


def progress(data: dict[str, Any]) -> str:
    """A progress event as a few words: `loading smollm2-135m 45%`."""
    stage = str(data.get("stage", ""))
    words = [STAGES.get(stage, stage), str(data.get("text") or "")]
    done, total = data.get("done"), data.get("total")
    if total and done is not None and stage != "queue":
        words.append(f"{100 * done / total:.0f}%")
    return one_line(" ".join(word for word in words if word))


def _prepare() -> None:
    """Import what Markdown takes, while the daemon is at the prompt."""
    from radchat.chat.markdown import prepare

    prepare()
