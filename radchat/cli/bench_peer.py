"""The other side of `radchat bench --compare URL`: the same turns asked of an OpenAI-shaped server.

Standard library only. Every request has a connection of its own; times are this end's, from the
moment the request goes out. What a server does not say (its counts of tokens) is None.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

from radchat.chat.text import one_line
from radchat.errors import ConfigInvalid, RadchatError, Unreachable, UsageError

CONNECT_S, ANSWER_S = 20.0, 900.0  # a server may have to load its model first
MAX_LINE, MAX_BODY = 1 << 20, 1 << 24  # bytes
NAMES = {"llamacpp": "llama-server", "library": "ollama", "vllm": "vLLM", "sglang": "SGLang"}
T = TypeVar("T")
Messages: TypeAlias = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer as it came in. Seconds since it was asked; counts are the server's, or None."""

    text: str
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is. ``path`` is what comes before /v1."""

    is_tls: bool
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> Address:
        """``url`` with or without its scheme and /v1."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            raise UsageError(f"--compare {one_line(url)}: not a URL") from None
        if parts.username is not None or parts.password is not None:
            raise UsageError("--compare takes no password in its URL: set OPENAI_API_KEY")
        strange = not (url.isascii() and url.isprintable()) or set(url) & set(" ?#")
        if strange or parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--compare {one_line(url)}: want http://HOST:PORT, or https")
        is_tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(is_tls, parts.hostname, port or (443 if is_tls else 80), path)

    @property
    def place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.place}{self.path}/v1"


