"""What the service says of device and executor, refuses, and counts where models are on a GPU.

The GPU's tensors are torch's "meta" ones: they have shapes and no memory. Models are loaded there
and pools made, and no step is run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from radchat.config import GPU_KEPT_FREE, Size
from radchat.engine import memory, model
from radchat.engine.device import CPU, Device
from radchat.engine.hardware import Hardware
from radchat.errors import ConfigInvalid, ModelBroken
from radchat_kernels.executor import Heads, choose
from radchat_kernels.torch_executor import TorchExecutor
from tests.daemon.services import WHERE, House, Machine, house, models, notices, run
from tests.daemon.test_int4 import add_model
from tests.fakes import Cuda

no_real_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="here it can be had")


class Gpu(Device):
    """``total`` bytes; what is taken of them is what the loaded engines say they take."""

    def __init__(self, total: int) -> None:
        super().__init__("cpu")
        self.type, self.name = "meta", "NVIDIA H200"
        self._cuda = Cuda()
        self.total = total
        self.taken: Callable[[], int] = lambda: 0
        self.coming = 0  # weights that are loaded, of an engine that is not made yet
        self.released = 0

    def free_bytes(self) -> int:
        return self.total - self.taken() - self.coming

    def release(self) -> None:
        self.released += 1


def on(gpu: Gpu) -> Hardware:
    return Hardware(gpu, choose("cpu", "torch"), "Triton can't use the GPU (no compiler)")


async def load(home: House, name: str, dtype: str = "fp32") -> list[Any]:
    return [event async for event in home.service.models_load(name, dtype=dtype)]


def tiny() -> Path:
    (folder,) = models().glob("tiny*")
    return folder


# -- what is said ----------------------------------------------------------------------------------


def test_device_and_executor_are_said_once_a_model_has_been_loaded(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, RADCHAT_DEVICE="cpu") as home:
            for said in (await home.service.status(), await home.service.defaults()):
                assert [said[key] for key in ("device", "executor", "executor_why")] == [None] * 3
            await home.say("x", new_session=True)
            for said in (await home.service.status(), await home.service.defaults()):
                assert (said["device"], said["executor"]) == ("cpu", "torch")
                assert said["executor_why"] == "the CPU is asked for"
            await home.service.models_unload()
            assert (await home.service.status())["device"] == "cpu"
            settings = (await home.service.defaults())["settings"]
            assert settings["device"] == {"value": "cpu", "from": "RADCHAT_DEVICE"}
            assert settings["executor"] == {"value": "auto", "from": "default"}

    run(main())


@no_real_gpu
@pytest.mark.parametrize(
    ("setting", "asked", "why"),
    [("executor", "triton", "Triton has no kernels for cpu"), ("device", "cuda", "torch")],
)
def test_what_is_set_and_can_not_be_had_is_an_error_and_all_else_goes_on(
    tmp_path: Path, setting: str, asked: str, why: str
) -> None:
    async def main() -> None:
        variable = f"RADCHAT_{setting.upper()}"
        settings: dict[str, Any] = {variable: asked}
        async with house(tmp_path, **settings) as home:
            for _ in range(2):
                with pytest.raises(ConfigInvalid) as caught:
                    await home.ask("x", new_session=True)
                said = caught.value
                assert (said.exit_code, said.code) == (52, "config_invalid")
                assert (
                    f"{setting} = '{asked}' (from {variable}) can't be had: {why}" in said.message
                )
                assert f"unset {variable} if it is set here, then radchat dae" in said.message
                assert (said.data["setting"], said.data["asked"]) == (setting, asked)
            status = await home.service.status()
            assert status["device"] is None
            assert status["refused"] == {"setting": setting, "message": said.message}
            assert await home.loaded() == []
            assert (await home.service.sessions_list(WHERE))["total"] == 0

    run(main())


@no_real_gpu
def test_what_the_file_says_is_taken_back_in_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "h" / "config" / "config.toml"
        file.parent.mkdir(parents=True, mode=0o700)
        file.write_text('executor = "triton"\n')
        async with house(tmp_path) as home:
            with pytest.raises(ConfigInvalid, match=r"radchat config unset executor, then"):
                await home.ask("x", new_session=True)

    run(main())


class Narrow(TorchExecutor):
    """Takes heads of 4 at most."""

    name = "narrow"

    def why_not(self, heads: Heads, hidden: int) -> str:
        return "" if heads.head_dim <= 4 else f"heads of {heads.head_dim} on {hidden}"


def test_a_model_that_the_executor_can_not_run_has_plain_torch_and_says_why(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        heads, hidden = model.layers_of(tiny())
        machine = Machine(gpu=Hardware(Device(), Narrow(), "a GPU"))
        async with house(tmp_path, machine) as home:
            assert await home.say("x", new_session=True)
            status = await home.service.status()
            assert (status["executor"], status["executor_why"]) == (
                "torch", f"heads of {heads.head_dim} on {hidden}"
            )  # fmt: skip

    run(main())


def test_an_executor_that_is_set_and_can_not_run_the_model_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        machine = Machine(gpu=Hardware(Device(), Narrow(), "asked for", "triton"))
        async with house(tmp_path, machine, RADCHAT_EXECUTOR="triton") as home:
            with pytest.raises(ConfigInvalid, match=r"can't be had: heads of .*unset RADCHAT_EX"):
                await load(home, "tiny")
            assert await home.loaded() == []

    run(main())


def test_an_exact_answer_goes_on_only_from_kv_of_its_own_device(tmp_path: Path) -> None:
    """And 4-bit weights only from KV of the dtype that theirs has here."""
    gpu, old = Gpu(1 << 40), Gpu(1 << 40)
    old._cuda = Cuda(is_old=True)

    def named(folder: Path, dtype: str, device: Device) -> str:
        return model.load(folder, dtype, device=device, executor=choose("cpu", "torch")).fingerprint

    assert named(tiny(), "fp32", gpu) == named(tiny(), "fp32", old) != named(tiny(), "fp32", CPU)
    assert named(tiny(), "bf16", gpu) == named(tiny(), "bf16", CPU)

    async def main() -> None:
        async with house(tmp_path) as home:
            add_model(home, tmp_path)
            (folder,) = home.places.models.glob("four*")
            assert named(folder, "int4", gpu) != named(folder, "int4", old)
            made = {
                named(folder, dtype, device)
                for dtype in ("fp32", "bf16", "int4")
                for device in (CPU, gpu, old)
            }
            assert made == set(home.service._disk.names_of(folder)), "all go with the model"
            assert len(made) == 5

    run(main())


def test_what_an_engine_compiles_is_part_of_the_loads_progress(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            engines = home.service._engines
            opener: Any = engines.opener
            build, shares = opener.build, [0.0]

            def building(*args: Any) -> Any:
                shares.append(engines.share_loaded)
                args[-1](0.5)
                shares.append(engines.share_loaded)
                return build(*args)

            opener.build = building
            await load(home, "tiny")
            assert shares == sorted(set(shares))
            assert 0 < shares[1] < shares[2] < 1

    run(main())


# -- what is counted -------------------------------------------------------------------------------


def test_models_on_a_gpu_are_counted_by_its_memory_and_go_with_what_it_kept(tmp_path: Path) -> None:
    async def main() -> None:
        need = model.needs(tiny(), "fp32", Size(tokens=4096), device=Gpu(0))
        gpu = Gpu(2 * need.least - memory.WORK_BYTES)  # both, and a step's room once
        async with house(tmp_path, Machine(gpu=on(gpu))) as home:
            engines = home.service._engines
            gpu.taken = lambda: sum(each.num_bytes for each in engines.all)
            await load(home, "tiny")
            (loaded,) = engines.all
            assert loaded.promised == 0  # pool and weights are taken, not mapped
            assert not loaded.model.is_mapped
            assert loaded.num_bytes == need.weights + loaded.kv_bytes
            status = await home.service.status()
            assert status["device"] == "meta (NVIDIA H200)"
            assert (status["executor"], status["executor_why"]) == (
                "torch", "Triton can't use the GPU (no compiler)"
            )  # fmt: skip
            del loaded
            await load(home, "other")
            assert await home.loaded() == ["other fp32", "tiny fp32"]
            assert gpu.released == 2  # after each load
            await home.service.models_unload("tiny")
            assert gpu.released == 3
            gpu.total -= (need.weights + need.kv) // 2
            told = await load(home, "tiny")
            assert "model_swap" in notices(told)
            assert await home.loaded() == ["tiny fp32"]
            assert gpu.released == 5

    run(main())


class Watched(Gpu):
    """``asking``: the threads that have asked how much is free."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.asking: set[str] = set()
        self.error: Exception | None = None

    def free_bytes(self) -> int:
        self.asking.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        return super().free_bytes()


