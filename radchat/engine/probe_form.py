"""How a template wants conversations written: calls, reasoning, and what ends an answer.

Each probe writes what it finds into the subject's form, for those after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from radchat.engine.conversation import Turn
from radchat.engine.cuts import common_text
from radchat.engine.probe_subject import CALL_ID, Subject
from radchat.engine.rendering import random_word

MARKS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("◁think▷", "◁/think▷"),
    ("<thought>", "</thought>"),
)


def find_call_form(subject: Subject) -> bool:
    """Whether and how calls are shown; True if that needs the mutable sandbox."""
    for mutable in (False, True):
        subject.compile(mutable=mutable)
        for arguments in ("dict", "string"):
            for call_id, ids in (("functions.f:0", "any"), (CALL_ID, "nine")):
                subject.use(calls="shown", arguments=arguments, call_ids=ids)
                mark = random_word()
                turns = [subject.user(), subject.call(mark, call_id=call_id)]
                text = subject.render([*turns, subject.result("r", call_id)], tools=True)
                if text is None:  # no results, perhaps
                    text = subject.render(turns, tools=True)
                # written twice into JSON, the quotes around it would be escaped
                if text and mark in text and f'\\"{mark}' not in text:
                    return mutable
    subject.compile(mutable=False)
    subject.use(calls="raw", arguments="dict", call_ids="any")
    return False


def find_reasoning_form(subject: Subject) -> None:
    """Whether and where reasoning is shown, and the marks around it."""
    why, said, user = random_word(), random_word(), subject.user()
    known = [pair for pair in MARKS if pair[1] in subject.source]
    subject.use(reasoning="field")
    rounds: list[list[Turn]] = [
        [user, Turn("assistant", said, why)],
        [user, subject.call(said, why), subject.result("r")],
    ]
    for turns in rounds:
        for tools in (False, True):
            text = subject.render(turns, tools=tools)
            if text and why in text and said in text:
                before, rest = text.split(why, 1)
                between = rest.split(said, 1)[0]
                fits = [pair for pair in MARKS if pair[0].strip() in before and pair[1] in between]
                pair = (known or fits or [_learned_marks(subject, before, between, user)])[0]
                subject.use(open_mark=pair[0], close_mark=pair[1])
                return
    opened = subject.render([user], opening=True) or ""
    known = known or [pair for pair in MARKS if opened.rstrip().endswith(pair[0])]
    if known:
        subject.use(reasoning="raw", open_mark=known[0][0], close_mark=known[0][1])
    else:
        subject.use(reasoning="none")


def _learned_marks(subject: Subject, before: str, between: str, user: Turn) -> tuple[str, str]:
    head = subject.render([user], opening=True) or ""
    mark = before[common_text(before, head) :].strip() or before.strip().rsplit("\n", 1)[-1]
    return mark, between.strip()


def find_said_mark(subject: Subject) -> None:
    """The control tokens that the model itself writes before its words for the user."""
    user, said = subject.user(), random_word()
    opened = subject.render([user], opening=True)
    whole = subject.render([user, Turn("assistant", said)])
    if opened is None or whole is None or said not in whole or not whole.startswith(opened):
        return
    mark = whole[len(opened) :].split(said)[0].strip()
    form = subject.form
    if subject.controls(mark) and not (form.open_mark and form.open_mark in mark):
        subject.use(said_mark=mark)


def find_closings(
    subject: Subject, eos_names: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Texts after an answer and after a call, and the control tokens that end answers."""
    user, word, other = subject.user(), random_word(), random_word()
    stops: list[str] = []
    closings: dict[str, str] = {}
    for turns in (
        [user, Turn("assistant", word)],
        [user, Turn("assistant", word), subject.user()],
    ):
        text = subject.render(turns)
        if text and word in text:
            rest = text.rsplit(word, 1)[1]
            closings.setdefault("answer", rest)
            stops += subject.controls(rest)[:1]
    if subject.form.calls == "shown":
        call = subject.call(word)
        for turns in ([user, call], [user, call, subject.result(other)]):
            text = subject.render(turns, tools=True)
            if not text or word not in text:
                continue
            rest = text.rsplit(word, 1)[1].split(other)[0]
            closing = closings.get("answer", "")
            before = closing.split(stops[0])[0] if stops else ""
            ending = _call_ending(subject, rest, (*eos_names, *stops), before)
            # one that contains the call's id is looked for by the closing token instead
            shown = "" if CALL_ID in ending else ending
            subject.use(call_ending=subject.form.call_ending or shown)
            closings.setdefault("call", rest[len(ending) :])
            stops += subject.controls(rest[len(ending) :])[:1]
    return closings, tuple(dict.fromkeys(stops))


def _call_ending(subject: Subject, rest: str, ends: Sequence[str], before_stop: str) -> str:
    """What the model itself writes after a call's last argument."""
    controls = subject.controls(rest)
    known = [name for name in controls if name in ends]
    # else the first that is not the end of a bracket around the call
    stop = next(iter(known or [name for name in controls if not name.startswith("</")]), "")
    ending = rest[: rest.index(stop)] if stop else rest
    # text that closes every answer, before the token, is not the call's
    return ending.removesuffix(before_stop)
