"""Convert a model once into the files every later start maps (docs/adr/0006-models-on-disk.md).

    python -P -m radchat.engine.convert SOURCE FOLDER '{"name": "my-model", …}'

SOURCE is a Hugging Face folder or a ``.gguf`` file; the JSON goes into radchat.json. FOLDER must
not exist; it is complete and fsynced when this ends with 0, and gone otherwise. stdout carries one
JSON object a line: ``{"step", "done", "total"}`` (bytes) on the way, then ``{"result": …}`` with
radchat.json, or ``{"error": …}`` and exit code 1. It runs as a child of ``radchat models pull``, so
that the terminal side imports no torch.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radchat.engine.convert_gguf import read_gguf
from radchat.engine.convert_hf import read_hf, read_json
from radchat.engine.convert_write import (
    Item,
    OpenFile,
    create_private,
    sync_folder,
    write_bytes,
    write_tensors,
)
from radchat.engine.family_templates import family_of
from radchat.engine.model_config import DecoderConfig
from radchat.errors import ModelBroken, RadchatError

FORMAT = 1  # of the folder; weights.py refuses others
MARGIN = 64 << 20  # bytes kept free beside the weights: tokenizer, file system
Progress = Callable[[str, int, int], None]  # step, bytes done, bytes in all
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)
_LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "USE_POLICY.md", "NOTICE")


@dataclass(frozen=True, slots=True)
class Outside:
    """What the converter needs of the world; tests give a full disk."""

    progress: Progress = lambda *_: None
    open_file: OpenFile = create_private
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free


def convert(
    source: Path, folder: Path, about: Mapping[str, Any], outside: Outside | None = None
) -> dict[str, Any]:
    """Build ``folder`` from ``source``, return its radchat.json; on any failure leave no folder.

    ``about`` gives at least the name. Raises ModelBroken for a source that can't be used,
    RadchatError when the disk is too full, before or while writing.
    """
    folder.mkdir(mode=0o700)
    base = {"format": FORMAT, "source": str(source), "license": None, "steps": []} | dict(about)
    try:
        return _fill(source, folder, base, outside or Outside())
    except BrokenPipeError:  # whoever started us is gone
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _no_room(folder, "no room left") from error
        raise RadchatError(f"converting {source} failed: {error}") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _no_room(folder: Path, what: str) -> RadchatError:
    return RadchatError(
        f"{what} on the disk of {folder.parent} for the converted model; nothing was kept: "
        "free some space, or set RADCHAT_CACHE_DIR to a folder on another disk"
    )


def _fill(
    source: Path,
    folder: Path,
    about: dict[str, Any],
    outside: Outside,
) -> dict[str, Any]:
    progress, open_file = outside.progress, outside.open_file
    is_gguf = source.is_file()
    if is_gguf:
        progress("reading", 0, 0)
        model = read_gguf(source)
        config, items, packed, dtype_source = (
            model.config,
            model.items,
            model.packed,
            model.dtype_source,
        )
        about["license"] = about["license"] or model.meta.get("general.license")
        tokenizer_files, step = _gguf_tokenizer_files(model.meta, config)
        about["steps"] = [*about["steps"], step]
    else:
        hf = read_hf(source)
        config, items, packed, dtype_source = hf.config, hf.items, [], hf.dtype_source
        tokenizer_files = _hf_tokenizer_files(source, folder)
    shape = DecoderConfig.from_hf(config)  # refuses what the decoder can't run, with the reason
    check_tensors(shape, items)
    check_special_ids(config, tokenizer_files)
    need = sum(item.nbytes for item in (*items, *packed)) + MARGIN
    free = outside.free_bytes(folder)
    if need > free:
        raise _no_room(folder, f"{need / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free")
    for file, data in tokenizer_files.items():
        write_bytes(folder / file, data, open_file)
    if is_gguf:
        write_bytes(folder / "config.json", _pretty(config), open_file)
    else:  # as it is, every key kept
        write_bytes(folder / "config.json", (source / "config.json").read_bytes(), open_file)
    about["weights_sha256"] = write_tensors(
        folder / "model.safetensors", items, lambda a, b: progress("weights", a, b), open_file
    )
    if packed:
        about["packed_sha256"] = write_tensors(
            folder / "packed.safetensors", packed, lambda a, b: progress("packed", a, b), open_file
        )
    about["architecture"] = shape.architecture
    about["parameters"] = sum(item.nbytes // item.dtype.itemsize for item in items)
    about["dtype_source"] = dtype_source
    about["context_length"] = shape.max_position_embeddings
    about["files"] = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    write_bytes(folder / "radchat.json", _pretty(about), open_file)
    sync_folder(folder)
    return about


def _pretty(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _gguf_tokenizer_files(
    meta: dict[str, Any], config: dict[str, Any]
) -> tuple[dict[str, bytes], str]:
    """The files, and where the chat template is from."""
    from radchat.engine.convert_tokenizer import build_tokenizer

    built = build_tokenizer(meta)
    if built.tokenizer.get_vocab_size() > config["vocab_size"]:
        raise ModelBroken(
            f"the tokenizer has {built.tokenizer.get_vocab_size()} tokens, "
            f"the model only {config['vocab_size']} rows"
        )
    config["eos_token_id"] = built.stop_ids[0] if len(built.stop_ids) == 1 else built.stop_ids
    bos = meta.get("tokenizer.ggml.bos_token_id")
    config["bos_token_id"] = None if bos is None else int(bos)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    files = {
        "tokenizer.json": built.tokenizer.to_str().encode(),
        "tokenizer_config.json": _pretty(built.config),
        "generation_config.json": _pretty(generation),
    }
    template, step = meta.get("tokenizer.chat_template"), "chat template: the GGUF file's"
    if not template:
        family = family_of(meta)
        if family is None:
            raise ModelBroken(
                "the file has no chat template, and its control tokens are of no family whose "
                "template is known: such a model can complete, not chat"
            )
        template, step = family.template, f"chat template: {family.name}, by its control tokens"
    files["chat_template.jinja"] = str(template).encode()
    return files, step


def _hf_tokenizer_files(source: Path, folder: Path) -> dict[str, bytes]:
    if not (source / "tokenizer.json").exists():
        source_files = _slow_tokenizer(source, folder)
    else:
        source_files = {}
    files = {
        name: (source / name).read_bytes()
        for name in (*_TOKENIZER_FILES, *_LICENCES)
        if (source / name).is_file()
    } | source_files
    if "chat_template.jinja" not in files and "tokenizer_config.json" in files:
        template = _object(files, "tokenizer_config.json").get("chat_template")
        if isinstance(template, list):  # named templates; the plain one is called "default"
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if template:
            files["chat_template.jinja"] = str(template).encode()
    if "generation_config.json" not in files:
        config = read_json(source / "config.json")
        generation = {key: config.get(key) for key in ("bos_token_id", "eos_token_id")}
        files["generation_config.json"] = _pretty(generation)
    return files


def _object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """Raises ModelBroken for what is no JSON object."""
    try:
        value = json.loads(files[name])
    except ValueError as error:
        raise ModelBroken(f"{name} can't be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelBroken(f"{name} is not a JSON object")
    return value


def _slow_tokenizer(source: Path, folder: Path) -> dict[str, bytes]:
    """tokenizer.json made by transformers from older files (vocab.json, tokenizer.model …)."""
    from transformers import AutoTokenizer

    work = folder / ".tokenizer"
    try:
        AutoTokenizer.from_pretrained(str(source)).save_pretrained(str(work))
        made = {path.name: path.read_bytes() for path in work.iterdir()}
    except Exception as error:  # transformers raises what its many readers raise
        raise ModelBroken(f"{source} has no tokenizer that can be used: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if "tokenizer.json" not in made:
        raise ModelBroken(f"{source} has no tokenizer.json, and none can be made from its files")
    return {name: data for name, data in made.items() if name in _TOKENIZER_FILES}


def check_tensors(shape: DecoderConfig, items: list[Item]) -> None:
    """Every tensor the decoder needs is there with the right shape; else ModelBroken."""
    found = {item.name: item.shape for item in items}
    for name, want in expected_tensors(shape).items():
        if name not in found:
            raise ModelBroken(f"the model lacks the tensor {name}")
        if found[name] != want:
            raise ModelBroken(f"tensor {name} has shape {found[name]}, config.json says {want}")


def expected_tensors(shape: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes, in Hugging Face's words, of all the decoder reads."""
    hidden, inner, vocab = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    rows = shape.num_heads * shape.head_dim
    kv_rows = shape.num_kv_heads * shape.head_dim
    expected: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if not shape.tie_word_embeddings:
        expected["lm_head.weight"] = (vocab, hidden)
    linears = {  # name: (out, in, has a bias)
        "self_attn.q_proj": (rows, hidden, shape.qkv_bias),
        "self_attn.k_proj": (kv_rows, hidden, shape.qkv_bias),
        "self_attn.v_proj": (kv_rows, hidden, shape.qkv_bias),
        "self_attn.o_proj": (hidden, rows, shape.o_bias),
        "mlp.gate_proj": (inner, hidden, shape.mlp_bias),
        "mlp.up_proj": (inner, hidden, shape.mlp_bias),
        "mlp.down_proj": (hidden, inner, shape.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if shape.qk_norm:
        norms |= {"self_attn.q_norm": shape.head_dim, "self_attn.k_norm": shape.head_dim}
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        expected |= {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}
        for name, (out, columns, has_bias) in linears.items():
            expected[f"{prefix}{name}.weight"] = (out, columns)
            if has_bias:
                expected[f"{prefix}{name}.bias"] = (out,)
    return expected


def check_special_ids(config: dict[str, Any], files: dict[str, bytes]) -> None:
    """BOS and end-of-turn ids lie inside the vocabulary: one beyond it would fail at first use."""
    vocab = int(config["vocab_size"])
    for where, table in (
        ("config.json", config),
        ("generation_config.json", _object(files, "generation_config.json")),
    ):
        for key in ("bos_token_id", "eos_token_id"):
            value = table.get(key)
            for one in value if isinstance(value, list) else [value]:
                if one is not None and not 0 <= int(one) < vocab:
                    raise ModelBroken(
                        f"{where}: {key} {one} is outside the vocabulary of {vocab} tokens"
                    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m radchat.engine.convert")
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("about", type=json.loads)
    options = parser.parse_args(arguments)
    # libraries that print must not break the protocol: fd 1 is ours alone
    lines = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def say(value: dict[str, Any]) -> None:
        lines.write(json.dumps(value) + "\n")

    try:
        about = convert(
            options.source,
            options.folder,
            options.about,
            Outside(progress=_at_most_ten_a_second(say)),
        )
    except RadchatError as error:
        say({"error": error.to_json()})
        return 1
    except (KeyboardInterrupt, BrokenPipeError):  # the parent is gone or going; it tells the user
        return 130
    say({"result": about})
    return 0


def _at_most_ten_a_second(say: Callable[[dict[str, Any]], None]) -> Progress:
    last = ("", 0.0)

    def progress(step: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if step != last[0] or now - last[1] > 0.1 or done == total:
            last = (step, now)
            say({"step": step, "done": done, "total": total})

    return progress


if __name__ == "__main__":
    sys.exit(main())
