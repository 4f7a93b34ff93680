"""PS-03, PS-05: whatever becomes of the files of KV, it costs time and never a wrong word."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import kv_disk
from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Home, Shell
from tests.e2e.kv_disk import BLOCK, Question, files, header
from tests.e2e.test_disk_full import disk_full
from tests.e2e.tiny_models import converted

DAMAGE: dict[str, Callable[[Path], None]] = {
    "header": kv_disk.flip_header,
    "position": kv_disk.flip_position,
    "ids": kv_disk.flip_ids,
    "data": kv_disk.flip_data,
    "truncated": kv_disk.truncate,
    "empty": kv_disk.empty,
    "longer": kv_disk.lengthen,
    "deleted": kv_disk.delete,
    "folder": kv_disk.folder_instead,
    "locked": kv_disk.lock_away,
}
IS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose KV no machine computes sooner than it reads it: much to multiply, as few
    bytes to keep as any.
    """
    models = tmp_path_factory.mktemp("damage") / "models"
    return converted(models, "tiny", intermediate_size=8192)


def bound_by_modes() -> None:
    """In a child: root too is refused what the modes of files and folders forbid."""
    if IS_ROOT:
        drop, override, search = 24, 1, 2  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (override, search):
            assert libc.prctl(drop, capability, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())


def start(shell: Shell) -> None:
    """A daemon whom the modes of files bind."""
    process = shell.start("daemon", "start", preexec_fn=bound_by_modes)
    assert process.wait() == 0


def verify(shell: Shell) -> dict[str, Any]:
    with shell.home.client().stream("cache.verify") as events:
        return dict(list(events)[-1].data)


def new_files(home: Home, before: list[Path]) -> dict[int, Path]:
    """Blocks that were not there before, by position."""
    return {int(header(f)["start"]): f for f in files(home) if f not in before}


def test_a_damaged_block_in_the_middle_costs_itself_across_a_restart(
    shell: Shell, home: Home, other: Path
) -> None:
    shutil.copytree(other, home.places.models / other.name)
    start(shell)
    talks: dict[str, Question] = {}
    blocks: dict[str, dict[int, Path]] = {}
    kinds = [*DAMAGE, "swapped", "other model", "whole"]
    for number, kind in enumerate(kinds):
        before = files(home)
        talks[kind] = question = Question(shell, number)
        question.ask()
        done = question.save()
        assert done["left"] is None
        blocks[kind] = new_files(home, before)
        assert sorted(blocks[kind]) == [0, BLOCK, 2 * BLOCK]
    before = files(home)
    foreign = shell.ask(kv_disk.story(kinds.index("other model")), "-m", "other")
    shell.run("cache.save", session=foreign["session"])
    theirs = new_files(home, before)
    home.stop()
    for kind, damage in DAMAGE.items():
        damage(blocks[kind][BLOCK])
    kv_disk.swap(blocks["swapped"][BLOCK], blocks["swapped"][0])
    kv_disk.replace_by(theirs[BLOCK])(blocks["other model"][BLOCK])
    start(shell)
    for kind, question in talks.items():
        cache = question.ask()  # holds the answer to the ids of before
        lost = 2 * BLOCK if kind == "swapped" else BLOCK
        if kind == "whole":
            assert cache["disk"] >= question.path - 1
            assert question.done["why"] is None
            continue
        # a hole costs itself: what follows it is restored
        assert question.path - lost - 1 <= cache["disk"] <= sum(cache.values()) - lost, kind
        assert "damaged" in question.done["why"], (kind, question.done["why"])
    home.assert_balanced()
    for question in talks.values():  # and is put right
        question.save()
    question = talks["data"]
    question.forget()
    assert question.ask()["disk"] >= question.path - 1
    verified = verify(shell)
    assert verified["ok"], verified
    assert home.pid


def test_blocks_that_are_damaged_under_a_running_daemon_cost_no_answer(
    shell: Shell, home: Home
) -> None:
    """PS-05, and where `verify` finds it first."""
    start(shell)
    question = Question(shell)
    question.ask()
    pid = home.pid
    for kind, damage in DAMAGE.items():
        assert question.save()["left"] is None
        middle = next(f for f in files(home) if header(f)["start"] == str(BLOCK))
        damage(middle)
        question.forget()
        cache = question.ask()
        assert BLOCK <= cache["disk"] < question.path, kind
    question.save()
    kv_disk.flip_data(files(home)[0])
    verified = verify(shell)
    assert not verified["ok"]
    assert len(verified["bad"]) == 1
    assert verify(shell)["ok"]
    assert home.pid == pid
    home.assert_balanced()


