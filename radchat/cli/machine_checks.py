"""Checks of what radchat stands on: packages, machine, terminal, hub. They only read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

from radchat.chat.footer import size
from radchat.cli.findings import Finding, nearest
from radchat.errors import RadchatError

if TYPE_CHECKING:
    from radchat.cli.common import Cli
    from radchat.cli.gpu_seen import Here
    from radchat.models.registry import ModelEntry

# package -> the least version that is tested (pyproject.toml), and whether nothing works without
NEEDED = {
    "torch": "2.11",
    "transformers": "5.17",
    "tokenizers": "0.22",
    "safetensors": "0.6",
    "jinja2": "3.1.5",
    "typer": "0.26",
    "prompt_toolkit": "3.0.50",
    "uvicorn": "0.40",
    "huggingface_hub": "1.0",
}
PYTHON = (3, 11)
LEAST_DISK = 256 * 1024**2  # bytes: below this the database itself is in danger
LITTLE_DISK = 2 * 1024**3
LEAST_COLUMNS = 60
BWRAP = "install bubblewrap (apt install bubblewrap)"
HUB_PATIENCE_S = 5.0


def python(cli: Cli) -> Iterator[Finding]:  # noqa: ARG001 - as all of these
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON:
        yield Finding("python", "broken", found, "install Python 3.11 or later")
    else:
        yield Finding("python", "ok", f"{found} at {sys.executable}")


def packages(cli: Cli) -> Iterator[Finding]:  # noqa: ARG001
    sound = []
    for name, least in NEEDED.items():
        found = version(name)
        pip = f"{sys.executable} -m pip install '{name}>={least}'"
        if found is None or util.find_spec(name) is None:
            yield Finding(name, "broken", "not installed", pip)
        elif _number(found) < _number(least):
            yield Finding(name, "broken", f"{found}, older than {least}", pip)
        else:
            sound.append(f"{name} {found}")
    more = f" and {len(sound) - 2} more" if len(sound) > 2 else ""
    yield Finding("packages", "ok", ", ".join(sound[:2]) + more)


def version(package: str) -> str | None:
    """As it says of itself, without importing it."""
    from importlib import metadata  # 10 ms, of which a chat that opens has no use

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _number(version: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` -> (2, 13, 0)"""
    parts = version.split("+", maxsplit=1)[0].split(".")
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)


