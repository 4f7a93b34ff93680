"""`/cache`, `/why` and `/pin`: the cache, seen from where this chat stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radchat.chat import cache_view, commands, top, why_view
from radchat.chat.files import load
from radchat.chat.view import end_of
from radchat.config import FOREVER, parse_duration
from radchat.errors import InvalidInput, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from radchat.chat.repl import Chat

USAGE = (
    "/cache [stats | ls [size] | tree | top | why [REF] | evict REF | evict --tokens N | "
    "evict [REF] --tier disk | clear [disk|all] | save [REF] | load [REF] | warm [REF|@FILE] | "
    "verify | pin [REF] [FOR] | unpin [REF]]"
)
YES = frozenset(("-y", "--yes"))


def cache(chat: Chat, rest: str) -> None:
    word, _, more = rest.partition(" ")
    action = _ACTIONS.get(word or "stats")
    if action is None:
        raise UsageError(f"/cache {word}: want {USAGE}")
    action(chat, more.strip())


def why(chat: Chat, rest: str) -> None:
    result = chat.call("cache.why", ref=commands.ref(rest) if rest else "HEAD")
    _print(chat, why_view.why(result, chat.host.columns))


def pin(chat: Chat, rest: str) -> None:
    """`/pin`, `/pin 4`, `/pin 4 90m`; as in a shell, `--for 90m`"""
    before, is_named, after = rest.partition("--for")
    ref, _, hold = (before.strip(), "", after.lstrip("= ")) if is_named else rest.partition(" ")
    args: dict[str, float] = {}
    if hold.strip():
        try:
            args["hold_s"] = parse_duration(hold)
        except ValueError as error:
            raise UsageError(f"/pin [REF] [FOR]: {error}") from error
        if args["hold_s"] == FOREVER:
            raise UsageError("/pin [REF] [FOR]: a pin ends; say for how long, like 24h")
    result = chat.call("cache.pin", ref=commands.ref(ref) if ref else "HEAD", **args)
    chat.host.note(cache_view.pinned(result))


def _stats(chat: Chat, rest: str) -> None:
    _nothing(rest)
    _print(chat, cache_view.stats(chat.call("cache.stats"), chat.host.columns))


def _ls(chat: Chat, rest: str) -> None:
    by = rest.removeprefix("--by").strip(" -=") or "lru"
    if by not in ("lru", "size"):
        raise UsageError(f"/cache ls {rest}: want lru or size")
    _print(chat, cache_view.entries(chat.call("cache.ls", by=by), chat.host.columns))


def _tree(chat: Chat, rest: str) -> None:
    _nothing(rest)
    _print(chat, cache_view.nodes(chat.call("cache.tree"), chat.host.columns))


def _top(chat: Chat, rest: str) -> None:
    once = rest.lstrip("-") == "once"
    _nothing("" if once else rest)
    top.show(chat.host, lambda: chat.call("cache.top"), once=once)


def _evict(chat: Chat, rest: str) -> None:
    words, is_sure = _sure(rest)
    tier = _value(words, "--tier")
    tokens = _value(words, "--tokens")
    if tier is None and words[1:] == ["disk"]:
        tier = words.pop()
    given: dict[str, Any] = {} if tier is None else {"tier": tier}
    if tokens is not None:
        given["tokens"] = int(tokens) if tokens.isdecimal() else -1
    if words:
        given["ref"] = commands.ref(words[0])
    is_known = tier in (None, "device", "disk") and given.get("tokens", 0) >= 0
    if not given or not is_known or len(words) > 1 or (tokens is not None and len(given) > 1):
        raise UsageError("/cache evict wants a REF, --tier device|disk or both, or --tokens N")
    if given == {"tier": "disk"} and not is_sure:
        _ask(chat, disk=True)
    if words and tier == "device":
        del given["tier"]  # what a REF alone means
    chat.host.note(cache_view.evicted(chat.call("cache.evict", **given), tier))


def _clear(chat: Chat, rest: str) -> None:
    words, is_sure = _sure(rest)
    which = " ".join(words).lstrip("-")
    if which not in ("", "disk", "all"):
        raise UsageError(f"/cache clear {rest}: want disk, all, or nothing more")
    tiers = {"device": which != "disk", "disk": which != ""}
    if which and not is_sure:
        _ask(chat, **tiers)
    result = chat.ready().call("cache.clear", pinned=which == "all", **tiers)
    chat.host.note(cache_view.cleared(result, **tiers))


def _save(chat: Chat, rest: str) -> None:
    result = _stream(chat, "cache.save", ref=_ref(rest))
    chat.host.note(cache_view.saved(result))


def _load(chat: Chat, rest: str) -> None:
    result = _stream(chat, "cache.load", ref=_ref(rest))
    chat.host.note(cache_view.loaded(result))


def _warm(chat: Chat, rest: str) -> None:
    given = {"files": [load(rest[1:])]} if rest.startswith("@") else {"ref": _ref(rest)}
    result = _stream(chat, "cache.warm", "model", "dtype", **given)
    chat.host.note(cache_view.loaded(result))


def _verify(chat: Chat, rest: str) -> None:
    _nothing(rest)
    result = end_of(chat.ready().stream("cache.verify"), chat.host.note, chat.host.status)
    _print(chat, cache_view.bad_blocks(result))
    chat.host.note(cache_view.verified(result))


def _sure(rest: str) -> tuple[list[str], bool]:
    """The words, and whether -y is among them."""
    words = rest.split()
    return [word for word in words if word not in YES], not YES.isdisjoint(words)


def _value(words: list[str], name: str) -> str | None:
    """Take an option and its value out of the words: `--tier disk`, `--tier=disk`."""
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == name:
            end = at + (1 if equals else 2)
            value = value if equals else " ".join(words[at + 1 : end])
            del words[at:end]
            return value
    return None


def _ask(chat: Chat, **tiers: bool) -> None:
    """Before more is lost than the time to compute what this chat reads: what others wrote, too."""
    if chat.prompt.choose(f"{cache_view.sure(**tiers)} [y/N] ").lower() not in ("y", "yes"):
        raise InvalidInput("not done")


def _stream(chat: Chat, method: str, *keys: str, **args: Any) -> dict[str, Any]:
    """Ctrl+C ends it, and the chat says so."""
    return end_of(chat.stream(method, *keys, **args), chat.host.note, chat.host.status)


def _ref(rest: str) -> str:
    return commands.ref(rest) if rest else "HEAD"


def _unpin(chat: Chat, rest: str) -> None:
    result = chat.call("cache.unpin", ref=commands.ref(rest) if rest else "HEAD")
    chat.host.note(f"{result['message'][:4]} is not pinned any more")


def _nothing(rest: str) -> None:
    if rest:
        raise UsageError(f"nothing is to follow there ({rest}): {USAGE}")


def _print(chat: Chat, lines: list[str]) -> None:
    for line in lines:
        chat.host.out(line)


_ACTIONS: dict[str, Callable[[Chat, str], None]] = {
    "stats": _stats,
    "ls": _ls,
    "tree": _tree,
    "top": _top,
    "why": why,
    "pin": pin,
    "evict": _evict,
    "clear": _clear,
    "save": _save,
    "load": _load,
    "warm": _warm,
    "verify": _verify,
    "unpin": _unpin,
}
