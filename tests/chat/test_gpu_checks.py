"""`radchat doctor` about GPUs: machines and packages as files, the settings, and what it says."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from radchat.cli import gpu_checks, machine_checks
from radchat.cli.common import Cli
from radchat.cli.findings import Finding
from radchat.cli.gpu_seen import Here, look
from radchat.config import GPU_KEPT_FREE
from radchat.errors import ConfigInvalid
from tests.chat.fake_server import FakeDaemon

VERSION = """from typing import Optional

__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda}
git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'
hip: Optional[str] = {hip}
xpu: Optional[str] = None
"""
NOTHING = Here(None, "2.13.0+cpu", None, "3.9.0")
UNUSED = Here("NVIDIA, driver 570.86.10", "2.13.0+cpu", None, "3.9.0")
NVIDIA = Here("NVIDIA, driver 570.86.10", "2.13.0+cu130", "CUDA 13.0", "3.9.0")
BARE = Here("NVIDIA", "2.13.0+cu130", "CUDA 13.0", None)
NO_TRITON = Here(None, "2.13.0+cpu", None, None)


def cli(home: Path, **env: str) -> Cli:
    return Cli(env={"RADCHAT_HOME": str(home), "PATH": "", "HOME": str(home), **env})


def packages(at: Path, version: str, cuda: str = "None", hip: str = "None") -> Path:
    at.mkdir(parents=True)
    (at / "version.py").write_text(VERSION.format(version=version, cuda=cuda, hip=hip))
    return at


def test_what_files_say_of_a_gpu_and_of_torchs_build(tmp_path: Path) -> None:
    torch = packages(tmp_path / "torch", "2.13.0+cpu")
    none = look(tmp_path, torch)
    assert (none.gpu, none.torch, none.built_for) == (None, "2.13.0+cpu", None)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    amd = look(tmp_path, packages(tmp_path / "rocm", "2.13.0+rocm7.0", hip="'7.0.51831'"))
    assert (amd.gpu, amd.built_for) == ("AMD", "ROCm 7.0.51831")
    driver = tmp_path / "proc" / "driver" / "nvidia"
    driver.mkdir(parents=True)
    assert look(tmp_path, torch).gpu == "NVIDIA"
    (driver / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Thu Jan 1 2026\nGCC version: 12"
    )
    cuda = look(tmp_path, packages(tmp_path / "cuda", "2.13.0+cu130", cuda="'13.0'"))
    assert (cuda.gpu, cuda.built_for) == ("NVIDIA, driver 570.86.10", "CUDA 13.0")


def test_this_machine_can_be_looked_at_without_importing_anything() -> None:
    here = look()
    assert here.torch == machine_checks.version("torch")
    assert here.triton == machine_checks.version("triton")


Case = tuple[Here, dict[str, str], str, str, str | None]
CASES: list[Case] = [
    (NOTHING, {}, "ok", "cpu: no GPU seen; torch 2.13.0+cpu, built for the CPU alone", None),
    (NVIDIA, {}, "ok", "cuda: NVIDIA, driver 570.86.10; torch 2.13.0+cu130, built for CUDA 13.0",
     None),
    (NVIDIA, {"RADCHAT_DEVICE": "cpu"}, "ok",
     "cpu, as set (RADCHAT_DEVICE); NVIDIA, driver 570.86.10 GPU seen", None),
    (UNUSED, {}, "warning", "torch 2.13.0+cpu, built for the CPU alone", "pip install"),
    (UNUSED, {"RADCHAT_DEVICE": "cuda"}, "broken", "built for the CPU alone", "pip install"),
    (NOTHING, {"RADCHAT_DEVICE": "cuda"}, "broken", "no model loads",
     "unset RADCHAT_DEVICE"),
    (Here(None, "2.13.0", "CUDA 13.0", "3.9.0"), {"RADCHAT_DEVICE": "cuda"}, "warning",
     "no GPU is seen: no model loads", "unset RADCHAT_DEVICE"),
    (Here("AMD", "2.13.0+cpu", None, None), {}, "warning", "a GPU is here (AMD)", "a ROCm build"),
]  # fmt: skip


@pytest.mark.parametrize(("here", "env", "status", "text", "remedy"), CASES)
def test_the_device_that_will_be_used_is_said_with_the_reason(
    tmp_path: Path, here: Here, env: dict[str, str], status: str, text: str, remedy: str | None
) -> None:
    asked = cli(tmp_path, **env)
    (found,) = gpu_checks.of_device(here, asked.config, asked)
    assert (found.status, text in found.text) == (status, True), found
    assert (found.remedy or "").find(remedy or "") >= 0
    assert bool(found.remedy) is bool(remedy)


@pytest.mark.parametrize(
    ("here", "env", "status", "text", "remedy"),
    [
        (NOTHING, {}, "ok", "torch: on a CPU it is used alone; triton 3.9.0", None),
        (NO_TRITON, {}, "ok", "triton is not installed", None),
        (NVIDIA, {}, "ok", "triton 3.9.0; --imports tries it", None),
        (BARE, {}, "warning", "torch, without kernels: triton is not installed", "'triton>=3.6'"),
        (NVIDIA, {"RADCHAT_EXECUTOR": "torch"}, "ok", "torch, as set (RADCHAT_EXECUTOR)", None),
        (BARE, {"RADCHAT_EXECUTOR": "triton"}, "broken", "not installed", "install 'triton>=3.6'"),
        (NOTHING, {"RADCHAT_EXECUTOR": "triton"}, "broken", "no kernels for the CPU",
         "unset RADCHAT_EXECUTOR"),
        (NVIDIA, {"RADCHAT_EXECUTOR": "triton", "RADCHAT_DEVICE": "cpu"}, "broken",
         "no kernels for the CPU", "unset RADCHAT_EXECUTOR"),
        (NOTHING, {"RADCHAT_EXECUTOR": "triton", "TRITON_INTERPRET": "1"}, "ok", "triton 3.9.0",
         None),
    ],
)  # fmt: skip
def test_the_executor_that_will_be_used_is_said_with_the_reason(
    tmp_path: Path, here: Here, env: dict[str, str], status: str, text: str, remedy: str | None
) -> None:
    asked = cli(tmp_path, **env)
    (found,) = gpu_checks.of_executor(here, asked.config, asked)
    assert (found.status, text in found.text) == (status, True), found
    assert (found.remedy or "").find(remedy or "") >= 0
    assert bool(found.remedy) is bool(remedy)


def test_a_setting_of_the_file_is_taken_back_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text('device = "cuda"\n')
    asked = cli(tmp_path)
    (found,) = gpu_checks.of_device(NOTHING, asked.config, asked)
    assert found.remedy == "radchat config unset device"


def test_a_word_that_is_no_device_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"device = .gpu. \(from RADCHAT_DEVICE\): want"):
        assert cli(tmp_path, RADCHAT_DEVICE="gpu").config
    with pytest.raises(ConfigInvalid, match="want auto, torch or triton"):
        assert cli(tmp_path, RADCHAT_EXECUTOR="cuda").config


def test_what_the_running_daemon_uses_is_said_by_itself(tmp_path: Path, daemon: FakeDaemon) -> None:
    asked = cli(tmp_path)
    asked.daemon = str(daemon.path)
    daemon.script["status"] = {"device": None, "executor": None, "executor_why": None}
    assert in_use(asked).text == "not known yet: no model has been loaded"
    daemon.script["status"] = {
        "device": "cuda (NVIDIA H200)", "executor": "torch",
        "executor_why": "Triton can't use the GPU\n(RuntimeError: no compiler)",
    }  # fmt: skip
    said = "cuda (NVIDIA H200), executor torch: Triton can't use the GPU (RuntimeError: no comp"
    assert in_use(asked).text.startswith(said)


def test_a_daemon_that_can_load_nothing_is_broken_and_told_once(
    tmp_path: Path, daemon: FakeDaemon
) -> None:
    asked = cli(tmp_path)
    asked.daemon = str(daemon.path)
    message = "executor = 'triton' (from RADCHAT_EXECUTOR) can't be had: no kernels for cpu"
    daemon.script["status"] = {
        "device": None,
        "refused": {"setting": "executor", "message": message},
    }
    theirs = {"value": "triton", "from": "RADCHAT_EXECUTOR"}
    daemon.script["defaults"] = {"settings": {"executor": theirs}}
    found = in_use(asked)
    assert (found.status, found.remedy) == ("broken", "radchat daemon restart")
    assert found.text == f"no model loads: {message}"
    daemon.script["status"] = {"device": None}  # nothing was tried yet
    found = in_use(asked)
    assert (found.status, found.remedy) == ("broken", "radchat daemon restart")
    assert found.text.startswith("by the daemon, as it was started: triton is set (RADCHAT_EXEC")


def in_use(asked: Cli) -> Finding:
    (found,) = (each for each in gpu_checks.gpu(asked) if each.name == "in use")
    return found


def test_what_the_process_that_tries_it_says_becomes_a_sentence(tmp_path: Path) -> None:
    asked = cli(tmp_path, RADCHAT_EXECUTOR="triton")
    report = '{"device": "cuda (NVIDIA H200)", "executor": "triton", "why": "a GPU; it has run"}'
    fine = gpu_checks.heard(asked, 0, f"a warning of some library\n{report}\n", "")
    assert (fine.status, fine.text) == (
        "ok", "cuda (NVIDIA H200), executor triton: a GPU; it has run"
    )  # fmt: skip
    why = '{"error": "nothing runs there: RuntimeError: no C\\ncompiler", "setting": null}'
    broken = gpu_checks.heard(asked, 0, why, "")
    assert (broken.status, broken.remedy) == ("broken", "radchat config set executor torch")
    assert broken.text == "nothing runs there: RuntimeError: no C compiler"
    killed = gpu_checks.heard(asked, -signal.SIGSEGV, "", "one\nFatal Python error: Segmentation\n")
    assert killed.text == "it ended by signal 11: Fatal Python error: Segmentation"
    assert killed.remedy == "radchat config set device cpu"
    assert gpu_checks.heard(asked, 1, "", "").text == "it ended by exit code 1: no word why"


def test_it_is_tried_in_a_process_of_its_own(tmp_path: Path) -> None:
    (found,) = gpu_checks.probe(cli(tmp_path, RADCHAT_DEVICE="cpu"))
    assert (found.status, found.text) == (
        "ok", "cpu, executor torch: the CPU is asked for; it has run"
    )  # fmt: skip
    asked = cli(tmp_path, RADCHAT_DEVICE="cpu", RADCHAT_EXECUTOR="triton")
    assert list(gpu_checks.probe(asked)) == []  # the check of the setting has told it
    said = '{"error": "executor = triton can\'t be had: no kernels", "setting": "executor"}'
    found = gpu_checks.heard(asked, 0, said, "")
    assert (found.status, found.text) == ("broken", "executor = triton can't be had: no kernels")
    assert found.remedy == "unset RADCHAT_EXECUTOR"
    asked.daemon = "/run/d.sock"  # one that has read it
    assert gpu_checks.undo(asked, "executor") == "unset RADCHAT_EXECUTOR; radchat daemon restart"


def test_kv_on_a_gpu_is_not_reckoned_with_this_machines_memory(tmp_path: Path) -> None:
    assert "a tenth" in machine_checks.kv_budget(cli(tmp_path), 2**30, NVIDIA)[1]
    assert GPU_KEPT_FREE == 0.1
    assert machine_checks.kv_budget(cli(tmp_path), 2**30, NOTHING)[0] == 2**28
    assert machine_checks.kv_budget(cli(tmp_path, RADCHAT_DEVICE="cpu"), 2**30, NVIDIA)[0] == 2**28
    assert machine_checks.kv_budget(cli(tmp_path, RADCHAT_KV_DEVICE="64MiB"), 2**30, NVIDIA)[0] == (
        64 * 2**20
    )
