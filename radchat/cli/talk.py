"""A `generate` call from the shell: its events to text, JSON or JSON lines.

ask, fork with a prompt, retry, edit and continue share this; the chat has its own loop.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from radchat.chat.code_block import first_block
from radchat.chat.footer import counted
from radchat.chat.text import one_line
from radchat.chat.view import Answer, View, is_many, shows_markdown
from radchat.cli.common import Cli, is_terminal
from radchat.errors import Interrupted, OutputInvalid, RadchatError, Terminated, UsageError

FORMATS = ("text", "json", "stream-json")
HELD_TO = {"json_schema": "the schema", "regex": "the regex", "choices": "a choice"}
LINE_TYPES = {
    "init": "init",
    "message": "message",
    "delta": "text_delta",
    "reasoning": "reasoning_delta",
    "notice": "warning",
}


def check_format(cli: Cli, output_format: str | None) -> str:
    if output_format is None:
        return "json" if cli.json else "text"
    if output_format not in FORMATS:
        raise UsageError(f"--output-format {output_format}: want {', '.join(FORMATS)}")
    if cli.json and output_format == "stream-json":
        raise UsageError("--json is one document, stream-json is lines: give one of them")
    cli.json = cli.json or output_format == "json"
    return output_format


def talk(
    cli: Cli,
    args: dict[str, Any],
    *,
    form: str = "text",
    streams: bool = True,
    extract: bool = False,
    one: bool = True,
    raw: bool = False,
    show_forced: bool = False,
    was: Mapping[str, Any] | None = None,
) -> Answer:
    """Run the call, show it, and say where one is now, and was.

    ``one``: its JSON is that of `ask`, else the list of branches. ``extract``: of the answer, text
    is only its first code block; JSON has that besides, as "extracted".
    """
    payload = {**cli.here(), **args}
    if form == "stream-json":
        return _lines(cli, payload, extract=extract)
    shown = {
        **how_shown(cli, form, raw=raw),
        "streams": streams and not extract,
        "part": (lambda text: _block(cli, text)) if extract else None,
        "dims_forced": _dims(cli) if show_forced else False,
        "continues": continues(args),
    }
    view = _many(cli, args, shown) if is_many(args) else View(**shown)
    answer = follow(cli, payload, view, form)
    if form == "text" and args["kind"] != "what-if":
        cli.moved(answer.done, was)
    check_output(answer.branches)
    if form == "json":
        whole = answer.branches[0] if one and answer.branches else answer.done
        cli.data({**whole, **_extracted(answer, extract), "warnings": answer.warnings})
    return answer


def how_shown(cli: Cli, form: str, *, raw: bool) -> dict[str, Any]:
    """What a view is made of, by the streams and the options of this command line."""
    is_watched = form == "text" and is_terminal(sys.stderr) and not cli.quiet
    return {
        "out": sys.stdout,
        "err": sys.stderr,
        "note": cli.note,
        "status": cli.status,
        "shows_text": form == "text",
        "shows_reasoning": is_watched,
        "shows_footer": is_watched,
        "paints": cli.paints(sys.stderr),
        "columns": cli.error_columns,
        "renders": shows_markdown(cli, raw=raw),
    }


def follow(cli: Cli, payload: Mapping[str, Any], view: View, form: str) -> Answer:
    """The call's events, shown to their end; raises what ended it before, Ctrl+C too."""
    cli.status("connecting")
    try:
        with cli.client.stream("generate", **payload) as events:
            answer = view.follow(events)
    except (KeyboardInterrupt, SystemExit, RadchatError) as error:
        view.finish()
        if isinstance(error, KeyboardInterrupt):
            raise _cancelled(cli, view, form) from error
        raise
    if view.is_cancelled:
        raise _cancelled(cli, view, form)
    return answer


def _many(cli: Cli, args: Mapping[str, Any], shown: Mapping[str, Any]) -> View:
    from radchat.chat.many import many_view

    return many_view(args, cli, lambda: cli.client, shown)