def test_the_event_loop_asks_the_gpu_nothing(tmp_path: Path) -> None:
    """The driver answers when it has done what else it does."""

    async def main() -> None:
        gpu = Watched(1 << 34)
        async with house(tmp_path, Machine(gpu=on(gpu))) as home:
            await load(home, "tiny")
            await load(home, "other")
            assert gpu.asking
            assert threading.current_thread().name not in gpu.asking

    run(main())


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), True),
        (torch.AcceleratorError("CUDA error: no kernel image is available for execution"), False),
        (torch.AcceleratorError("CUDA error: out of memory"), False),
        (RuntimeError("a file that is not as it should be"), False),
    ],
    ids=["lost", "old", "full", "another"],
)
def test_a_gpu_that_is_lost_while_a_model_is_loaded_ends_the_daemon(
    tmp_path: Path, error: Exception, *, ends: bool
) -> None:
    async def main() -> None:
        gpu = Watched(1 << 34)
        async with house(tmp_path, Machine(gpu=on(gpu))) as home:
            broken: list[BaseException] = []
            home.service._worker.on_broken = broken.append
            await load(home, "tiny")
            gpu.error = error
            with pytest.raises(ModelBroken, match=r"other could not be loaded"):
                await load(home, "other")
            assert broken == ([error] if ends else [])

    run(main())