def test_no_kv_on_disk_is_another_weights_or_dtypes(shell: Shell, home: Home, other: Path) -> None:
    """RC-07, PS-03 across a restart: the same words, read by each alone"""
    shutil.copytree(other, home.places.models / other.name)
    prompt = kv_disk.story(0)
    kinds = [("tiny", "fp32"), ("other", "fp32"), ("tiny", "bf16")]

    def ask(model: str, dtype: str) -> int:
        args = ("-m", model, "--dtype", dtype, "--max-tokens", "2")
        return int(shell.json("ask", prompt, *args)["cache"]["disk"])

    assert [ask(*kind) for kind in kinds] == [0, 0, 0]
    home.stop()
    assert len({file.parents[1] for file in files(home)}) == 3
    assert all(ask(*kind) > 600 for kind in kinds)


# -- places that cannot be written to --------------------------------------------------------------


def test_a_kv_folder_that_may_not_be_written_costs_a_line_and_no_turn(
    shell: Shell, home: Home
) -> None:
    start(shell)
    question = Question(shell)
    question.ask()
    home.stop()
    kv = home.places.kv
    modes = {path: path.stat().st_mode for path in (kv, *kv.rglob("*"))}
    try:
        for path in modes:
            path.chmod(0o500 if path.is_dir() else 0o400)
        start(shell)
        question.ask()
        assert home.stats()["persist_off"]
        assert shell.say("and on", "-r", question.session)["finish_reason"] == "length"
        home.assert_balanced()
        home.stop()
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert question.ask()["disk"] >= question.path - 1


def test_a_kv_folder_removed_under_a_running_daemon_is_made_again(shell: Shell, home: Home) -> None:
    question = Question(shell)
    question.save()
    question.ask()
    aside = home.places.kv.rename(home.root / "aside")  # at once: a writer is not in the way
    shutil.rmtree(aside, ignore_errors=True)
    question.forget()
    cold = question.ask()  # what was still to be written of it may be there again, and no more
    assert cold["device"] == 0
    assert cold["computed"] > 0
    shell.run("cache.save", session=question.session)
    home.assert_balanced()
    home.stop()
    assert question.ask()["disk"] >= question.path - 1


def test_two_homes_on_one_cache_folder_have_one_writer(homes: Homes) -> None:
    one = homes()
    two = homes({}, RADCHAT_CACHE_DIR=str(one.places.cache), RADCHAT_MODEL="tiny")
    first, second = (Question(Shell(home, "1", EXACT)) for home in (one, two))
    assert first.expected == second.expected
    first.ask()
    second.ask()
    assert one.stats()["persist_off"] is None
    assert str(one.places.kv) in two.stats()["persist_off"]
    assert first.save()["left"] is None
    second.forget()
    assert second.ask()["disk"] == 0
    one.stop()
    two.stop()
    assert second.ask()["disk"] >= second.path - 1  # written by the other
    assert two.stats()["persist_off"] is None


def test_a_full_disk_costs_kv_and_no_turn(shell: Shell, home: Home) -> None:
    """PS-02: KV goes first, the talk last."""
    question = Question(shell)
    question.ask()
    with disk_full(home.pid):
        assert question.save()["left"]
        assert home.stats()["disk_trouble"]
        assert question.held()["device"] >= question.path - 1
    assert files(home) == []
    assert question.save()["left"] is None  # at once: somebody has asked
    assert home.stats()["disk_trouble"] is None
    shell.call("cache.clear", device=False, disk=True)
    assert question.ask()["device"] >= question.path - 1
    with disk_full(home.pid):
        shell("models", "stop")  # what it could not write is lost, and that is all
    assert question.ask()["disk"] == 0
    home.assert_balanced()
    home.stop()
    assert question.ask()["disk"] >= question.path - 1  # this time there was room
    assert verify(shell)["ok"]
    assert list((home.places.kv / "tmp").iterdir()) == []
