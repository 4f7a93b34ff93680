"""What other programs have: found, listed, converted once, noticed when it changes or goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from radchat.errors import ModelBroken, NotFound
from radchat.models import stores
from radchat.models.pull import announced, ensure, pull
from radchat.models.registry import list_models, remove, resolve
from radchat.models.sources import classify
from radchat.paths import Places
from tests.models.others import (
    add_blob,
    hub_gguf,
    hub_model,
    hub_snapshot,
    ollama_model,
    tiny_gguf,
)
from tests.models.test_models_command import document, radchat_models
from tests.models.test_pull import HERE, places  # noqa: F401 - a fixture

PARAMS = {
    "temperature": 0.6,
    "top_k": 20,
    "stop": ["<|im_end|>", "User:"],
    "repeat_penalty": 1.1,
    "num_predict": 64,
    "mirostat": 2,
    "num_ctx": 4096,
}


@pytest.fixture
def home(places: Places) -> Path:  # noqa: F811 - the environment is set by it
    return Path(os.environ["HOME"])


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path / "tiny-Q8_0.gguf")


def _refs(**env: str) -> list[str]:
    return [found.ref for found in stores.find_all({**os.environ, **env}, Path("/nowhere"))]


# -- finding ---------------------------------------------------------------------------------------


def test_every_store_is_looked_into_where_its_program_keeps_it(
    home: Path, gguf: Path, tmp_path: Path
) -> None:
    ollama = home / ".ollama" / "models"
    ollama_model(ollama, "library/qwen3:0.6b", gguf)
    ollama_model(ollama, "someone/mine:latest", gguf)
    ollama_model(ollama, "bartowski/Tiny-GGUF:Q8_0", gguf, host="hf.co")
    ollama_model(tmp_path / "service", "library/served:latest", gguf)
    tiny_gguf(home / ".lmstudio" / "models" / "pub" / "Model-GGUF" / "Model-Q8_0.gguf")
    tiny_gguf(home / ".cache" / "lm-studio" / "models" / "pub" / "old" / "Old-Q8_0.gguf")
    tiny_gguf(home / ".cache" / "llama.cpp" / "org_repo_file-Q8_0.gguf")
    hub = Path(os.environ["HF_HOME"]) / "hub"
    hub_gguf(hub, "org/name-GGUF", "name-Q8_0.gguf", gguf)
    hub_model(hub, "org/name")
    hub_gguf(tmp_path / "llama", "org/newer-GGUF", "newer-Q8_0.gguf", gguf)
    env = {**os.environ, "LLAMA_CACHE": str(tmp_path / "llama")}
    found = stores.find_all(env, tmp_path / "service")
    assert [each.ref for each in found] == [
        "ollama:hf.co/bartowski/Tiny-GGUF:Q8_0",
        "ollama:qwen3:0.6b",
        "ollama:served:latest",
        "ollama:someone/mine:latest",
        "lmstudio:pub/Model-GGUF/Model-Q8_0.gguf",
        "lmstudio:pub/old/Old-Q8_0.gguf",
        "llamacpp:org/newer-GGUF/newer-Q8_0.gguf",
        "llamacpp:org_repo_file-Q8_0.gguf",
        "hf:org/name",
        "hf:org/name-GGUF/name-Q8_0.gguf",
    ]
    assert {each.problem for each in found} == {None}
    assert {each.architecture for each in found} == {"llama"}
    assert {each.quantisation for each in found if each.kind == "gguf"} == {"Q8_0"}
    assert all(each.bytes == gguf.stat().st_size for each in found if each.kind == "gguf")


def test_places_moved_by_the_environment_or_by_lm_studio_are_followed(
    home: Path, gguf: Path, tmp_path: Path
) -> None:
    ollama_model(tmp_path / "o", "library/moved:latest", gguf)
    hub_gguf(tmp_path / "hub", "a/b", "c.gguf", gguf)
    tiny_gguf(tmp_path / "lms" / "models" / "p" / "m" / "f.gguf")
    home.mkdir()
    (home / ".lmstudio-home-pointer").write_text(str(tmp_path / "lms") + "\n")
    assert _refs(OLLAMA_MODELS=str(tmp_path / "o"), HF_HUB_CACHE=str(tmp_path / "hub")) == [
        "ollama:moved:latest",
        "lmstudio:p/m/f.gguf",
        "hf:a/b/c.gguf",
    ]


def test_what_cannot_be_run_is_found_with_its_reason(home: Path, gguf: Path) -> None:
    ollama = home / ".ollama" / "models"
    manifests = ollama / "manifests" / "registry.ollama.ai" / "library"
    for name, text in (
        ("nojson", "{"),
        ("nolist", '{"layers": 3}'),
        ("cloud", '{"layers": []}'),
        ("outside", json.dumps({"layers": [{"mediaType": "x", "digest": "sha256:../../x"}]})),
    ):
        (manifests / name).mkdir(parents=True)
        (manifests / name / "latest").write_text(text)
    (manifests / "huge").mkdir()
    (manifests / "huge" / "latest").write_bytes(b" " * (2 << 20))
    ollama_model(ollama, "library/lora:latest", gguf, adapter="x")
    short = ollama_model(ollama, "library/short:latest", tiny_gguf(gguf.with_name("s"), n=1))
    layer = json.loads(short.read_text())["layers"][0]
    blob = ollama / "blobs" / layer["digest"].replace(":", "-")
    blob.write_bytes(blob.read_bytes()[:-100])
    lmstudio = home / ".lmstudio" / "models" / "p" / "m"
    tiny_gguf(lmstudio / "a-00001-of-00002.gguf")
    tiny_gguf(lmstudio / "mmproj-a.gguf")
    (lmstudio / "cut.gguf").write_bytes(gguf.read_bytes()[:50])
    os.mkfifo(lmstudio / "pipe.gguf")
    (lmstudio / "loop.gguf").symlink_to("loop.gguf")
    (lmstudio / "round").symlink_to(lmstudio)
    snapshot = hub_model(Path(os.environ["HF_HOME"]) / "hub", "org/vision")
    config = json.loads((snapshot / "config.json").read_text())
    (snapshot / "config.json").write_text(json.dumps(config | {"architectures": ["CLIPModel"]}))
    problems = {f.ref: str(f.problem) for f in stores.find_all(service=Path("/nowhere"))}
    assert problems.pop("hf:org/vision").startswith("CLIPModel")
    words = {
        "nojson": "manifest", "nolist": "manifest", "outside": "manifest", "huge": "manifest",
        "cloud": "no GGUF", "lora": "adapter", "short": "not whole",
    }  # fmt: skip
    for name, word in words.items():
        assert word in problems.pop(f"ollama:{name}:latest")
    words = {"a-00001": "part 1 of 2", "mmproj": "projector", "cut": "cut", "pipe": "no regular"}
    for name, word in words.items():
        refs = [ref for ref in problems if f"/{name}" in ref and "/round/" not in ref]
        assert word in problems[refs[0]]
    assert "None" not in problems.values()


def test_two_hundred_files_are_listed_in_a_moment(home: Path, gguf: Path) -> None:
    folder = home / ".lmstudio" / "models" / "p"
    for number in range(200):
        path = folder / f"m{number}" / f"model-{number}.gguf"
        path.parent.mkdir(parents=True)
        path.hardlink_to(gguf)
    begun = time.process_time()
    found = stores.find_in("lmstudio")
    assert len(found) == 200
    assert time.process_time() - begun < 0.5


# -- naming ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("full", "asked", "is_meant"),
    [
        ("ollama:qwen3:latest", "ollama:qwen3", True),
        ("ollama:qwen3:0.6b", "ollama:qwen3", False),
        ("ollama:qwen3:0.6b", "ollama:Qwen3:0.6B", True),
        ("ollama:hf.co/a/b:Q8_0", "ollama:hf.co/a/b:Q8_0", True),
        ("lmstudio:pub/model/file-Q8_0.gguf", "lmstudio:pub/model", True),
        ("lmstudio:pub/model/file-Q8_0.gguf", "lmstudio:file-q8_0", True),
        ("lmstudio:pub/model/file-Q8_0.gguf", "lmstudio:ile-q8_0", False),
        ("hf:org/name/name-Q4_K_M.gguf", "hf:org/name:Q4_K_M", True),
        ("hf:org/name/name-Q8_0.gguf", "hf:org/name:Q4_K_M", False),
        ("hf:org/name", "hf:org/name", True),
        ("hf:org/name", "hf:name", True),
        ("llamacpp:x.gguf", "lmstudio:x.gguf", False),
    ],
)
def test_the_end_of_a_name_is_enough(full: str, asked: str, is_meant: bool) -> None:
    assert stores.answers_to(full, asked) is is_meant


def test_a_name_that_several_have_or_none_is_told_with_what_is_there(home: Path) -> None:
    folder = home / ".lmstudio" / "models" / "pub" / "model"
    tiny_gguf(folder / "m-Q8_0.gguf")
    tiny_gguf(folder / "m-F16.gguf")
    tiny_gguf(folder / "mmproj-m.gguf")
    with pytest.raises(NotFound, match=r"any of 2: lmstudio:pub/model/m-F16\.gguf, "):
        stores.resolve("lmstudio:pub/model")
    with pytest.raises(ModelBroken, match=r"mmproj-m\.gguf can't be run: a projector"):
        stores.resolve("lmstudio:mmproj-m")
    with pytest.raises(NotFound, match=r"there: lmstudio:pub/model/m-"):
        stores.resolve("lmstudio:nothing")
    with pytest.raises(NotFound, match="radchat models pull org/name"):
        stores.resolve("hf:org/name")


# -- converting ------------------------------------------------------------------------------------


def test_a_model_of_ollamas_is_converted_once_and_its_blob_stays(
    places: Places,  # noqa: F811
    home: Path,
    gguf: Path,
) -> None:
    store = home / ".ollama" / "models"
    ollama_model(store, "library/tiny:latest", gguf, params=PARAMS, system="Be brief.",
                 template="{{ .Prompt }}", projector="x")  # fmt: skip
    before = sorted((path, path.stat().st_mtime_ns) for path in store.rglob("*"))
    told: list[str] = []
    entry = ensure(places, "ollama:tiny", outside=HERE, note=told.append)
    assert (entry.name, entry.source) == ("ollama-tiny-latest", "ollama:tiny:latest")
    assert entry.dtype_source == "Q8_0"
    assert dict(entry.defaults) == {
        "temperature": 0.6, "top_k": 20, "stop": ["<|im_end|>", "User:"],
        "repetition_penalty": 1.1, "max_tokens": 64, "system": "Be brief.",
    }  # fmt: skip
    assert "Q8_0" in told[0]
    assert "about" in told[0]
    assert str(places.models) in told[0]
    assert any("mirostat, num_ctx: left out" in line for line in told)
    assert any("text only" in line for line in told)
    assert sorted((path, path.stat().st_mtime_ns) for path in store.rglob("*")) == before

    told.clear()
    again = ensure(places, "ollama:tiny:latest", outside=HERE, note=told.append)
    assert (again.folder, told) == (entry.folder, [])
    for ref in ("ollama-tiny-latest", "ollama:tiny", "ollama:tiny:latest"):
        assert resolve(places, ref).folder == entry.folder
    assert announced(places, "ollama:tiny") == []
    assert remove(places, "ollama:tiny").name == "ollama-tiny-latest"
    assert (store / "blobs").exists()


def test_a_source_that_changed_is_converted_again_and_one_that_went_is_told(
    places: Places,  # noqa: F811
    home: Path,
    gguf: Path,
) -> None:
    store = home / ".ollama" / "models"
    manifest = ollama_model(store, "library/tiny:latest", gguf)
    first = ensure(places, "ollama:tiny", outside=HERE)
    ollama_model(store, "library/tiny:latest", gguf, params={"temperature": 0.1})
    told: list[str] = []
    second = ensure(places, "ollama:tiny", outside=HERE, note=told.append)
    assert "has changed since" in told[0]
    assert dict(second.defaults) == {"temperature": 0.1}
    assert second.name == first.name
    assert len(list_models(places)) == 1
    manifest.unlink()
    told.clear()
    last = ensure(places, "ollama:tiny", outside=HERE, note=told.append)
    assert last.folder == second.folder
    assert "no model ollama:tiny on this machine" in told[0]
    assert "converted copy ollama-tiny-latest is used" in told[0]
    with pytest.raises(NotFound):
        ensure(places, "ollama:other", outside=HERE)


def test_files_and_snapshots_of_the_others_are_converted_too(
    places: Places,  # noqa: F811
    home: Path,
    gguf: Path,
) -> None:
    hub = Path(os.environ["HF_HOME"]) / "hub"
    tiny_gguf(home / ".lmstudio" / "models" / "pub" / "M-GGUF" / "M-Q8_0.gguf")
    tiny_gguf(home / ".cache" / "llama.cpp" / "o_r_f-Q8_0.gguf", "qwen3")
    hub_gguf(hub, "org/n-GGUF", "n-Q8_0.gguf", gguf)
    hub_model(hub, "org/n")
    for ref, name in (
        ("lmstudio:M-Q8_0", "lmstudio-m-q8_0"),
        ("llamacpp:o_r_f-Q8_0", "llamacpp-o_r_f-q8_0"),
        ("hf:org/n-GGUF:Q8_0", "hf-n-q8_0"),
        ("hf:org/n", "hf-n"),
    ):
        assert pull(places, ref, outside=HERE).name == name
        assert resolve(places, ref).name == name


def test_two_models_of_one_name_are_told_apart(places: Places, home: Path) -> None:  # noqa: F811
    for publisher in ("a", "b"):
        tiny_gguf(home / ".lmstudio" / "models" / publisher / "m" / "m.gguf")
    names = [pull(places, f"lmstudio:{who}/m/m.gguf", outside=HERE).name for who in "ab"]
    assert names[0] == "lmstudio-m"
    assert names[1].startswith("lmstudio-m-")
    assert pull(places, "lmstudio:b/m/m.gguf", outside=HERE).name == names[1]


def test_a_file_without_a_template_gets_its_familys_or_is_refused(
    places: Places,  # noqa: F811
    home: Path,
) -> None:
    folder = home / ".lmstudio" / "models" / "p" / "m"
    none: dict[str, Any] = {"tokenizer.chat_template": None}
    tiny_gguf(folder / "chatml.gguf", **none)
    entry = pull(places, "lmstudio:chatml", outside=HERE)
    assert "ChatML, by its control tokens" in " ".join(entry.steps)
    assert "<|im_start|>" in (entry.folder / "chat_template.jinja").read_text()
    tokens = [f"<{number}>" for number in range(265)]
    bare: dict[str, Any] = {**none, "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * 265, "tokenizer.ggml.merges": []}  # fmt: skip
    tiny_gguf(folder / "bare.gguf", **bare)
    with pytest.raises(ModelBroken, match="no chat template"):
        pull(places, "lmstudio:bare", outside=HERE)
    assert [entry.name for entry in list_models(places)] == ["lmstudio-chatml"]


def test_a_model_that_is_nowhere_is_not_said_to_wait_for_its_conversion(
    places: Places,  # noqa: F811
    home: Path,
    gguf: Path,
) -> None:
    ollama_model(home / ".ollama" / "models", "library/tiny:latest", gguf)
    absent = "no model ollama:nosuch on this machine; there: ollama:tiny:latest"
    for ask in (partial(ensure, outside=HERE), resolve):
        with pytest.raises(NotFound, match=absent):
            ask(places, "ollama:nosuch")
        with pytest.raises(NotFound, match=r"^\./nosuch\.gguf does not exist"):
            ask(places, "./nosuch.gguf")
    with pytest.raises(NotFound, match="has not been converted yet; first: radchat models pull"):
        resolve(places, "ollama:tiny")
    with pytest.raises(NotFound, match="has not been converted yet; first: radchat models pull"):
        resolve(places, str(gguf))


def test_a_path_that_only_looks_like_a_store_is_none(tmp_path: Path) -> None:
    assert not stores.is_ref("hf:")
    assert not stores.is_ref("./ollama:x.gguf")
    assert classify(str(tiny_gguf(tmp_path / "x.gguf"))).kind == "gguf"


# -- the command -----------------------------------------------------------------------------------


def test_ls_names_what_is_elsewhere_as_m_takes_it_and_show_says_where_settings_are_from(
    places: Places,  # noqa: F811
    home: Path,
    gguf: Path,
) -> None:
    store = home / ".ollama" / "models"
    ollama_model(store, "library/tiny:latest", gguf, params=PARAMS, system="Be brief.")
    tiny_gguf(home / ".lmstudio" / "models" / "p" / "m" / "mmproj-m.gguf")
    add_blob(store, b"not a model")
    done = radchat_models("ls")
    assert done.returncode == 0
    row = next(line for line in done.stdout.splitlines() if line.endswith("ollama:tiny:latest"))
    assert row.split()[-4:] == ["Q8_0", "0.1M", "llama", "ollama:tiny:latest"]
    assert "mmproj" not in done.stdout
    assert "1 more can't be run: radchat models ls --all" in done.stderr
    assert "radchat -m ollama:tiny:latest" in done.stderr
    assert "a projector for images" in radchat_models("ls", "--all").stdout
    listed = document(radchat_models("ls", "--json"))
    assert [each["name"] for each in listed["elsewhere"]] == [
        "ollama:tiny:latest", "lmstudio:p/m/mmproj-m.gguf",
    ]  # fmt: skip
    assert listed["elsewhere"][0]["converted"] is None

    entry = ensure(places, "ollama:tiny", outside=HERE)
    listed = document(radchat_models("ls", "--json"))
    assert listed["elsewhere"][0]["converted"] == entry.name
    assert "ollama:tiny:latest" not in radchat_models("ls").stdout.partition("elsewhere")[2]
    shown = radchat_models("show", "ollama:tiny").stdout
    assert "setting       temperature 0.6, from ollama" in shown
    assert "setting       top_p 0.95, from radchat" in shown
    assert "system        Be brief." in shown
    assert "ollama:tiny:latest (unchanged)" in shown
    settings = places.config_file
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("temperature = 0.2\nmax_tokens = 9\n")
    changed = radchat_models("show", "ollama:tiny").stdout
    assert f"setting       temperature 0.2, from {settings}" in changed
    assert f"setting       max_tokens 9, from {settings}" in changed
    assert "setting       top_k 20, from ollama" in changed
    settings.unlink()
    assert "template      system prompt shown, tools dropped" in shown
    assert (
        "template      calls of tools: in a block of ours (its template has none), <tool_call>"
        in shown
    )
    assert "template      an answer ends with <|im_end|>" in shown
    facts = document(radchat_models("show", "ollama:tiny", "--json"))
    assert facts["generation"]["stop"] == {"value": PARAMS["stop"], "from": "ollama"}
    assert facts["source_now"] == "unchanged"
    assert "model.safetensors" in facts["files"]
    (store / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest").unlink()
    assert "(gone)" in radchat_models("show", "ollama-tiny-latest").stdout


def test_listing_imports_nothing_heavy(places: Places, home: Path, gguf: Path) -> None:  # noqa: F811
    ollama_model(home / ".ollama" / "models", "library/tiny:latest", gguf)
    hub_snapshot(Path(os.environ["HF_HOME"]) / "hub", "org/none")
    code = (
        "import sys; from radchat.models import stores; assert stores.find_all()\n"
        "heavy = {'torch', 'numpy', 'gguf', 'transformers', 'pydantic', 'huggingface_hub'}\n"
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(stores.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=env).returncode == 0