def continues(args: Mapping[str, Any]) -> str | None:
    """What to type to go on with a cut-off answer. None: nothing, where it would be said elsewhere:
    an ephemeral session is never the current one of a command that keeps what is said.
    """
    return None if args.get("ephemeral") else "radchat continue"


def _cancelled(cli: Cli, view: View, form: str) -> BaseException:
    """Ctrl+C: says what is kept and where; what ends the command, JSON's with the ids of it."""
    init = view.answer.init
    line = view.cancelled(one_line(str(init.get("name") or init.get("session"))))
    cli.note(line)
    return Interrupted(line, **_begun(init)) if form == "json" else KeyboardInterrupt()


def _begun(init: Mapping[str, Any]) -> dict[str, Any]:
    """Where the answers were to be kept: an answer of which nothing was said is not."""
    keys = ("session", "branch", "user", "messages", "branches")
    begun = {key: init[key] for key in keys if init.get(key)}
    return {"begun": begun} if begun else {}


def _block(cli: Cli, text: str) -> str:
    block = first_block(text)
    if block is None:
        cli.note("no code block in the answer: this is the whole of it")
    return text if block is None else block


def _extracted(answer: Answer, extract: bool) -> dict[str, Any]:
    """What -x adds to the JSON of an answer: its first code block, null where there is none."""
    if not (extract and answer.branches):
        return {}
    return {"extracted": first_block(str(answer.branches[0]["text"]))}


def _lines(cli: Cli, payload: dict[str, Any], *, extract: bool) -> Answer:
    """`stream-json`: an object a line, the last of which is always `result`, also on failure."""
    answer = Answer()
    try:
        with cli.client.stream("generate", **payload) as events:
            for event in events:
                if event.name == "done":
                    answer.done = event.data
                elif event.name == "message":
                    answer.messages.append(event.data)
                elif event.name == "init":
                    answer.init = event.data
                if event.name in LINE_TYPES:
                    _line(LINE_TYPES[event.name], event.data)
    except RadchatError as error:
        end_lines(error)
        raise
    except KeyboardInterrupt:
        end_lines(Interrupted("ended by Ctrl+C", **_begun(answer.init)))
        raise
    except SystemExit:
        end_lines(Terminated("ended by SIGTERM", **_begun(answer.init)))
        raise
    try:
        check_output(answer.branches)
    except OutputInvalid as error:
        error.data.clear()  # the answer has its line already
        end_lines(error, answer.done)
        raise
    _line("result", {"is_error": False, **answer.done, **_extracted(answer, extract)})
    return answer


def check_output(answers: Sequence[Mapping[str, Any]]) -> None:
    """OutputInvalid where one was held to a grammar and is not whole, or is not what was wanted."""
    for answer in answers:
        if answer.get("grammar") is None:
            continue
        tokens = counted((answer.get("usage") or {}).get("output_tokens") or 0, "token")
        kind = HELD_TO.get(answer["grammar"], "its grammar")
        if answer["finish_reason"] == "length":
            why = f"it was cut off after {tokens}"
        elif answer["finish_reason"] == "dead_end":
            why = f"the model could not go on with it after {tokens}"
        elif answer.get("schema_error"):
            why = one_line(str(answer["schema_error"]))
        else:
            continue
        raise OutputInvalid(f"the answer does not meet {kind}: {why}", answer=dict(answer))


def _dims(cli: Cli) -> bool:
    if not cli.paints(sys.stdout):
        cli.note("--show-forced dims text on a terminal: there is nothing to dim here")
        return False
    return True


def end_lines(error: RadchatError, done: Mapping[str, Any] | None = None) -> None:
    """The last lines of a stream that failed."""
    _line("error", error.to_json())
    _line("result", {**(done or {}), "is_error": True, "error": error.to_json()})


def _line(kind: str, data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"type": kind, **data}) + "\n")
    sys.stdout.flush()
