"""The radix tree by itself: what match, lock, split and insert do to nodes and pages."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest

from radchat.engine.eviction import LeastRecentlyUsed
from radchat.engine.node import Node, prefix_of
from radchat.engine.pages import PageAllocator
from radchat.engine.radix import RadixTree
from radchat.engine.raw_ids import common_len
from radchat.engine.recount import check_tree

P = 4


def raw(*tokens: int) -> bytes:
    return array("I", tokens).tobytes()


class Tree(RadixTree):
    """A tree whose tests are the requests."""

    def __init__(self) -> None:
        self.pages = PageAllocator(64)
        super().__init__(P, self.pages, LeastRecentlyUsed(), lambda: 7.0)

    def store(self, *tokens: int) -> Node:
        """What a request does that computes all of it into pages of its own, and ends."""
        root = self.root("")
        table = self.pages.take(-(-len(tokens) // P))
        present, node = self.insert(root, raw(*tokens), table)
        stored = slice(present // P, None) if present < len(tokens) else slice(len(table), None)
        kept = table[stored]
        self.pages.release([page for page in table if page not in kept])
        self.unlock(root, used=node)
        return node

    def recount(self, *locked: Node) -> None:
        check_tree(self, Counter(locked))


def spans(tree: RadixTree) -> list[tuple[int, int]]:
    return [(node.start, node.end) for node in tree.nodes()]


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 64, 1000])
def test_the_first_difference_is_found_wherever_it_is(length: int) -> None:
    tokens = list(range(1000, 1000 + length))
    for place in {0, 1, length // 2, length - 1} & set(range(length)):
        for bit in (1, 256, 1 << 24, 1 << 31):  # in each of an id's four bytes
            other = tokens.copy()
            other[place] ^= bit
            text = raw(5, 6, *other)
            assert common_len(raw(*tokens), text, 8, len(text)) == place


@pytest.mark.parametrize("stop", [1, 40, 99, 100])
def test_equal_runs_have_the_shorter_length_in_common(stop: int) -> None:
    tokens = raw(*range(100))
    assert common_len(tokens, tokens, 0, 4 * stop) == stop
    assert common_len(tokens[: 4 * stop], tokens, 0, 400) == stop


def test_an_id_is_not_matched_across_the_border_of_two_ids() -> None:
    tree = Tree()
    tree.store(0x01000000, 2)
    shifted = raw(0x01000000, 2)[1:] + b"\0"  # the same bytes, one place on
    assert tree.match(tree.root(""), shifted, 2)[1] == 0


def test_match_stops_at_its_limit() -> None:
    tree = Tree()
    node = tree.store(1, 2, 3, 4, 5, 6)
    assert tree.match(tree.root(""), raw(1, 2, 3, 4, 5, 6), 5) == (node, 5)
    assert tree.match(tree.root(""), raw(1, 2, 3, 4, 5, 6), 0) == (tree.root(""), 0)


def test_match_changes_and_stamps_nothing() -> None:
    tree = Tree()
    node = tree.store(1, 2, 3, 4, 5, 6)
    tree.store(9)
    before = (node.tick, node.last_used, node.hits, spans(tree), list(tree.order))
    assert tree.match(tree.root(""), raw(1, 2, 3, 7), 4) == (node, 3)
    assert (node.tick, node.last_used, node.hits, spans(tree), list(tree.order)) == before


def test_a_lock_splits_where_the_match_ends() -> None:
    tree = Tree()
    lower = tree.store(*range(10))
    upper = tree.lock(lower, 6, above=tree.root(""))
    assert ((upper.start, upper.end), (lower.start, lower.end)) == ((0, 6), (6, 10))
    assert (upper.lock_ref, lower.lock_ref) == (1, 0)
    assert lower.parent is upper
    tree.recount(upper)


def test_a_cut_inside_a_page_leaves_it_to_both_halves() -> None:
    tree = Tree()
    lower = tree.store(*range(10))
    pages = lower.pages[:]
    upper = tree.lock(lower, 6, above=tree.root(""))
    assert (upper.pages, lower.pages) == (pages[:2], pages[1:])
    assert (upper.adds, lower.adds) == (2, 1)
    assert tree.table(lower) == pages


def test_a_cut_between_pages_shares_none() -> None:
    tree = Tree()
    lower = tree.store(*range(10))
    pages = lower.pages[:]
    upper = tree.lock(lower, 8, above=tree.root(""))
    assert (upper.pages, lower.pages) == (pages[:2], pages[2:])
    assert (upper.adds, lower.adds) == (2, 1)
    tree.recount(upper)


def test_a_split_keeps_what_the_counters_said() -> None:
    tree = Tree()
    node = tree.store(*range(10))
    assert (tree.evictable, tree.locked) == (3, 0)
    upper = tree.lock(node, 6, above=tree.root(""))
    assert (tree.evictable, tree.locked) == (1, 2)
    tree.unlock(upper, used=upper)
    assert (tree.evictable, tree.locked) == (3, 0)


def test_a_leaf_that_is_continued_is_lengthened() -> None:
    tree = Tree()
    node = tree.store(1, 2, 3)
    assert tree.store(1, 2, 3, 4, 5) is node
    assert spans(tree) == [(0, 5)]
    tree.recount()


def test_a_locked_leaf_gets_a_child_instead() -> None:
    tree = Tree()
    node = tree.lock(tree.store(1, 2, 3), 3, above=tree.root(""))
    child = tree.store(1, 2, 3, 4, 5)
    assert child.parent is node
    assert node.end == 3
    tree.recount(node)


def test_a_branch_splits_the_node_it_leaves() -> None:
    tree = Tree()
    tree.store(1, 2, 3, 4, 5, 6)
    tree.store(1, 2, 9, 9)
    assert spans(tree) == [(0, 2), (2, 6), (2, 4)]
    tree.recount()


def test_the_lowest_node_that_covers_an_index_gives_its_page() -> None:
    tree = Tree()
    tree.store(1, 2, 3, 4, 5, 6)
    own = tree.store(1, 2, 9, 9)  # its page has the KV of 1, 2 too
    assert tree.table(own) == own.pages
    assert tree.table(own.parent) != own.pages


def test_a_copy_may_stand_between_two_nodes_with_one_page() -> None:
    tree = Tree()
    root = tree.root("")
    upper = tree.lock(tree.store(1), 1, above=root)
    (page,) = upper.pages
    middle = tree.lock(tree.store(1, 2), 2, above=root)  # another request, with a copy
    assert middle.pages != [page]
    tree.pages.add_owner(page)  # the writer of the first page inserts below the copy
    present, lowest = tree.insert(upper, raw(2, 3), [page])
    tree.lock(lowest, 3, above=upper)
    assert (present, lowest.parent, lowest.pages) == (2, middle, [page])
    assert lowest.adds == 0
    tree.recount(middle, lowest)


def test_inserting_what_is_there_stores_nothing() -> None:
    tree = Tree()
    tree.store(1, 2, 3, 4, 5, 6)
    free = tree.pages.free
    tree.store(1, 2, 3, 4)
    assert tree.pages.free == free
    tree.recount()


def test_unlocking_more_often_than_locking_is_caught() -> None:
    tree = Tree()
    node = tree.store(1, 2, 3)
    with pytest.raises(AssertionError, match="unlocked more often"):
        tree.unlock(node, used=node)


def test_a_child_stands_in_line_before_its_parent() -> None:
    tree = Tree()
    tree.store(1, 2, 3, 4, 5, 6)
    tree.store(1, 2, 9, 9)
    tree.store(1, 2)
    assert [(node.start, node.end) for node in tree.order] == [(2, 6), (2, 4), (0, 2)]


def test_a_parent_holds_all_ids_of_its_path() -> None:
    tree = Tree()
    tree.store(1, 2, 3, 4, 5, 6)
    assert prefix_of(tree.store(1, 2, 9, 9)) == raw(1, 2, 9, 9)


def test_check_names_what_broke() -> None:
    tree = Tree()
    node = tree.store(1, 2, 3)
    with pytest.raises(AssertionError, match="lock_ref"):
        tree.recount(node)
    tree.evictable += 1
    with pytest.raises(AssertionError, match="evictable pages"):
        tree.recount()
