"""KV that outlives its daemon: the next one goes on from the disk, and no answer is another's.

All exact, on a tiny model whose tokens are letters; ``Question`` holds every answer to the same ids
and its figures to what the model counted.
"""

from __future__ import annotations

import shutil
from array import array

from radchat_sessions.kv_store import KVStore
from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Home, Shell
from tests.e2e.kv_disk import BLOCK, Question, files
from tests.waiting import wait_until

LAYERS, KV_HEADS, HEAD_DIM = 2, 2, 16  # of the tiny model


def on_disk(home: Home) -> int:
    return int(home.stats()["tiers"]["disk"]["tokens"])


def test_restored_is_warm_is_cold_and_the_tree_shows_which(shell: Shell, home: Home) -> None:
    """PS-04, under two hash seeds"""
    shell.env["PYTHONHASHSEED"] = "1"
    question = Question(shell)
    path = question.path
    warm = question.ask()
    assert warm["device"] >= path - 1
    assert warm["disk"] == 0
    home.stop()
    shell.env["PYTHONHASHSEED"] = "2"
    held = question.held()  # by a daemon that has not loaded a model
    assert (held["device"], held["disk"]) == (0, path)
    assert home.status()["model"] is None
    restored = question.ask()
    assert "restore" in question.notices
    assert restored["disk"] >= path - 1
    assert restored["device"] == 0
    assert restored["computed"] == warm["computed"] + path - 1 - restored["disk"] + (
        warm["device"] - (path - 1)
    )
    assert question.done["why"] is None
    held = question.held()
    assert held["device"] >= path - 1  # D has become G
    assert held["device"] + held["disk"] == path
    again = question.ask()
    assert again["disk"] == 0
    assert again["device"] >= restored["disk"]
    shell("models", "stop")
    assert question.held() == {"device": 0, "host": 0, "disk": path}
    question.forget(disk=True)
    assert question.held() == {"device": 0, "host": 0, "disk": 0}
    assert files(home) == []
    cold = question.ask()
    assert (cold["device"], cold["disk"]) == (0, 0)
    home.assert_balanced()


def test_what_was_restored_is_what_attention_reads(shell: Shell, home: Home) -> None:
    """Other values under the right ids and checksums: other words, so none was computed again."""
    question = Question(shell)
    question.ask()
    said = question.expected
    home.stop()
    raw = array("I", home.ids(question.at)).tobytes()
    store = KVStore.open(home.places.kv, budget=1 << 30, hourly=None)
    (fingerprint,) = store.stats().by_fingerprint
    folder = store.of(fingerprint)
    blocks = folder.lookup(raw, 0)
    assert blocks[-1].end == question.path
    shape = (LAYERS, 2, BLOCK, KV_HEADS, HEAD_DIM)
    written = folder.read(blocks[0])
    assert written is not None
    folder.delete(blocks[0])
    assert folder.write(raw[: 4 * BLOCK], 0, bytes(len(written)), shape=shape, dtype="fp32")
    store.close()
    question.expected = None
    restored = question.ask()
    assert restored["disk"] >= BLOCK
    assert question.expected != said


def test_kv_is_on_disk_soon_after_an_answer_and_a_kill_leaves_it(shell: Shell, home: Home) -> None:
    question = Question(shell)
    question.ask()
    wait_until(lambda: on_disk(home) >= question.path)
    home.kill()
    restored = question.ask()
    assert restored["disk"] >= question.path - 1
    home.assert_balanced()


def test_without_its_folder_all_is_computed_again_and_the_answer_says_why(
    shell: Shell, home: Home
) -> None:
    question = Question(shell)
    question.ask()
    home.stop()
    assert files(home)
    shutil.rmtree(home.places.kv)
    cold = question.ask()
    assert (cold["device"], cold["disk"]) == (0, 0)
    assert "recompute" in question.notices
    assert "nothing of it is on disk" in question.done["why"]
    assert "new" in question.done["why"]


