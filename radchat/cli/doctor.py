"""`radchat doctor`: what is installed, set and running. Reads only; starts no daemon."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

import typer

from radchat import __version__
from radchat.chat.text import one_line
from radchat.cli import common
from radchat.cli.config import shown
from radchat.config import SETTINGS
from radchat.errors import RadchatError

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "triton", "typer", "uvicorn")


def doctor(ctx: typer.Context) -> None:
    """What is installed, set and running, and what is wrong."""
    cli = common.of(ctx)
    report = {
        "radchat": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "machine": machine(),
        "packages": {name: version(name) for name in PACKAGES},
        "places": places(cli),
        "settings": settings(cli),
        "models": models(cli),
        "daemon": daemon(cli),
    }
    if cli.json:
        cli.data(report)
        return
    for key, value in report.items():
        for line in section(key, value):
            cli.out(line)


def section(key: str, value: Any) -> list[str]:
    if not isinstance(value, dict):
        return [f"{key:<10}{one_line(str(value))}"]
    if not value:
        return [f"{key:<10}none"]
    lines = []
    for i, (name, item) in enumerate(value.items()):
        text = item if isinstance(item, str) else _flat(item)
        lines.append(f"{key if i == 0 else '':<10}{name:<16}{one_line(text)}".rstrip())
    return lines


def _flat(item: Any) -> str:
    if isinstance(item, dict):
        return ", ".join(f"{k} {_flat(v)}" for k, v in item.items() if v is not None)
    if isinstance(item, list):
        return ", ".join(_flat(each) for each in item) or "none"
    return "-" if item is None else str(item)


def machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.system()} {platform.machine()}, {cores} cores, {_memory()}"


def _memory() -> str:
    import psutil

    from radchat.chat.footer import size

    memory = psutil.virtual_memory()
    return f"{size(memory.total)} memory, {size(memory.available)} free"


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def places(cli: common.Cli) -> dict[str, str]:
    where = cli.places
    named = {
        "config": where.config_file,
        "data": where.data,
        "state": where.state,
        "cache": where.cache,
        "log": where.log,
    }
    return {name: str(path) for name, path in named.items()}


def settings(cli: common.Cli) -> dict[str, Any]:
    """Values in force, each with its source; a bad one is told, not raised: this is a doctor."""
    try:
        config = cli.config
    except RadchatError as error:
        return {"problem": error.message}
    return {
        s.name: f"{'-' if (v := shown(getattr(config, s.name))) is None else v} "
        f"({config.sources[s.name]})"
        for s in SETTINGS
    }


def models(cli: common.Cli) -> dict[str, Any]:
    from radchat.models import registry

    try:
        default = registry.get_default(cli.places)
        return {
            entry.name: (entry.problem or "ok") + (", default" if entry.name == default else "")
            for entry in registry.list_models(cli.places)
        }
    except RadchatError as error:
        return {"problem": error.message}


def daemon(cli: common.Cli) -> dict[str, Any]:
    """The running daemon's status and the values it has in force; never starts one."""
    try:
        client = cli.connect(start=False)
        status = client.call("status")
        keys = ("state", "pid", "model", "device", "executor", "build", "socket", "uptime_s")
        in_force = client.call("defaults")
    except RadchatError as error:
        return {"state": error.message}
    else:
        report = {key: status.get(key) for key in keys}
        report["default_model"] = in_force.get("default_model")
        for name, setting in (in_force.get("settings") or {}).items():
            value = setting.get("value")
            key = f"setting {name}" if name in report else name
            report[key] = f"{'-' if value is None else _flat(value)} ({setting.get('from')})"
        return report