def test_where_no_budget_is_set_the_pool_is_what_weights_and_a_tenth_leave(tmp_path: Path) -> None:
    async def main() -> None:
        need = model.needs(tiny(), "fp32", device=Gpu(0))
        gpu = Gpu(need.good + (8 << 30))  # of which a tenth is more than what a step takes
        async with house(tmp_path, Machine(gpu=on(gpu)), RADCHAT_KV_DEVICE="") as home:
            engines, build = home.service._engines, home.service._engines.opener.build
            gpu.taken = lambda: sum(each.num_bytes for each in engines.all)
            opener: Any = engines.opener

            def loading(*args: Any) -> Any:
                found = type(opener).load(opener, *args)
                gpu.coming = found.num_bytes
                return found

            def building(*args: Any) -> Any:
                made = build(*args)
                gpu.coming = 0
                return made

            opener.load, opener.build = loading, building
            await load(home, "tiny")
            (loaded,) = engines.all
            left = gpu.total - loaded.num_bytes
            kept = int(GPU_KEPT_FREE * gpu.total)
            page = loaded.bytes_per_token * memory.PAGE_SIZE
            assert kept > memory.WORK_BYTES
            assert loaded.model.num_bytes * GPU_KEPT_FREE > 2 * page, "else they don't matter"
            assert kept - page <= left <= kept + page

    run(main())