def test_with_persist_off_nothing_is_written(homes: Homes) -> None:
    """`persist = off`"""
    off = homes(RADCHAT_PERSIST="off")
    shell = Shell(off, "1", EXACT)
    question = Question(shell)
    question.ask()
    assert off.stats()["persist"] == "off"
    off.stop()
    assert files(off) == []
    cold = question.ask()
    assert (cold["device"], cold["disk"]) == (0, 0)
    assert "persist" in question.done["why"]
    off.stop()
    assert files(off) == []


def test_nothing_off_the_record_is_ever_written(homes: Homes) -> None:
    home = homes(RADCHAT_PERSIST="always", RADCHAT_KV_DEVICE="1024tok")
    shell = Shell(home, "1", EXACT)
    secret = "quincemarmalade " * 40
    for number in range(3):  # more than the pool holds: it is evicted, too
        shell.ask(f"{number} {secret}", "--ephemeral")
    shell("models", "stop")
    assert files(home) == []
    home.stop()
    assert files(home) == []


def test_sixteen_votes_whose_losers_have_no_name_are_not_sixteen_tails(
    shell: Shell, home: Home
) -> None:
    question = Question(shell)
    question.save()
    before = files(home)
    options = ("--exact", "--temp", "1", "--seed", "7", "--max-tokens", "60")
    votes = shell.json("retry", question.at, "-N", "16", *options)["branches"]
    losers = [vote["branch"] for vote in votes if vote["branch"] != "main"]
    assert len(losers) == 15
    for loser in losers:
        shell.call("branch.delete", name=loser)
    home.stop()
    assert len(files(home)) <= len(before) + 1


def test_a_growing_chat_has_one_tail(shell: Shell, home: Home) -> None:
    first = shell.quick("it begins here. " * 10, max_tokens=20)
    session, message = first["session"], first["message"]
    for number in range(9):
        message = shell.quick(f"{number}: and so on", session, max_tokens=20)["message"]
        shell.run("cache.save", session=session)
    path = len(home.ids(message))
    assert path > 2 * BLOCK
    home.stop()
    assert len(files(home)) == -(-path // BLOCK)


def test_a_fork_shares_its_blocks_and_what_is_removed_takes_only_its_own(
    shell: Shell, home: Home
) -> None:
    other = Question(shell, 0)
    other.save()
    theirs = set(files(home))
    question = Question(shell, 1)
    fork = shell.json("fork", question.at, "a way of its own " * 30, "-n", "side", *EXACT)
    side = fork["branches"][0]["message"]
    for ref in (question.at, side):
        shell.run("cache.save", session=question.session, ref=ref)
    mine = set(files(home)) - theirs
    assert len(mine) <= -(-len(home.ids(side)) // BLOCK) + 1
    shell("sessions", "rm", question.session, "-y")
    assert set(files(home)) == theirs
    other.forget()
    assert other.ask()["disk"] >= other.path // BLOCK * BLOCK


def test_a_removed_sessions_kv_is_gone_but_what_another_says_too(shell: Shell, home: Home) -> None:
    one, two = Question(shell), Question(shell)  # the same words
    one.save()
    two.save()
    shared = files(home)
    shell("sessions", "rm", one.session, "-y")
    assert files(home) == shared
    two.forget()
    assert two.ask()["disk"] >= two.path // BLOCK * BLOCK
    shell("sessions", "rm", two.session, "-y")
    assert files(home) == []


def test_what_a_kill_left_of_a_removed_session_goes_with_it(shell: Shell, home: Home) -> None:
    """Files without a row, and nobody has looked for them yet."""
    question = Question(shell)
    home.stop()
    left = {file: file.read_bytes() for file in files(home)}
    store = KVStore.open(home.places.kv, budget=1 << 30, hourly=None)
    store.clear()
    store.close()
    for file, data in left.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    shell("daemon", "start")
    shell("sessions", "rm", question.session, "-y")
    assert files(home) == []
