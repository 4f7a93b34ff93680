"""What the cache commands say is what the engine does: their figures come true."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Home, Shell, until

PAGE = 16  # tokens


def cached(message: dict[str, Any]) -> int:
    return int(sum(message["cached"].values()))


def on_path(messages: list[dict[str, Any]], at: str) -> list[dict[str, Any]]:
    by_id = {m["id"]: m for m in messages}
    path = []
    current: str | None = at
    while current is not None:
        path.append(by_id[current])
        current = by_id[current]["parent"]
    return path[::-1]


@pytest.fixture
def bushy(terminal: Shell) -> Shell:
    """A session of one root and several branches of two turns."""
    first = terminal.quick("the root of all of it, said at some length", max_tokens=20)
    for name in ("left", "right", "middle"):
        text = f"{name} is where we go now, for a while"
        terminal.json("fork", first["message"], text, "-n", name, *EXACT, "--max-tokens", "25")
        terminal.quick("then on, and on", first["session"], max_tokens=9)
    return terminal


def test_the_cached_figures_of_the_tree_are_what_the_next_request_reuses(bushy: Shell) -> None:
    """20 random probes: evict something, look, ask a prompt of the tree again, compare."""
    dice = random.Random(7)
    home = bushy.home
    whole = []
    for number in range(20):
        answers = [m["id"] for m in bushy.tree()["messages"] if m["role"] == "assistant"]
        if number % 3 == 1:
            bushy.call("cache.evict", ref=dice.choice(answers))
        if number % 5 == 4:
            bushy.call("cache.evict", tokens=dice.randrange(1, 200))
        tree = bushy.json("tree", "--show-cache")["messages"]
        before = home.stats()
        again = bushy.tree(show_cache=True, lru=True)["messages"]  # looking changes nothing
        assert [m["cached"] for m in again] == [m["cached"] for m in tree]
        assert [m["lru_rank"] for m in again] == [m["lru_rank"] for m in tree]
        assert home.stats() == before
        place = dice.choice(answers)
        path = on_path(tree, place)[:-1]  # a retry asks what was said before the answer
        expected = sum(map(cached, path))
        sent = sum(m["tokens"] for m in path)
        answer = bushy.json("retry", place, *EXACT, "--max-tokens", "1")
        assert answer["usage"]["input_tokens"] == sent
        assert answer["usage"]["cached_input_tokens"] == min(expected, sent - 1), (number, place)
        whole.append(expected == sent)
    assert {True, False} <= set(whole)  # of both kinds: all there, and not


def test_a_message_half_cached_shows_its_share(bushy: Shell) -> None:
    shown = bushy("tree", "--show-cache").out
    assert "%" in shown
    assert "lru 1 goes first" in shown
    bushy("cache", "clear", "-y")
    empty = bushy.tree(show_cache=True)
    assert all(cached(m) == 0 and m["lru_rank"] is None for m in empty["messages"])
    assert empty["tiers"]["device"]["tokens"] == 0


def test_the_ranks_are_the_order_in_which_kv_really_goes(bushy: Shell) -> None:
    """Evict page by page: messages lose their last token in the order of their ranks."""
    tree = bushy.json("tree", "--lru")["messages"]
    ranked = sorted((m for m in tree if m["lru_rank"]), key=lambda m: m["lru_rank"])
    assert [m["lru_rank"] for m in ranked] == list(range(1, len(ranked) + 1))
    order: list[str] = []
    left = {m["id"]: cached(m) for m in ranked}
    for _ in range(200):
        bushy.call("cache.evict", tokens=1)
        now = {m["id"]: cached(m) for m in bushy.call("tree", show_cache=True)["messages"]}
        shrunk = [m for m in left if now[m] < left[m] and m not in order]
        order += sorted(shrunk, key=[r["id"] for r in ranked].index)
        left = {m: now[m] for m in left}
        if not any(left.values()):
            break
    assert order == [m["id"] for m in ranked]


def test_evict_forgets_a_message_and_what_follows_and_no_more(bushy: Shell) -> None:
    tree = bushy.tree(show_cache=True)
    left = tree["branches"]["left"]
    path = [m["id"] for m in on_path(tree["messages"], left)]
    bushy.json("cache", "evict", path[2])
    after = {m["id"]: cached(m) for m in bushy.tree(show_cache=True)["messages"]}
    before = {m["id"]: cached(m) for m in tree["messages"]}
    opening = len("\nuser\n") + 2  # of a user's turn: the siblings say it too
    for message, kept in after.items():
        gone = opening if message == path[2] else 0
        assert kept == (gone if message in path[2:] else before[message])
    bushy.home.assert_balanced()


def test_clear_frees_everything_and_says_how_much(bushy: Shell) -> None:
    used = bushy.home.stats()["tiers"]["device"]["tokens"]
    assert bushy.json("cache", "clear", "-y")["freed_tokens"] == used > 0
    assert bushy.home.stats()["free_tokens"] == bushy.home.stats()["total_tokens"]
    assert "freed 0 tokens" in bushy("cache", "clear", "-y").err
    refused = bushy("cache", "clear", code=2)
    assert "-y" in refused.err


def test_clear_while_an_answer_runs_leaves_it_what_it_needs(bushy: Shell) -> None:
    home = bushy.home
    alone = bushy.quick("go on", max_tokens=400)
    with bushy.stream(
        text="go on", dtype="fp32", options={"temperature": 0, "max_tokens": 400}
    ) as running:
        until(running, "delta", 3)
        bushy.call("cache.clear")  # and no command, which may come when the answer has ended
        held = bushy.call("cache.stats")  # of the one that runs, and no more
        assert home.status()["running"] == 1
        assert held["locked_tokens"] > 0
        assert held["evictable_tokens"] == 0
        done = list(running)[-1].data["branches"][0]
    assert (done["finish_reason"], done["text"]) == ("length", alone["text"])
    home.assert_balanced()


def test_the_radix_tree_and_the_flat_list_agree_with_the_counters(bushy: Shell) -> None:
    stats = bushy.json("cache", "stats")
    nodes = bushy.json("cache", "tree")["nodes"]
    entries = bushy.json("cache", "ls", "--lru")["entries"]
    assert {e["node"] for e in entries} <= {n["id"] for n in nodes}
    assert all(n["locks"] == 0 for n in nodes)
    by_id = {n["id"]: n for n in nodes}
    for node in nodes:
        if node["parent"] in by_id:
            assert node["start"] == by_id[node["parent"]]["end"]
    used = stats["total_tokens"] - stats["free_tokens"]
    assert used == sum(e["frees"] for e in entries) == stats["evictable_tokens"]
    ranks = [e["rank"] for e in entries if e["rank"] is not None]
    assert ranks == sorted(ranks)
    sizes = [e["tokens"] for e in bushy.json("cache", "ls", "--by", "size")["entries"]]
    assert sizes == sorted(sizes, reverse=True)
    messages = {m["id"] for m in bushy.tree()["messages"]}
    served = {m for n in nodes for m in n["messages"]}
    assert messages <= served
    assert "root of all" in bushy("cache", "tree").out
    assert bushy("cache", "ls").out


def test_top_adds_up_and_a_branch_that_goes_is_seen_to_be_gone(bushy: Shell) -> None:
    found = bushy.json("cache", "top")
    device = found["tiers"]["device"]["tokens"]
    assert sum(row["held_tokens"] for row in found["rows"]) == device > 0
    assert {"left", "right", "middle"} < {row["branch"] for row in found["rows"]}

    def kv(branch: str) -> set[str]:
        lines = bushy("cache", "top").out.splitlines()
        head = next(line for line in lines if line.startswith("lru"))
        places = slice(head.index("kv"), head.index("lock"))
        return {line[places].strip() for line in lines if f" {branch} " in line}

    assert "G" in kv("left")
    bushy("cache", "clear", "-y")
    assert kv("left") == {"-"}


def test_removing_a_session_forgets_the_kv_only_it_used(bushy: Shell) -> None:
    own = f"fork-{bushy.name}"
    main = bushy.json("sessions", "show")["id"]
    text = "a road of its own " * 8
    fork = bushy.json("fork", "main", text, "--new-session", own, *EXACT)
    own_tokens = fork["usage"]["input_tokens"] - fork["usage"]["cached_input_tokens"]
    used = bushy.home.stats()["tiers"]["device"]["tokens"]
    bushy("sessions", "rm", own, "-y")
    assert used - bushy.home.stats()["tiers"]["device"]["tokens"] >= own_tokens - 2 * PAGE > 50
    other = Shell(bushy.home, bushy.name, EXACT)
    kept = other.tree(show_cache=True, session=main)["messages"]
    assert sum(map(cached, kept)) > 150
    bushy.home.assert_balanced()


def test_the_oldest_chat_goes_first_when_the_pool_is_full(homes: Homes) -> None:
    home: Home = homes(RADCHAT_KV_DEVICE="480tok", RADCHAT_PERSIST="off")
    old, new, third = (Shell(home, name, EXACT) for name in ("1", "2", "3"))
    old.ask("the old chat " * 9)
    new.ask("the new chat " * 9)
    third.ask("and another, that needs room " * 6)
    assert all(cached(m) == 0 for m in old.tree(show_cache=True)["messages"][1:])
    assert sum(map(cached, new.tree(show_cache=True)["messages"])) > 100
    assert sum(map(cached, third.tree(show_cache=True)["messages"])) > 150
