"""What a client may ask of an open search, checked before anything starts, and its prompts.

An ask: after the message ``at`` (null: where the search began) the user says ``text``, and there
are ``n`` answers, drawn from one prompt; or, with ``says``, these texts are the answers, as if the
model had written them. ``extra`` is kept with the user's message, and says which search it is of:
``{"search": {"number": 1, …}}``. ``names``: of each answer its thought, ``s1.1.2``, kept as its
score label until it has a score.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

from radchat.daemon import options
from radchat.daemon.arguments import Options
from radchat.daemon.grammar_asked import GrammarAsked
from radchat.daemon.past import Past
from radchat.daemon.prepared import Prepared, new_prompt, prepare
from radchat.daemon.searches import MOST_GOING, Search
from radchat.daemon.tools import results_after
from radchat.daemon.turns import Plan
from radchat.engine.request import MAX_CHOICES, Ids, SamplingParams
from radchat.errors import InvalidInput, context_overflow
from radchat_sessions.messages import NewMessage
from radchat_sessions.scores import is_thought

if TYPE_CHECKING:
    from radchat.daemon.loaded import Loaded

MOST_EXTRA = 256 * 1024  # characters, as JSON


class _Said(TypedDict):
    at: str | None
    text: str


class Ask(_Said, total=False):
    extra: dict[str, Any]
    n: int
    max_tokens: int | None
    options: Options | None
    grammar: GrammarAsked | None
    names: list[str] | None
    says: list[str] | None


def num_answers(ask: Ask) -> int:
    says = ask.get("says")
    return ask.get("n", 1) if says is None else len(says)


def check(search: Search, asks: Sequence[Ask]) -> list[SamplingParams]:
    """Raises InvalidInput that names the ask and its field; else how each is sampled."""
    if not asks:
        raise InvalidInput("asks: want one or more", field="asks")
    num = sum(num_answers(ask) for ask in asks)
    if search.going + num > MOST_GOING:
        raise InvalidInput(
            f"asks: {num:,} answers are too many at a time (a search has at most {MOST_GOING:,}, "
            f"and {search.going:,} are on their way)",
            field="asks",
        )
    params = [_check(search, ask, f"asks[{index}]") for index, ask in enumerate(asks)]
    names = Counter(name for ask in asks for name in ask.get("names") or ())
    for name, num in names.items():
        if num > 1:
            raise InvalidInput(
                f"asks: {name} is the name of one thought, not of {num}", field="asks"
            )
    return params


def _check(search: Search, ask: Ask, name: str) -> SamplingParams:
    def require(holds: bool, field: str, want: str) -> None:
        if not holds:
            raise InvalidInput(f"{name}.{field}: {want}", field=f"{name}.{field}")

    says, names, num = ask.get("says"), ask.get("names"), num_answers(ask)
    require(bool(ask["text"].strip()), "text", "want words: the message is empty")
    field = "n" if says is None else "says"
    require(1 <= num <= MAX_CHOICES, field, f"want 1 to {MAX_CHOICES} answers (got {num})")
    if says is not None:
        require(all(says), "says", "an empty text is no answer")
        require(ask.get("n", 1) in (1, num), "n", f"these are {num} texts, of one answer each")
        require(ask.get("grammar") is None, "grammar", "texts that are given are held to none")
    if names is not None:
        require(len(names) == num, "names", f"want {num}, one an answer (got {len(names)})")
        own = f"s{search.number}."
        are_names = all(is_thought(each) and each.startswith(own) for each in names)
        require(are_names, "names", f"want names of thoughts of this search, {own}1 say")
    _check_extra(search, ask, require)
    given = {key: value for key, value in (ask.get("options") or {}).items() if value is not None}
    require("num_ctx" not in given, "options.num_ctx", "the context is the whole search's")
    if ask.get("max_tokens") is not None:
        given["max_tokens"] = ask["max_tokens"]
    try:
        return options.checked_params({**search.options, **given}, search.loaded)
    except InvalidInput as error:
        field = error.data.get("field", "options")
        raise InvalidInput(f"{name}: {error.message}", field=f"{name}.{field}") from error


def _check_extra(search: Search, ask: Ask, require: Any) -> None:
    if "extra" not in ask:
        return
    own = ask["extra"].get("search")
    number = own.get("number") if isinstance(own, Mapping) else None
    is_own = type(number) is int and number == search.number  # true is no number
    is_own = is_own and ask["extra"].keys() == {"search"}
    require(is_own, "extra", f'want {{"search": {{"number": {search.number}, …}}}}')
    require(len(str(own)) <= MOST_EXTRA, "extra", f"want at most {MOST_EXTRA:,} characters")


def extra_of(search: Search, ask: Ask) -> dict[str, Any]:
    return ask.get("extra") or {"search": {"number": search.number}}


# -- on the desk -----------------------------------------------------------------------------------


def require_free(search: Search, names: Sequence[str]) -> None:
    for name in names:
        if search.store.thoughts(search.session, name):
            raise InvalidInput(
                f"{name} is a thought of this session already, and what was asked with it has been "
                "pruned since, perhaps: begin another search",
                field="names",
            )


def prepared(
    search: Search,
    at: str | None,
    text: str,
    extra: Mapping[str, Any] | None = None,
    *,
    thinks: bool = False,
) -> Prepared:
    """The very ids that an ordinary turn there would have; but where they begin to reason for the
    model, and it is not to, that is ended at once.
    """
    at = search.at if at is None else at
    search.require(at)
    said = NewMessage.of("user", text)
    new = NewMessage(said.role, said.parts, extra or {})
    past, limit = search.past(at), search.limit
    first = search.first_words() if at is None else results_after(past.path, ()).messages
    plan = Plan(search.place, at, (*first, new), branch="", expected=None)
    made = prepare(search.store, plan, search.loaded, search.switches, limit, past)
    if made.opens_reasoning and not thinks:
        made = _unreasoned(search.loaded, made, past)
    if len(made.ids) >= limit:
        raise context_overflow(len(made.ids), limit)
    return made


def _unreasoned(loaded: Loaded, made: Prepared, past: Past) -> Prepared:
    how, tokenizer = made.how, loaded.tokenizer
    assert how is not None
    mark = loaded.template.facts.form.close_mark
    known = tokenizer.control.get(mark)
    more = tokenizer.encode_text(mark, how.ids) if known is None else array("I", [known])
    more = more + tokenizer.encode_text("\n\n", how.ids + more)
    how = replace(
        how,
        ids=how.ids + more,
        tail=how.tail + more,
        shares=(*how.shares[:-1], how.shares[-1] + len(more)),
        opens_reasoning=False,
    )
    prompt = new_prompt(past.path, how, tokenizer.hash)
    return replace(made, ids=how.ids, how=how, prompt=prompt, opens_reasoning=False)


def said_ids(search: Search, made: Prepared, text: str) -> Ids:
    """The ids of an answer that is given as text."""
    ids = search.loaded.tokenizer.encode_text(text, made.ids)
    if not ids:
        raise InvalidInput("this text has no tokens", field="says")
    num = len(made.ids) + len(ids)
    if num >= search.limit:
        raise context_overflow(num, search.limit)
    return ids
