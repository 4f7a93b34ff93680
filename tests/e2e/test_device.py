"""Device and executor as a user sets and sees them, on a machine without a GPU."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.e2e.conftest import Homes
from tests.e2e.harness import Terminal
from tests.e2e.homes import Shell
from tests.waiting import PATIENCE

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="here it can be had")
FIELDS = ("device", "executor", "executor_why")


def test_what_is_used_is_said_by_status_and_doctor(homes: Homes) -> None:
    shell = Shell(homes(RADCHAT_DEVICE="cpu"), "1")
    stopped = shell.json("daemon", "status")
    assert [stopped[name] for name in FIELDS] == [None] * 3
    shell("daemon", "start")
    assert [shell.json("daemon", "status")[name] for name in FIELDS] == [None] * 3
    assert "\ndevice    -\nexecutor  -\n" in shell("daemon", "status").out
    assert "in use           not known yet" in shell("doctor").out
    shell.ask("hello", "--max-tokens", "2")
    used = ["cpu", "torch", "the CPU is asked for"]
    assert [shell.json("daemon", "status")[name] for name in FIELDS] == used
    lines = "device    cpu\nexecutor  torch: the CPU is asked for\n"
    assert lines in shell("daemon", "status").out
    doctor = shell.json("doctor")
    assert [doctor["daemon"][name] for name in FIELDS] == used
    assert (
        doctor["settings"]["device"]
        == doctor["daemon"]["device_setting"]
        == ("cpu (RADCHAT_DEVICE)")
    )
    (in_use,) = (each for each in doctor["checks"] if each["name"] == "in use")
    assert in_use["text"] == "cpu, executor torch: the CPU is asked for"
    assert shell.json("cache", "stats")["device_full"] == 0


@no_gpu
@pytest.mark.parametrize(
    ("setting", "asked", "why"),
    [("executor", "triton", "Triton has no kernels for cpu"), ("device", "cuda", "torch ")],
)
def test_what_can_not_be_had_is_said_and_everything_else_works(
    homes: Homes, setting: str, asked: str, why: str
) -> None:
    variable = f"RADCHAT_{setting.upper()}"
    home = homes(**{variable: asked})
    shell = Shell(home, "1")
    done = shell("ask", "hello", code=52)
    assert done.out == ""
    told = " ".join(done.err.split())
    assert f"{setting} = '{asked}' (from {variable}) can't be had: {why}" in told
    assert f"unset {variable} if it is set here, then radchat daemon restart" in told
    error = shell.json("ask", "hello", code=52)["error"]
    assert (error["code"], error["setting"], error["asked"]) == ("config_invalid", setting, asked)
    assert error["exit_code"] == 52
    pid = shell.json("daemon", "status")["pid"]
    assert home.is_up
    assert [m["name"] for m in shell.json("models", "ls")["models"]] == ["tiny"]
    assert shell.json("models", "load", "tiny", code=52)["error"]["setting"] == setting
    assert "sessions" in shell.json("sessions", "ls")
    for flags in ((), ("--imports",)):  # one fault is told once
        assert shell("doctor", *flags, code=1).out.count("\nbroken    ") == 1
    assert f"\ndevice    none: {setting} = '{asked}'" in shell("daemon", "status").out
    elsewhere = Shell(home, "2")  # whose environment is not the daemon's
    del elsewhere.env[variable]
    (broken,) = (
        each for each in elsewhere.json("doctor", code=1)["checks"] if each["status"] == "broken"
    )
    assert (broken["name"], broken["remedy"]) == ("in use", "radchat daemon restart")
    assert shell.json("daemon", "status")["pid"] == pid
    shell("config", "set", setting, "auto")
    del shell.env[variable]
    shell("daemon", "restart")
    assert shell.ask("hello", "--max-tokens", "2")["text"] is not None


@no_gpu
def test_a_daemon_is_judged_by_its_settings_and_not_by_this_shells(homes: Homes) -> None:
    home = homes(RADCHAT_EXECUTOR="triton")
    Shell(home, "1")("daemon", "start")
    shell = Shell(home, "2")
    del shell.env["RADCHAT_EXECUTOR"]
    (broken,) = (e for e in shell.json("doctor", code=1)["checks"] if e["status"] == "broken")
    assert broken["text"].startswith("by the daemon, as it was started: triton is set")
    assert broken["remedy"] == "radchat daemon restart"
    shell("daemon", "restart")
    shell.json("doctor")


def test_what_the_environment_asks_of_a_daemon_that_runs_is_said_not_to_be_in_force(
    homes: Homes,
) -> None:
    home = homes(RADCHAT_DEVICE="cpu")
    shell = Shell(home, "1")
    shell("daemon", "start")
    told = "not in force: RADCHAT_EXECUTOR=torch, RADCHAT_MEMORY=1GiB; the running daemon goes on"
    assert "not in force" not in shell("sessions", "ls").err
    shell.env |= {"RADCHAT_EXECUTOR": "torch", "RADCHAT_MEMORY": "1GiB"}
    for command in (("sessions", "ls"), ("ask", "hello", "--max-tokens", "2")):
        said = " ".join(shell(*command).err.split())
        assert said.count(told) == 1
    assert "not in force" not in shell("-q", "sessions", "ls").err
    shell("daemon", "restart")
    assert "not in force" not in shell("sessions", "ls").err


def test_completion_knows_the_words_of_both(homes: Homes) -> None:
    shell = Shell(homes(), "1")
    assert shell("config", "set", "device", "gpu", code=52).err.count("want auto, cpu or cuda") == 1
    shell("config", "set", "executor", "torch")
    assert shell("config", "get", "executor").out == "torch\n"
    listed = shell.json("config", "list")
    assert listed["device"] == {"value": "auto", "source": "default"}


def test_the_doctors_findings_break_at_words_on_a_terminal_of_eighty_columns(homes: Homes) -> None:
    home = homes(RADCHAT_EXECUTOR="triton", RADCHAT_DEVICE="cpu")
    env = {**home.env, "TERM": "xterm-256color"}
    with Terminal([sys.executable, "-P", "-m", "radchat", "doctor"], env) as terminal:
        assert terminal.wait_end() == 1
        lines = terminal.everything.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith("broken    executor"))
    assert lines[at].endswith("but it has no")
    assert lines[at + 1].strip() == "kernels for the CPU: no model loads"
    assert lines[at + 2].strip() == "-> unset RADCHAT_EXECUTOR"


def test_a_chat_says_the_same(homes: Homes) -> None:
    home = homes(RADCHAT_DEVICE="cpu")
    shell = Shell(home, "1")
    shell.ask("hello", "--max-tokens", "2")
    env = {**shell.env, "TERM": "xterm-256color"}
    command = [sys.executable, "-P", "-m", "radchat", "chat", "-c"]
    with Terminal(command, env, cwd=shell.folder) as chat:
        chat.wait_for("> ", timeout=PATIENCE)
        chat.settle()
        chat.type("/status\r")
        chat.wait_for("executor  torch: the CPU is asked for", timeout=PATIENCE)
        assert "device    cpu" in chat.text


def test_the_kernels_answer_as_plain_torch_does(homes: Homes) -> None:
    """In Triton's interpreter, on the CPU: slow, and the whole way from the command to the ids."""
    told = {}
    for executor in ("torch", "triton"):
        home = homes(RADCHAT_DEVICE="cpu", RADCHAT_EXECUTOR=executor, TRITON_INTERPRET="1")
        shell = Shell(home, "1", ("--exact", "--temp", "0", "--max-tokens", "4"))
        first = shell.ask("hi")
        fork = shell.ask("and", "-c")
        told[executor] = [each["text"] for each in (first, fork)]
        assert fork["cache"]["device"] > 0
        assert shell.json("daemon", "status")["executor"] == executor
    assert told["triton"] == told["torch"]
    assert shell.json("daemon", "status")["executor_why"].startswith("asked for, interpreted")
