"""A source of any kind as it will be written: config, weights, tokenizer, words about it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radchat.engine.convert_checks import check_tensors, json_object
from radchat.engine.convert_gguf import read_gguf
from radchat.engine.convert_hf import read_hf, read_json
from radchat.engine.convert_write import Item, Progress
from radchat.engine.family_templates import family_of
from radchat.engine.model_config import DecoderConfig
from radchat.engine.rope import longest_text
from radchat.errors import ModelBroken

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)
_LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "USE_POLICY.md", "NOTICE")


@dataclass(frozen=True, slots=True)
class Read:
    """A source as it will be written. ``more`` goes into radchat.json."""

    config: dict[str, Any]
    config_bytes: bytes
    items: list[Item]
    packed: list[Item]
    tokenizer_files: dict[str, bytes]
    dtype_source: str
    architecture: str
    vocab_size: int
    context_length: int
    more: dict[str, Any]


def read_gguf_file(source: Path, about: dict[str, Any]) -> Read:
    model = read_gguf(source)
    about["license"] = about["license"] or model.meta.get("general.license")
    tokenizer_files, step = _gguf_tokenizer_files(model.meta, model.config)
    about["steps"] = [*about["steps"], step]
    shape = DecoderConfig.from_hf(model.config)
    check_tensors(shape, model.items)
    return Read(
        model.config,
        pretty(model.config),
        model.items,
        model.packed,
        tokenizer_files,
        model.dtype_source,
        shape.architecture,
        shape.vocab_size,
        shape.max_position_embeddings,
        {"runs_on": "decoder"},
    )


def read_hf_folder(source: Path, folder: Path, progress: Progress) -> Read:
    config = read_json(source / "config.json")
    if not DecoderConfig.covers(config):
        return _read_hf_general(source, folder, progress)
    hf = read_hf(source)
    shape = DecoderConfig.from_hf(config)  # refuses what the decoder can't run, with the reason
    check_tensors(shape, hf.items)
    more: dict[str, Any] = {"runs_on": "decoder"}
    limit = longest_text(config, int(config.get("max_position_embeddings") or 0))[1]
    if limit:
        more["context_limit"] = limit
    return Read(
        config,
        (source / "config.json").read_bytes(),  # as it is, every key kept
        hf.items,
        [],
        _hf_tokenizer_files(source, folder),
        hf.dtype_source,
        shape.architecture,
        shape.vocab_size,
        shape.max_position_embeddings,
        more,
    )


def _read_hf_general(source: Path, folder: Path, progress: Progress) -> Read:
    """For what the decoder is not made for: transformers' classes, docs/adr/0015."""
    from radchat.engine.convert_general import read_general

    progress("opening", 0, 0)
    tokenizer_files = _hf_tokenizer_files(source, folder)
    general = read_general(source)
    more: dict[str, Any] = {
        "runs_on": "transformers",
        "transformers": general.transformers,
        "kv_shape": general.kv_shape.to_json(),
    }
    if general.limit:
        more["context_limit"] = general.limit
    return Read(
        general.config,
        pretty(general.config),
        general.items,
        [],
        tokenizer_files,
        general.dtype_source,
        general.architecture,
        general.vocab_size,
        general.context_length,
        more,
    )


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
        "tokenizer_config.json": pretty(built.config),
        "generation_config.json": pretty(generation),
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
        template = json_object(files, "tokenizer_config.json").get("chat_template")
        if isinstance(template, list):  # named templates; the plain one is called "default"
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if template:
            files["chat_template.jinja"] = str(template).encode()
    if "generation_config.json" not in files:
        config = read_json(source / "config.json")
        generation = {key: config.get(key) for key in ("bos_token_id", "eos_token_id")}
        files["generation_config.json"] = pretty(generation)
    return files


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


def pretty(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
