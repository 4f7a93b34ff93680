"""The others of `what_if.py`, `programs.py`, `search.py`, `agent.py`: asked as their users ask."""

from __future__ import annotations

import atexit
import http.client
import json
import socket
import subprocess
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from radchat.engine.request import Ids

READY_S, ANSWER_S = 120.0, 900.0


class Transformers:
    """A batch of whole prompts: it keeps nothing between calls."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def warm(self, prefix: Ids) -> None:
        pass

    def run(self, prompts: list[Ids], new: int) -> list[Ids]:
        return self._made(prompts, new, 1)

    def sample(self, prompt: Ids, num: int, new: int) -> list[Ids]:
        """``num_return_sequences``: the prompt is repeated before it is computed."""
        return self._made([prompt], new, num)

    def _made(self, prompts: list[Ids], new: int, num: int) -> list[Ids]:
        ids = torch.tensor([list(each) for each in prompts])
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=True,
                temperature=0.8,
                num_return_sequences=num,
                pad_token_id=0,
            )
        return [array("I", row) for row in out[:, ids.shape[1] :].tolist()]


class LlamaServer:
    """A request each, at once; a slot for each, and one pool of KV for all of them."""

    def __init__(
        self, binary: str, gguf: str, threads: int, slots: int = 9, flash: str = "auto"
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._slots = slots  # more at once would only wait there
        command = [binary, "-m", gguf, "-t", str(threads), "-tb", str(threads), "-c", "24576"]
        command += [
            "-np",
            str(slots),
            "-kvu",
            "-fa",
            flash,
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
        ]
        quiet = subprocess.DEVNULL
        self._server = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        atexit.register(self._server.terminate)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                if self._asked("GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("llama-server did not start: run its command by hand")
            time.sleep(0.05)

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()

    def warm(self, prefix: Ids) -> None:
        self.run([prefix], 1)

    def run(self, prompts: list[Ids], new: int) -> list[Ids]:
        with ThreadPoolExecutor(min(len(prompts), self._slots)) as threads:
            return list(threads.map(self._answer, prompts, [new] * len(prompts)))

    def sample(self, prompt: Ids, num: int, new: int) -> list[Ids]:
        """One request for ``num`` completions; it wants a slot for each."""
        rows = self._completed(prompt, new, n_cmpl=num)
        if len(rows) != num:
            raise RuntimeError(f"llama-server: {len(rows)} completions for n_cmpl {num}: too old?")
        return [array("I", row["tokens"]) for row in rows]

    def complete(self, prompt: Ids, new: int) -> tuple[Ids, int]:
        """So many tokens, and how many of the prompt were computed for them."""
        (row,) = self._completed(prompt, new)
        return array("I", row["tokens"]), int(row["timings"]["prompt_n"])

    def _answer(self, ids: Ids, new: int) -> Ids:
        return array("I", self._completed(ids, new)[0]["tokens"])

    def _completed(self, ids: Ids, new: int, **more: Any) -> list[dict[str, Any]]:
        wanted = {"n_predict": new, "ignore_eos": True, "temperature": 0.8, "cache_prompt": True}
        asked = {"prompt": list(ids), **wanted, "return_tokens": True, **more}
        status, body = self._asked("POST", "/completion", asked)
        if status != 200:
            raise RuntimeError(f"llama-server: {status} {body[:200]!r}")
        found = json.loads(body)
        return found if isinstance(found, list) else [found]

    def _asked(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        try:
            link.request(method, path, None if body is None else json.dumps(body))
            answer = link.getresponse()
            return answer.status, answer.read()
        finally:
            link.close()