def imports(cli: Cli) -> Iterator[Finding]:  # noqa: ARG001
    """Whether the heavy packages can be imported at all, each in a process of its own."""
    import subprocess

    for name in ("torch", "transformers", "tokenizers", "safetensors"):
        words = [sys.executable, "-c", f"import {name}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        last = (done.stderr.strip().splitlines() or ["no word why"])[-1]
        if done.returncode:
            pip = f"{sys.executable} -m pip install --force-reinstall '{name}>={NEEDED[name]}'"
            yield Finding(f"import {name}", "broken", last, pip)
        else:
            yield Finding(f"import {name}", "ok", "works")


def cpu(cli: Cli) -> Iterator[Finding]:  # noqa: ARG001
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    flags = _cpu_flags()
    known = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8") if f in flags]
    text = f"{cores} cores" + (f", {', '.join(known)}" if known else "")
    if flags and "avx2" not in flags:
        yield Finding("cpu", "warning", f"{text}: without AVX2 answers are slow", "another machine")
    else:
        yield Finding("cpu", "ok", text)


def _cpu_flags() -> set[str]:
    """Of an x86 under Linux; nothing is known elsewhere."""
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("flags"):
                    return set(line.split(":", 1)[1].split())
    except OSError:
        pass
    return set()


def memory(cli: Cli) -> Iterator[Finding]:
    from radchat.models import fit

    free = fit.available_memory()
    budget, kv = kv_budget(cli, free)
    text = f"{size(free)} free; KV may take {kv}"
    model = _model(cli)
    need = 0 if model is None else model.bytes
    if model is not None:
        text += f", {model.name} {size(need)}"
    if need + budget > free:
        given = max(free - need, 0) // 2 // 1024**2
        how = f"radchat config set kv_device {given}MiB" if given else "radchat models default"
        yield Finding("memory", "warning", f"{text}: more than is free", how)
    else:
        yield Finding("memory", "ok", text)


def _model(cli: Cli) -> ModelEntry | None:
    """The model that a new session uses, if there is one."""
    from radchat.models import registry

    try:
        return registry.choose(cli.places, cli.config.model)
    except RadchatError:
        return None


def kv_budget(cli: Cli, free: int, here: Here | None = None) -> tuple[int, str]:
    """Bytes of memory that KV may take: as set, else as the engine would choose; in words.

    Tokens count with the chosen model's bytes of each, and as none where that is not known.
    """
    from radchat.cli.gpu_seen import look
    from radchat.config import kv_default
    from radchat.models import fit

    given = cli.config.kv_device
    if given is None and (here or look()).is_used(cli.config):
        return 0, "what weights and a tenth of it leave of the GPU's free memory"
    if given is None or given.tokens is None:
        budget = kv_default(free) if given is None or given.bytes is None else given.bytes
        return budget, size(budget)
    model = _model(cli)
    each = None if model is None else fit.kv_token_bytes(model, cli.config.dtype)
    budget, text = given.tokens * (each or 0), f"{given.tokens:,} tokens"
    return budget, f"{text}, with {model.name} up to {size(budget)}" if model and each else text


def disk(cli: Cli) -> Iterator[Finding]:
    import shutil

    where = cli.places
    for name, folder in (("data", where.data), ("models", where.models)):
        there = nearest(folder)
        free = shutil.disk_usage(there).free
        text = f"{size(free)} free at {folder}"
        if free < LEAST_DISK:
            yield Finding(f"disk for {name}", "broken", text, f"make room below {there}")
        elif free < LITTLE_DISK:
            yield Finding(f"disk for {name}", "warning", text, "radchat models rm NAME")
        else:
            yield Finding(f"disk for {name}", "ok", text)


def sandbox(cli: Cli) -> Iterator[Finding]:
    """Where commands of an agent run: something is run there."""
    from radchat.agent.sandbox.choosing import find

    found = find(cli.env, Path.cwd())
    if found.name is None:
        yield Finding("sandbox", "warning", f"radchat agent runs no commands: {found.why}", BWRAP)
    elif found.limits:
        yield Finding("sandbox", "note", f"{found.why}; {found.limits}", BWRAP)
    else:
        yield Finding("sandbox", "ok", found.why)


def terminal(cli: Cli) -> Iterator[Finding]:
    from radchat.cli.common import columns, is_terminal

    if not is_terminal(sys.stdout):
        yield Finding("terminal", "note", "none: piped, so no colour and no wrapping")
        return
    env, wide = cli.env, columns(sys.stdout)
    term = env.get("TERM", "")
    colour = "24-bit colour" if env.get("COLORTERM") in ("truecolor", "24bit") else "colour"
    colour = colour if cli.paints(sys.stdout) else "no colour"
    text = f"{term or 'no TERM'}, {wide} columns, {colour}, {sys.stdout.encoding}"
    if sys.stdout.encoding.lower().replace("-", "") != "utf8":
        yield Finding("terminal", "warning", text, "export LC_ALL=C.UTF-8")
    elif wide < LEAST_COLUMNS:
        yield Finding("terminal", "warning", text, f"a window of {LEAST_COLUMNS} columns or more")
    else:
        yield Finding("terminal", "ok", text)


def hub(cli: Cli) -> Iterator[Finding]:
    """Whether models can be fetched from where the Hugging Face library would."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    place = cli.env.get("HF_ENDPOINT") or "https://huggingface.co"
    if cli.env.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        yield Finding("hub", "note", "HF_HUB_OFFLINE is set: nothing is fetched")
        return
    try:
        request = Request(place, method="HEAD")  # noqa: S310 - the user's own setting
        with urlopen(request, timeout=HUB_PATIENCE_S):  # noqa: S310
            pass
    except HTTPError:
        pass  # it answers
    except (OSError, ValueError) as error:
        remedy = "check the network, HTTPS_PROXY and HF_ENDPOINT"
        yield Finding("hub", "broken", f"{place}: {error}", remedy)
        return
    yield Finding("hub", "ok", f"{place} answers")
