"""What a model would run on here, tried for real: `doctor --imports` runs this as a process.

python -m radchat.engine.try_device DEVICE EXECUTOR    prints a line of JSON
"""

from __future__ import annotations

import json
import sys
from typing import Any

from radchat.engine.hardware import Hardware, NotHere, choose

ROWS, SIZE = 3, 64


def report(device: str, executor: str) -> dict[str, Any]:
    """``device``, ``executor``, ``why``; or ``error`` (a sentence) and the ``setting`` at fault."""
    try:
        found = choose(device, executor)
        run(found)
    except NotHere as error:
        text = f"{error.setting} = {error.asked} can't be had: {error}"
        return {"error": text, "setting": error.setting}
    except Exception as error:  # of a driver, a compiler: each has its own
        text = f"nothing runs there: {type(error).__name__}: {error}"
        return {"error": text, "setting": None}
    why = f"{found.why}; it has run"
    return {"device": str(found.device), "executor": found.executor.name, "why": why}


def run(found: Hardware) -> None:
    """One operation of the executor on the device, held against what it should give."""
    import torch

    x = torch.arange(ROWS * SIZE, dtype=torch.float32).view(ROWS, SIZE) / SIZE - 1
    wanted = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    place = found.device.type
    weight = torch.ones(SIZE, device=place)
    got = found.executor.add_rmsnorm(None, x.to(place), weight, 1e-6)
    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-5)


def main(argv: list[str]) -> None:
    device, executor = argv
    print(json.dumps(report(device, executor)))


if __name__ == "__main__":
    main(sys.argv[1:])