def test_auto_takes_4_bits_on_a_gpu_that_does_not_hold_the_rest_and_finds_them_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        gpu = Gpu(1 << 40)
        async with house(tmp_path, Machine(gpu=on(gpu))) as home:
            add_model(home, tmp_path)
            engines = home.service._engines
            gpu.taken = lambda: sum(each.num_bytes for each in engines.all)
            (folder,) = home.places.models.glob("four*")
            small, large = (
                model.needs(folder, dtype, Size(tokens=4096), device=Gpu(0)).least
                for dtype in ("int4", "bf16")
            )
            gpu.total = (small + large) // 2
            for _ in range(2):
                await load(home, "four", dtype="auto")
                assert await home.loaded() == ["four int4"]
            gpu.total *= 2  # room came: the KV that is there counts for more
            await load(home, "four", dtype="auto")
            assert await home.loaded() == ["four int4"]
            gpu.total //= 2
            await home.service.models_unload()
            await load(home, "four", dtype="int4")
            await load(home, "four", dtype="auto")
            assert await home.loaded() == ["four int4"]
            await home.service.models_unload()
            gpu.total = large
            await load(home, "four", dtype="auto")
            assert await home.loaded() == ["four bf16"]

    run(main())


def test_what_does_not_fit_a_gpu_is_refused_with_its_numbers(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Machine(gpu=on(Gpu(10**8)))) as home:
            with pytest.raises(ModelBroken, match=r"of the GPU's memory, .* 0\.1 GB are free"):
                await load(home, "tiny")
            assert (await home.service.status())["loading"] is None

    run(main())


class Full(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """No tensor of more than ``most`` bytes is given on the GPU, whatever had been counted."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if (
            isinstance(made, torch.Tensor)
            and made.device.type == "meta"
            and made.nbytes > self.most
        ):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return made


def test_weights_and_pools_that_another_program_leaves_no_room_for_are_told_with_numbers() -> None:
    gpu = Gpu(10**12)
    torch_alone = choose("cpu", "torch")
    with Full(1000), pytest.raises(ModelBroken, match=r"tiny.* needs .* of the GPU's memory and"):
        model.load(tiny(), "fp32", device=gpu, executor=torch_alone)
    assert gpu.released == 1
    loaded = model.load(tiny(), "fp32", device=gpu, executor=torch_alone)
    assert gpu.released == 2, "what it made on the way"
    with Full(1 << 20), pytest.raises(ModelBroken) as caught:
        model.build_engine(loaded, kv_budget=Size(tokens=160_000))
    assert "KV of 160,000 tokens takes 0.1 GB of the GPU's memory in one" in caught.value.message
    assert "1000.0 GB are free: lower kv_device (RADCHAT_KV_DEVICE)" in caught.value.message
    model.build_engine(loaded, kv_budget=Size(tokens=160_000))


def test_a_pool_that_nobody_has_sized_takes_less_where_that_is_given() -> None:
    gpu = Gpu(10**10)
    loaded = model.load(tiny(), "fp32", device=gpu, executor=choose("cpu", "torch"))
    roomy = model.build_engine(loaded).pool
    page = roomy.bytes_per_token * memory.PAGE_SIZE
    before = gpu.released
    with Full(roomy.data.nbytes - page):
        pool = model.build_engine(loaded).pool
    assert gpu.released == before + 1
    assert pool.num_pages - 1 == (roomy.num_pages - 1) - (roomy.num_pages - 1) // 6
    with Full(pool.data.nbytes - page), pytest.raises(ModelBroken, match=r"set kv_device .* less"):
        model.build_engine(loaded)


def test_what_fits_in_4_bits_alone_is_offered_in_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Machine(gpu=on(Gpu(10**8)))) as home:
            add_model(home, tmp_path)
            with pytest.raises(ModelBroken, match=r"--dtype int4 or a smaller model"):
                await load(home, "four", dtype="bf16")
            with pytest.raises(ModelBroken, match=r"_KV_DEVICE\) or a smaller model"):
                await load(home, "four", dtype="int4")

    run(main())
