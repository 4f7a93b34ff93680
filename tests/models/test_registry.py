"""Finding a model by what people type, and saying what to type when there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from radchat.errors import ModelBroken, NotFound
from radchat.models import registry
from radchat.models.registry import choose, list_models, remove, resolve
from radchat.paths import Places


@pytest.fixture
def places(own_home: Path) -> Places:
    return Places.from_env({"RADCHAT_HOME": str(own_home)})


def put(places: Places, name: str, source: str | None = None, sha: str = "0123456789") -> Path:
    """A converted folder; nobody here looks into its weights."""
    folder = places.models / f"{name}-{sha[:8]}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"12345")
    about = {
        "format": 1,
        "name": name,
        "source": source or f"org/{name}",
        "weights_sha256": sha,
        "architecture": "llama",
        "parameters": 5,
        "dtype_source": "BF16",
        "context_length": 512,
        "files": {"model.safetensors": 5},
    }
    (folder / "radchat.json").write_text(json.dumps(about))
    return folder


def test_a_model_is_found_by_name_prefix_source_folder_and_path(places: Places) -> None:
    folder = put(places, "qwen3-0.6b", "Qwen/Qwen3-0.6B")
    put(places, "smollm2-135m")
    words = ("qwen3-0.6b", "qwen", "Qwen3-0.6B", "Qwen/Qwen3-0.6B", folder.name, str(folder))
    for ref in words:
        assert resolve(places, ref).folder == folder, ref


def test_an_exact_name_wins_over_a_longer_one(places: Places) -> None:
    put(places, "tiny")
    put(places, "tiny-big")
    assert resolve(places, "tiny").name == "tiny"


def test_an_ambiguous_prefix_lists_the_matches(places: Places) -> None:
    put(places, "qwen3-0.6b")
    put(places, "qwen3-4b")
    with pytest.raises(NotFound, match=r"several models begin with 'qwen'.*qwen3-0\.6b, qwen3-4b"):
        resolve(places, "qwen")


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("smolm2-135", "did you mean: smollm2-135m"),
        ("smollm2-135m", "not here yet; fetch it: radchat models pull smollm2-135m"),
        ("Qwen/Qwen3-0.6B", "to fetch one: radchat models pull Qwen/Qwen3-0.6B"),
        ("zzz", "here: tiny; to fetch one: radchat models pull smollm2-135m"),
        ("./zzz", r"^\./zzz does not exist"),
        ("zzz.gguf", r"^zzz\.gguf does not exist"),
        ("", "no model ''"),
        ("a\0b", "no model"),
    ],
)
def test_an_unknown_model_is_told_what_to_type(places: Places, ref: str, words: str) -> None:
    put(places, "tiny")
    with pytest.raises(NotFound, match=words):
        resolve(places, ref)


def test_a_near_name_is_offered_once(places: Places) -> None:
    put(places, "smollm2-135m")  # a name that can be pulled, too
    with pytest.raises(NotFound, match=r"did you mean: smollm2-135m\?"):
        resolve(places, "smollm2-135m int4")


def test_a_local_source_finds_its_converted_model(places: Places, tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    put(places, "my-model", str(tmp_path / "my-model"))
    assert resolve(places, str(tmp_path / "my-model")).name == "my-model"
    assert resolve(places, str(tmp_path / "x/../my-model")).name == "my-model"


def test_a_broken_model_is_listed_and_refused_with_the_repair(places: Places) -> None:
    (put(places, "short", "org/short") / "model.safetensors").write_bytes(b"1")
    (put(places, "gone") / "model.safetensors").unlink()
    (put(places, "garbled") / "radchat.json").write_text("{")
    problems = {entry.name: str(entry.problem) for entry in list_models(places)}
    assert problems["short"].endswith("has 1 bytes instead of 5")
    assert problems["gone"].endswith("model.safetensors is missing")
    assert problems["garbled"].endswith("radchat.json can't be read")
    with pytest.raises(ModelBroken, match="to repair it: radchat models pull org/short"):
        resolve(places, "short")


def test_without_a_folder_there_are_no_models_and_none_is_made(places: Places) -> None:
    assert list_models(places) == []
    with pytest.raises(NotFound, match="no model is here yet"):
        choose(places, None)
    assert not places.cache.exists()


def test_work_folders_of_a_pull_are_no_models(places: Places) -> None:
    put(places, "tiny")
    (places.models / ".pull-x.part/model").mkdir(parents=True)
    (places.models / "stray-file").write_text("")
    assert [entry.name for entry in list_models(places)] == ["tiny"]


def test_the_model_to_use_is_asked_then_default_then_last_used_then_the_only_one(
    places: Places,
) -> None:
    put(places, "a")
    assert choose(places, None).name == "a"
    put(places, "b")
    put(places, "c")
    with pytest.raises(NotFound, match=r"which model. a, b, c; .*models default"):
        choose(places, None)
    registry.note_used(places, "c")
    assert choose(places, None).name == "c"
    registry.set_default(places, "b")
    registry.note_used(places, "c")
    assert choose(places, None).name == "b"
    assert registry.get_default(places) == "b"
    assert choose(places, "a").name == "a"
    with pytest.raises(NotFound):
        choose(places, "nope")


def test_a_removed_default_is_forgotten(places: Places) -> None:
    folder = put(places, "a")
    put(places, "b")
    registry.set_default(places, "a")
    registry.note_used(places, "b")
    assert remove(places, "a").name == "a"
    assert not folder.exists()
    assert [path.name for path in places.models.iterdir()] == ["b-01234567"]
    assert choose(places, None).name == "b"


def test_what_is_remembered_is_private_and_may_be_garbage(places: Places) -> None:
    put(places, "a")
    registry.set_default(places, "a")
    path = places.state / "models.json"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("[garbage")
    assert registry.get_default(places) is None


def test_a_default_must_be_a_model_that_is_here(places: Places) -> None:
    with pytest.raises(NotFound):
        registry.set_default(places, "nope")
    assert not places.state.exists()


def test_a_broken_model_can_be_removed_but_nothing_outside(places: Places, tmp_path: Path) -> None:
    broken = put(places, "broken")
    (broken / "radchat.json").unlink()
    remove(places, "broken")
    assert not broken.exists()
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "radchat.json").write_text("{}")
    with pytest.raises(NotFound, match="nothing removed"):
        remove(places, str(outside))
    assert outside.exists()


def test_looking_at_models_imports_nothing_heavy(places: Places) -> None:
    put(places, "tiny")
    script = (
        "import sys; from radchat.paths import Places; from radchat.models.registry import choose\n"
        "import radchat.models.pull, radchat.models.fit, radchat.models.hub, radchat.models.wheel\n"
        "import radchat.cli.models\n"
        "print(choose(Places.from_env(), None).name)\n"
        "heavy = 'torch numpy transformers safetensors gguf filelock huggingface_hub'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    root = Path(registry.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.splitlines() == ["tiny", "[]"]
