"""`radchat doctor`: what is installed, set and running, what is wrong, and what to type about it.

Reads only: it starts no daemon, loads no model and makes no folder (cli/checks.py).
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from radchat import __version__
from radchat.chat.footer import size
from radchat.chat.text import one_line
from radchat.chat.width import hang
from radchat.cli import checks, common, values
from radchat.cli import home_checks as at_home
from radchat.cli import machine_checks as on_machine
from radchat.cli.config import legible, shown
from radchat.cli.findings import Finding
from radchat.config import DEFAULT_TEMPERATURE, DEFAULT_TOP_P, SETTINGS
from radchat.errors import RadchatError

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "triton", "typer", "uvicorn")
DAEMON = (
    "state", "pid", "model", "device", "executor", "executor_why", "build", "socket", "uptime_s"
)  # fmt: skip


def doctor(
    ctx: typer.Context,
    imports: Annotated[
        bool, typer.Option("--imports", help="also import torch and the rest (seconds)")
    ] = False,
    online: Annotated[
        bool, typer.Option("--online", help="also ask whether the hub can be reached")
    ] = False,
) -> int:
    """What is installed, set and running, what is wrong, and what to type about it.

    Exit 1 where something is broken.
    """
    cli = common.of(ctx)
    findings = list(checks.run(cli, imports=imports, online=online))
    is_broken = any(finding.status == "broken" for finding in findings)
    report = {
        "radchat": f"{__version__} in {Path(__file__).parents[1]}",
        "python": f"{platform.python_version()} ({sys.executable})",
        "machine": machine(),
        "packages": {name: on_machine.version(name) or "not installed" for name in PACKAGES},
        "places": places(cli),
        "settings": settings(cli),
        "defaults": defaults(cli),
        "models": models(cli),
        "daemon": daemon(cli),
    }
    if cli.json:
        cli.data({**report, "checks": [f.to_json() for f in findings], "broken": is_broken})
        return int(is_broken)
    for key in ("radchat", "machine", "places", "settings", "defaults", "models", "daemon"):
        for line in section(key, report[key]):
            cli.out(line)
    cli.out("")
    for line in listed(cli, findings):
        cli.out(line)
    return int(is_broken)


def listed(cli: common.Cli, findings: list[Finding]) -> list[str]:
    """The checks, a line each; a remedy below what it is for; how many there are of a kind."""
    lines = []
    room = max(len(finding.name) for finding in findings)
    for finding in findings:
        line = f"{finding.status:<8}  {finding.name:<{room}}  {one_line(finding.text)}"
        is_broken = finding.status == "broken"
        fitted = hang(line, cli.columns, room + 12) if cli.columns else [line]
        lines += [cli.paint(each, "bold") if is_broken else each for each in fitted]
        if finding.remedy and finding.status != "ok":  # whole: it is to be copied
            lines.append(f"{'':<8}  {'':<{room}}  -> {one_line(finding.remedy)}")
    counts = [
        f"{number} {what if number == 1 else more}"
        for status, what, more in (("broken", "broken", "broken"),
                                   ("warning", "warning", "warnings"))
        if (number := sum(finding.status == status for finding in findings))
    ]  # fmt: skip
    return [*lines, "", ", ".join(counts) or "nothing is wrong"]


def section(key: str, value: Any) -> list[str]:
    if not isinstance(value, dict):
        return [f"{key:<10}{one_line(str(value))}"]
    if not value:
        return [f"{key:<10}none"]
    lines = []
    room = max(16, *(len(name) + 2 for name in value))
    for i, (name, item) in enumerate(value.items()):
        text = item if isinstance(item, str) else _flat(item)
        lines.append(f"{key if i == 0 else '':<10}{name:<{room}}{one_line(text)}".rstrip())
    return lines


def _flat(item: Any) -> str:
    if isinstance(item, dict):
        return ", ".join(f"{k} {_flat(v)}" for k, v in item.items() if v is not None)
    if isinstance(item, list):
        return ", ".join(_flat(each) for each in item) or "none"
    if isinstance(item, float) and item.is_integer():
        return str(int(item))
    return "-" if item is None else str(item)


def machine() -> str:
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory()
    free = f"{size(memory.total)} memory, {size(memory.available)} free"
    return f"{platform.system()} {platform.machine()}, {cores} cores, {free}"


def places(cli: common.Cli) -> dict[str, str]:
    where = cli.places
    named = {
        "config": where.config_file,
        "data": where.data,
        "state": where.state,
        "cache": where.cache,
        "kv": where.kv,
        "log": where.log,
        "socket": where.socket(),
    }
    return {name: str(path) for name, path in named.items()}


def settings(cli: common.Cli) -> dict[str, Any]:
    """Values in force, each with its source; a bad one is told, not raised: this is a doctor."""
    try:
        config = cli.config
    except RadchatError as error:
        return {"problem": error.message}
    return {
        s.name: f"{legible(s.name, shown(getattr(config, s.name)))} ({config.sources[s.name]})"
        for s in SETTINGS
    }


def defaults(cli: common.Cli) -> dict[str, str]:
    """What is done where no setting says otherwise."""
    from radchat.models import fit

    try:
        most, budget = on_machine.kv_budget(cli, fit.available_memory())
        budget += " (a quarter of free memory, at most 4 GiB)" if most else ""
        on_disk = at_home.kv_disk_room(cli).rstrip(",")
    except RadchatError:
        budget = on_disk = "not known: see settings"
    return {
        "kv_device": budget,
        "kv_disk": on_disk,
        "context": "the model's own, at most what the KV budget holds",
        "sampling": f"the model's own, else temperature {DEFAULT_TEMPERATURE}, top-p "
        f"{DEFAULT_TOP_P}, a fresh seed",
        "max_tokens": "what the context leaves",
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
    """The running daemon's status and the values it has in force; never starts one, nor waits."""
    status = values.ask(cli, "status")
    if not status:
        return {"state": "none answers"}
    report = {key: status.get(key) for key in DAEMON}
    report["uptime_s"] = round(status.get("uptime_s") or 0)
    in_force = values.ask(cli, "defaults")
    report["default_model"] = in_force.get("default_model")
    for name, setting in (in_force.get("settings") or {}).items():
        value = setting.get("value")
        key = f"{name}_setting" if name in report else name
        told = legible(name, value) if isinstance(value, int) else _flat(value)
        report[key] = f"{told} ({setting.get('from')})"
    return report
