"""Checks of what models run on: the GPU, torch's build, Triton. From files; nothing is imported.

``probe`` is the exception, and is asked for: a process of its own tries what the daemon would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from radchat.chat.text import one_line
from radchat.cli import values
from radchat.cli.findings import Finding, Status
from radchat.cli.gpu_seen import Here, look
from radchat.cli.machine_checks import NEEDED
from radchat.daemon.lock import is_held

if TYPE_CHECKING:
    from radchat.cli.common import Cli
    from radchat.config import Config

PROBE = "radchat.engine.try_device"
PROBE_S = 300.0
AGAIN = "radchat daemon restart"


def gpu(cli: Cli) -> Iterator[Finding]:
    here = look()
    found = list(of_settings(here, cli.config, cli))
    yield from found
    if status := values.ask(cli, "status"):
        used = _used(here, status, cli)
        is_told = used.status == "broken" and used.remedy in [each.remedy for each in found]
        yield Finding("in use", "ok", "nothing yet: see above") if is_told else used


def of_settings(here: Here, config: Config, cli: Cli) -> Iterator[Finding]:
    yield from of_device(here, config, cli)
    yield from of_executor(here, config, cli)


def of_device(here: Here, config: Config, cli: Cli) -> Iterator[Finding]:
    """Which device models run on, as far as files say."""
    torch = f"torch {here.torch}, built for {here.built_for or 'the CPU alone'}"
    if config.device == "cpu":
        seen = f"; {here.gpu} GPU seen" if here.gpu else ""
        yield Finding("device", "ok", f"cpu, as set ({config.sources['device']}){seen}")
    elif here.gpu and here.built_for is None:
        status: Status = "broken" if config.device == "cuda" else "warning"
        yield Finding("device", status, f"cpu: a GPU is here ({here.gpu}), and {torch}",
                      _install(here.gpu))  # fmt: skip
    elif config.device == "cuda" and here.built_for is None:
        text = f"cuda is set ({config.sources['device']}), but torch {here.torch} is built for the "
        text += "CPU alone: no model loads"
        yield Finding("device", "broken", text, undo(cli, "device"))
    elif config.device == "cuda" and here.gpu is None:
        text = f"cuda is set ({config.sources['device']}), but no GPU is seen: no model loads"
        yield Finding("device", "warning", text, undo(cli, "device"))
    elif here.gpu:
        yield Finding("device", "ok", f"cuda: {here.gpu}; {torch}")
    else:
        yield Finding("device", "ok", f"cpu: no GPU seen; {torch}")


def of_executor(here: Here, config: Config, cli: Cli) -> Iterator[Finding]:
    """What will run the kernels there, and why."""
    on_gpu = here.is_used(config)
    found = f"triton {here.triton}" if here.triton else "triton is not installed"
    pip = f"{sys.executable} -m pip install 'triton>=3.6'"
    asked = config.executor
    by = f"({config.sources['executor']})"
    if asked == "triton" and here.triton is None:
        text = f"triton is set {by}, but it is not installed: no model loads"
        yield Finding("executor", "broken", text, pip)
    elif asked == "triton" and not on_gpu and not _interprets(cli):
        text = f"triton is set {by}, but it has no kernels for the CPU: no model loads"
        yield Finding("executor", "broken", text, undo(cli, "executor"))
    elif asked == "auto" and on_gpu and here.triton is None:
        yield Finding("executor", "warning", f"torch, without kernels: {found}", pip)
    elif asked == "torch":
        yield Finding("executor", "ok", f"torch, as set {by}; {found}")
    elif on_gpu or asked == "triton":
        yield Finding("executor", "ok", f"{found}; --imports tries it")
    else:
        yield Finding("executor", "ok", f"torch: on a CPU it is used alone; {found}")


def undo(cli: Cli, name: str) -> str:
    """What takes a setting back, for a daemon that runs too."""
    source = cli.config.sources[name]
    is_file = source == str(cli.places.config_file)
    again = f"; {AGAIN}" if cli.daemon or is_held(cli.places.lock) else ""
    return (f"radchat config unset {name}" if is_file else f"unset {source}") + again


def _interprets(cli: Cli) -> bool:
    return cli.env.get("TRITON_INTERPRET") == "1"


def _install(gpu: str) -> str:
    pip = f"{sys.executable} -m pip install --force-reinstall 'torch>={NEEDED['torch']}'"
    if gpu.startswith("AMD"):
        return "a ROCm build of torch: https://pytorch.org/get-started/locally"
    return f"{pip} --index-url https://pypi.org/simple"


def _used(here: Here, status: Any, cli: Cli) -> Finding:
    """What the running daemon says, which has the settings it was started with."""
    if refused := status.get("refused"):
        theirs = _as_started(cli, values.ask(cli, "defaults"))
        name = refused["setting"]
        is_ours = getattr(theirs, name) == getattr(cli.config, name)
        text = f"no model loads: {one_line(refused['message'])}"
        return Finding("in use", "broken", text, undo(cli, name) if is_ours else AGAIN)
    if status.get("device") is None:
        theirs = _as_started(cli, values.ask(cli, "defaults"))
        if (theirs.device, theirs.executor) != (cli.config.device, cli.config.executor):
            for each in of_settings(here, theirs, cli):
                if each.status == "broken":
                    text = f"by the daemon, as it was started: {each.text}"
                    return Finding("in use", "broken", text, AGAIN)
        return Finding("in use", "ok", "not known yet: no model has been loaded")
    text = f"{status['device']}, executor {status.get('executor')}"
    why = status.get("executor_why")
    return Finding("in use", "ok", f"{text}: {one_line(str(why))}" if why else text)


def _as_started(cli: Cli, told: Mapping[str, Any]) -> Config:
    """The settings with the running daemon's device and executor."""
    settings = told.get("settings") or {}
    found = {name: settings[name] for name in ("device", "executor") if name in settings}
    sources = {name: each["from"] for name, each in found.items()}
    return replace(
        cli.config,
        sources={**cli.config.sources, **sources},
        **{name: each["value"] for name, each in found.items()},
    )


def probe(cli: Cli) -> Iterator[Finding]:
    """Try for real, in a process of its own, what loading a model would find."""
    words = [sys.executable, "-m", PROBE, cli.config.device, cli.config.executor]
    env = {**os.environ, **cli.env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=PROBE_S, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"no answer within {PROBE_S:.0f} s: the driver or the compiler hangs"
        yield Finding("try device", "broken", text, "radchat config set executor torch")
        return
    found = heard(cli, done.returncode, done.stdout, done.stderr)
    told = {undo(cli, each.name) for each in of_settings(look(), cli.config, cli) if each.remedy}
    if found.remedy not in told:  # else the same again
        yield found


def heard(cli: Cli, code: int, out: str, err: str) -> Finding:
    """What the process said, as a sentence; also where it said nothing."""
    last = (out.strip().splitlines() or [""])[-1]
    try:
        report = json.loads(last)
    except ValueError:
        word = (err.strip().splitlines() or ["no word why"])[-1]
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        text = f"it ended by {end}: {one_line(word)}"
        return Finding("try device", "broken", text, "radchat config set device cpu")
    if "error" in report:
        named = report.get("setting")
        remedy = undo(cli, named) if named else "radchat config set executor torch"
        return Finding("try device", "broken", one_line(report["error"]), remedy)
    text = f"{report['device']}, executor {report['executor']}: {one_line(report['why'])}"
    return Finding("try device", "ok", text)
