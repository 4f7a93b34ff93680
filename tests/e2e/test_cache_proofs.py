"""What the cache's pictures say comes true: figures, ranks and causes, over random trees."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from radchat.errors import InvalidInput
from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Home, Shell
from tests.e2e.test_cache_commands import cached, on_path

WORDS = ("and then", "but why", "so it goes, on and on", "tell me of the sea, at some length")


class Grower:
    """A session whose tree grows at random: turns, forks from anywhere, retries, pins."""

    def __init__(self, terminal: Shell, seed: int) -> None:
        self.terminal, self.dice = terminal, random.Random(seed)
        self.session = str(terminal.quick("the root of it all, of some length")["session"])
        for _ in range(6):
            self.grow()

    def answers(self) -> list[str]:
        messages = self.terminal.tree()["messages"]
        return [m["id"] for m in messages if m["role"] == "assistant"]

    def ask(self, **args: Any) -> dict[str, Any]:
        options = {"temperature": 0, "max_tokens": self.dice.randrange(1, 30)}
        args = {"options": options, **args}
        asked = {"dtype": "fp32", "new_session": None, "session": self.session, **args}
        with self.terminal.stream(**asked) as events:
            return dict(list(events)[-1].data["branches"][0])

    def grow(self) -> None:
        place = self.dice.choice(self.answers())
        text = f"{self.dice.choice(WORDS)} {self.dice.randrange(3)}"
        if self.dice.random() < 0.2:
            self.ask(kind="retry", ref=place)
        else:
            self.ask(text=text, at=place)

    def pin(self) -> None:
        place = self.dice.choice(self.answers())
        if self.dice.random() < 0.5:
            for pin in self.terminal.call("cache.stats")["pins"]:
                self.terminal.call("cache.unpin", ref=f"{pin['session']}:{pin['message']}")
        with contextlib.suppress(InvalidInput):  # more than may be pinned
            self.terminal.call("cache.pin", ref=place)

    def evict(self) -> None:
        if self.dice.random() < 0.5:
            self.terminal.call("cache.evict", ref=self.dice.choice(self.answers()))
        else:
            self.terminal.call("cache.evict", tokens=self.dice.randrange(1, 300))


def test_a_hundred_random_probes_say_what_the_next_request_reuses(terminal: Shell) -> None:
    """The figures of the tree, and of `why`, against the usage of the same prompt asked again."""
    grower = Grower(terminal, 11)
    whole, pins = [], 0
    for number in range(100):
        if number % 4 == 1:
            grower.grow()
        if number % 3 == 2:
            grower.evict()
        if number % 9 == 4:
            grower.pin()
        tree = terminal.tree(show_cache=True)["messages"]
        place = grower.dice.choice([m["id"] for m in tree if m["role"] == "assistant"])
        path = on_path(tree, place)[:-1]
        sent, expected = sum(m["tokens"] for m in path), sum(map(cached, path))
        (now,) = [
            each["now"]
            for each in terminal.call("cache.why", ref=place)["answers"]
            if each["message"] == place
        ]
        answer = grower.ask(kind="retry", ref=place, options={"temperature": 0, "max_tokens": 1})
        usage, cache = answer["usage"], answer["cache"]
        assert usage["input_tokens"] == sent == sum(now.values())
        assert usage["cached_input_tokens"] == min(expected, sent - 1), (number, place)
        assert cache == now, (number, place)
        whole.append(expected == sent)
        pins += any(m["pinned"] for m in tree)
    assert {True, False} == set(whole)
    assert pins > 10
    terminal.home.assert_balanced()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_evicted_until_n_are_gone_they_are_ranks_1_to_n(terminal: Shell, seed: int) -> None:
    """Of nodes, by the real command line; with forks, pages in two nodes, and a pin among them."""
    grower = Grower(terminal, seed)
    grower.pin()
    for least in (1, 2, 5):
        grower.grow()
        entries = terminal.json("cache", "ls", "--lru")["entries"]
        ranked = [e for e in entries if e["rank"] is not None]
        assert [e["rank"] for e in ranked] == list(range(1, len(ranked) + 1))
        assert entries[: len(ranked)] == ranked, "what has no rank stands last"
        # without a rank: what is pinned, and what frees nothing while that is there
        assert all(e["pinned"] or not e["frees"] for e in entries if e["rank"] is None)
        assert any(e["pinned"] for e in entries)
        # what frees nothing goes along with what it stands on
        n = next(n for n in range(least, len(ranked) + 1) if ranked[n - 1]["frees"])
        gone = ranked[:n]
        freed = terminal.json("cache", "evict", "--tokens", str(sum(e["frees"] for e in gone)))
        assert freed["freed_tokens"] == sum(e["frees"] for e in gone)
        left = {e["node"] for e in terminal.json("cache", "ls")["entries"]}
        assert {e["node"] for e in entries} - left == {e["node"] for e in gone}
    terminal.home.assert_balanced()


def test_messages_go_in_the_order_of_their_ranks_and_pinned_ones_do_not(terminal: Shell) -> None:
    grower = Grower(terminal, 5)
    grower.pin()
    tree = terminal.json("tree", "--lru")["messages"]
    ranked = sorted((m for m in tree if m["lru_rank"]), key=lambda m: m["lru_rank"])
    kept = {m["id"]: cached(m) for m in tree if m["pinned"]}
    assert kept
    assert not {m["id"] for m in ranked} & kept.keys()
    order: list[str] = []
    left = {m["id"]: cached(m) for m in ranked}
    for _ in range(200):
        if not terminal.call("cache.evict", tokens=1)["freed_tokens"]:
            break
        now = {m["id"]: cached(m) for m in terminal.tree(show_cache=True)["messages"]}
        shrunk = [m for m in left if now[m] < left[m] and m not in order]
        order += sorted(shrunk, key=[r["id"] for r in ranked].index)
        left = {m: now[m] for m in left}
        assert {m: now[m] for m in kept} == kept
    assert order == [m["id"] for m in ranked]
    assert terminal.home.stats()["evictable_tokens"] == 0


def test_what_one_terminal_evicts_the_next_tree_of_another_shows(terminal: Shell) -> None:
    first = terminal.quick("said in the one, and looked at from the other")
    other = Shell(terminal.home, f"7{terminal.name}", EXACT)
    seen = other.json("tree", first["session"], "--show-cache")["messages"]
    assert all(cached(m) >= m["tokens"] - 1 for m in seen)
    terminal("cache", "evict", first["parent"])
    seen = other.json("tree", first["session"], "--show-cache")["messages"]
    assert sum(map(cached, seen)) == 0
    terminal.json("retry", *EXACT)
    seen = other.json("tree", first["session"], "--show-cache")["messages"]
    assert cached(seen[0]) == seen[0]["tokens"]


def test_no_kv_is_reused_across_weights_or_dtypes(terminal: Shell) -> None:
    """RC-07: the same ids, for other weights, and for the same in another dtype."""
    prompt = "the very same words " * 6

    def ask(model: str, dtype: str) -> int:
        answer = terminal.json("ask", prompt, "-m", model, "--dtype", dtype, "--max-tokens", "2")
        return int(answer["usage"]["cached_input_tokens"])

    kinds = [("tiny", "fp32"), ("other", "fp32"), ("tiny", "bf16")]
    assert [ask(*kind) for kind in kinds] == [0, 0, 0]
    assert all(ask(*kind) > 100 for kind in kinds)
    terminal("models", "stop")


@pytest.mark.slow
def test_fifty_idle_chats_and_their_pins_never_lock_the_pool(homes: Homes) -> None:
    """RL-01, on a pool that holds a few of them; RL-02: the budget is a ceiling."""
    home: Home = homes(RADCHAT_KV_DEVICE="1024tok")
    shell = Shell(home, "1", EXACT)
    chats = []
    for number in range(50):
        chats.append(shell.quick(f"chat {number} " * 8)["session"])
        if number % 25 == 0:
            shell.call("cache.pin")
    stats = home.stats()
    assert stats["total_tokens"] == 1024
    assert 0 < stats["pinned_tokens"] <= 256
    long = shell.ask("a long one of its own. " * 40)
    assert long["finish_reason"] == "length"
    again = shell.quick("and you?", chats[1])
    assert again["finish_reason"] == "length"
    assert again["cache"]["computed"] > 100
    home.assert_balanced()