class Server:
    """A context manager: when it is left, by whatever way, its connections are cut."""

    def __init__(self, url: str, *, max_tokens: int, key: str = "") -> None:
        self._address = Address.of(url)
        if key and not (key.isascii() and key.isprintable()):
            raise ConfigInvalid("OPENAI_API_KEY holds what no HTTP header may hold")
        self.url = str(self._address)
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._max_tokens = max_tokens
        self._open: set[http.client.HTTPConnection] = set()
        self.name, self.model = self._address.place, ""

    def ready(self) -> None:
        """Learn its model, the first it lists, and have it loaded."""
        (body,) = together([self._models])
        try:
            first = body["data"][0]
            self.model = first["id"]
            owner = first.get("owned_by")
        except (TypeError, KeyError, IndexError, AttributeError):
            raise self._strange(f"its list of models is {_cut(json.dumps(body))}") from None
        if not isinstance(self.model, str):
            raise self._strange(f"its list of models is {_cut(json.dumps(body))}")
        self.name = NAMES.get(str(owner), self.name)
        self.ask([[{"role": "user", "content": "Say one word."}]])

    def _models(self) -> dict[str, Any]:
        with self._answer("GET", "/models", None) as response:
            return self._parse(response.read(MAX_BODY))

    def ask(self, talks: Sequence[Messages]) -> list[Heard]:
        """All at once; answers in their order."""
        return together([partial(self._ask, talk) for talk in talks])

    def _ask(self, messages: Messages) -> Heard:
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began = time.perf_counter()
        texts: list[str] = []
        usage: Mapping[str, Any] = {}
        first = ended = None
        with self._answer("POST", "/chat/completions", body) as response:
            for event in self._events(response):
                now = time.perf_counter() - began
                if now > ANSWER_S:
                    raise Unreachable(f"{self.url} did not end an answer in {ANSWER_S:.0f} s")
                if event is None:
                    ended = now if ended is None else ended
                    break
                said, thought, is_end = self._delta(event)
                usage = event.get("usage") or usage
                if (said or thought) and first is None:
                    first = now
                texts.append(said)
                ended = now if is_end and ended is None else ended
        if ended is None:
            raise Unreachable(f"{self.url} broke off in the middle of an answer")
        if first is None:
            raise self._strange("an answer of it was empty: there is nothing to time")
        return Heard("".join(texts), *_counts(usage), first, ended)

    # -- what came -------------------------------------------------------------------------------

    def _delta(self, event: dict[str, Any]) -> tuple[str, str, bool]:
        """The answer's text in a chunk, its thinking, and whether it is the last with any."""
        if event.get("error"):
            raise RadchatError(f"{self.url} failed: {_cut(json.dumps(event['error']))}")
        try:
            if not event["choices"]:  # the usage alone
                return "", "", False
            choice = event["choices"][0]
            delta = choice.get("delta") or {}
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            said = delta.get("content") or ""
            is_end = choice.get("finish_reason") is not None
        except (TypeError, KeyError, IndexError, AttributeError):
            raise self._strange(f"a chunk of it is {_cut(json.dumps(event))}") from None
        if not isinstance(said, str):
            raise self._strange(f"a chunk of it is {_cut(json.dumps(event))}")
        return said, str(thought), is_end

    def _events(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any] | None]:
        """The chunks of an answer; None for its [DONE]."""
        kind = response.headers.get_content_type()
        if kind != "text/event-stream":
            raise self._strange(f"asked for a stream it sent {kind}: {_cut(response.read(400))}")
        while line := response.readline(MAX_LINE):
            field, _, value = line.strip().partition(b":")
            if field != b"data":
                if field and field not in (b"event", b"id", b"retry"):
                    raise self._strange(f"its stream has the line {_cut(line)}")
                continue
            value = value.strip()
            yield None if value == b"[DONE]" else self._parse(value)

    def _parse(self, text: bytes) -> dict[str, Any]:
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            raise self._strange(f"it sent {_cut(text)}") from None
        if not isinstance(body, dict):
            raise self._strange(f"it sent {_cut(text)}")
        return body

    def _strange(self, what: str) -> RadchatError:
        return RadchatError(f"{self.url} does not speak as OpenAI's API does: {what}")

    # -- connections -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _answer(self, method: str, path: str, body: Any) -> Iterator[http.client.HTTPResponse]:
        """A response of status 200."""
        kind = http.client.HTTPSConnection if self._address.is_tls else http.client.HTTPConnection
        line = kind(self._address.host, self._address.port, timeout=CONNECT_S)
        self._open.add(line)
        failed = "cannot be reached"
        try:
            line.connect()
            line.sock.settimeout(ANSWER_S)
            data = None if body is None else json.dumps(body)
            line.request(method, f"{self._address.path}/v1{path}", data, self._headers)
            response = line.getresponse()
            if response.status != 200:
                self._refused(response)
            failed = "broke off in the middle of an answer"
            yield response
        except (OSError, UnicodeError) as error:  # the latter: a host's name that cannot be one
            why = one_line(getattr(error, "strerror", None) or str(error))
            raise Unreachable(f"{self.url} {failed}: {why}") from error
        except http.client.IncompleteRead:
            raise Unreachable(f"{self.url} broke off in the middle of an answer") from None
        except http.client.HTTPException as error:
            raise self._strange(f"it sent {_cut(str(error))}") from error
        finally:
            line.close()
            self._open.discard(line)

    def _refused(self, response: http.client.HTTPResponse) -> None:
        status, said = response.status, _cut(response.read(2000))
        hint = " (its key is read from OPENAI_API_KEY)" if status in (401, 403) else ""
        raise RadchatError(f"{self.url} answered {status}{hint}: {said}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for line in tuple(self._open):
            with contextlib.suppress(OSError, AttributeError):  # not connected, or no longer
                line.sock.shutdown(socket.SHUT_RDWR)


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Results in their order; the first failure is raised without waiting for the rest.

    In threads, even one: a Ctrl+C does not wait for a server, or a name server, that is silent.
    """

    def run(call: Callable[[], T], future: Future[T]) -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # raised again where it is waited for
            future.set_exception(error)

    futures: list[Future[T]] = [Future() for _ in calls]
    for pair in zip(calls, futures, strict=True):
        Thread(target=run, args=pair, daemon=True).start()
    return [each.result() for each in futures]


def _cut(text: bytes | str, most: int = 120) -> str:
    """Something a server sent, for one line of a message."""
    shown = one_line(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
    return shown if len(shown) <= most else f"{shown[:most]}…"


def _counts(usage: Any) -> tuple[int | None, int | None, int | None]:
    """(input, cached, output) tokens, where they are told."""

    def number(of: Any, name: str) -> int | None:
        value = of.get(name) if isinstance(of, Mapping) else None
        return value if isinstance(value, int) else None

    details = usage.get("prompt_tokens_details") if isinstance(usage, Mapping) else None
    return (
        number(usage, "prompt_tokens"),
        number(details, "cached_tokens"),
        number(usage, "completion_tokens"),
    )
