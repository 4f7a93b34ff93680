"""The menu of the prompt: commands behind a slash, what they take, files behind an @."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from radchat.chat import commands
from radchat.chat.known import Candidate, Known
from radchat.chat.text import one_line
from radchat.chat.wishes import Wish, wish


class Menu(Completer):
    def __init__(self, known: Known) -> None:
        self._known = known

    def get_completions(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002 - as the library has it
    ) -> Iterator[Completion]:
        wanted = wish(document.text_before_cursor)
        if wanted is None:
            return
        for each in self._fitting(wanted):
            if each.value.isprintable():
                yield Completion(
                    each.value,
                    start_position=-wanted.length,
                    display=one_line(each.shown or each.value),
                    display_meta=one_line(each.text),
                )

    def _fitting(self, wanted: Wish) -> Iterable[Candidate]:
        if wanted.kind == "commands":
            return _commands(wanted.typed.lower())
        if wanted.kind == "files":
            return self._files(wanted)
        if wanted.kind == "words":
            found = [Candidate(word) for word in wanted.words]
            return [each for each in found if each.value.startswith(wanted.typed)]
        before = wanted.typed[: wanted.typed.rfind(":") + 1] if wanted.kind == "refs" else ""
        mark = "#" if wanted.typed.startswith("#") else ""
        found = [
            Candidate(f"{before}{mark}{each.value}", each.text)
            for each in self._known.of(wanted.kind, before)
            if not mark or each.value.isdigit()
        ]
        return [each for each in found if each.value.startswith(wanted.typed)]

    def _files(self, wanted: Wish) -> Iterator[Candidate]:
        """Those of the folder typed so far; hidden ones only where their dot is typed."""
        folder, name = os.path.split(wanted.typed)
        before = wanted.typed[: len(wanted.typed) - len(name)]
        if wanted.typed in ("~", ".", ".."):
            folder, name, before = wanted.typed, "", f"{wanted.typed}/"
        for each in self._known.of("files", folder):
            if each.value.startswith(name) and name.startswith(".") >= each.value.startswith("."):
                path = before + each.value
                yield Candidate(_named(path) if wanted.is_named else path, shown=each.value)


def _commands(typed: str) -> Iterator[Candidate]:
    for slash in commands.SLASHES:
        words = [word for word in (slash.name, *slash.aliases) if word.startswith(typed)]
        if words:  # another name only where its own does not fit
            shown = f"/{words[0]} {slash.args}".rstrip()
            yield Candidate(f"/{words[0]}{' ' if slash.args else ''}", slash.help, shown)


def _named(path: str) -> str:
    """As a message names a file: quoted where a space would end it, open where it goes on."""
    if not any(letter.isspace() for letter in path):
        return f"@{path}"
    return f'@"{path}' if path.endswith("/") else f'@"{path}"'
