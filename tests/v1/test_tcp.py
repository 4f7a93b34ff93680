"""The API on TCP: who is let in, and what a hostile or careless client can not do to others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from radchat.daemon.tcp.guard import Allowed
from radchat.daemon.tcp.keys import Keys, home_key, key_file
from radchat.daemon.tcp.limits import MAX_HEAD, Limits, TooMany
from radchat.daemon.tcp.listener import Listener, serve
from radchat.daemon.tcp.protocol import TimedProtocol
from radchat.daemon.v1.caller import Caller
from radchat.errors import Busy, InvalidInput, Unreachable
from radchat.paths import Places
from tests.daemon.services import run, until
from tests.v1.apis import USER, Api, api

HOME, OTHER = "the-key-of-the-home", "the-key-of-another"
CHAT = {"model": "tiny", "messages": USER, "max_tokens": 3}


class Tcp:
    def __init__(self, it: Api, listener: Listener) -> None:
        self.it, self.listener = it, listener
        self.host = f"127.0.0.1:{listener.port}"

    def client(self, key: str | None = HOME, **headers: str) -> httpx2.AsyncClient:
        allowed = {"authorization": f"Bearer {key}"} if key else {}
        url = f"http://{self.host}"
        return httpx2.AsyncClient(base_url=url, headers={**allowed, **headers}, timeout=30)

    async def raw(self, *pieces: bytes, wait: float = 5.0) -> bytes:
        """What comes back before the other side closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        got = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while data := await asyncio.wait_for(reader.read(65536), wait):
                got += data
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return got

    async def status(self, head: str, body: bytes = b"") -> int:
        lines = f"{head}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        got = await self.raw(lines.encode("latin-1") + body)
        return int(got.split(b" ", 2)[1]) if got else 0


@contextlib.asynccontextmanager
async def tcp(
    root: Path, allowed: Allowed | None = None, limits: Limits | None = None
) -> AsyncIterator[Tcp]:
    async with api(root) as it:
        listener = Listener(it.app, Keys(HOME, [OTHER]), allowed or Allowed("127.0.0.1"), limits)
        await listener.open(0)
        try:
            yield Tcp(it, listener)
        finally:
            await listener.close()


ROUTES = [
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("POST", "/rpc/status"),
    ("POST", "/rpc/stop"),
    ("POST", "/rpc/generate"),
    ("GET", "/nothing"),
]


def test_without_a_key_there_is_nothing_but_health(tmp_path: Path) -> None:
    async def work() -> None:
        async with tcp(tmp_path) as it:
            for key in (None, "wrong", "", HOME + "x", HOME[:-1]):
                async with it.client(key) as http:
                    for method, path in ROUTES:
                        answer = await http.request(method, path, json={})
                        assert answer.status_code == 401, (key, path)
                        assert answer.json()["error"]["type"] == "authentication_error"
                    assert (await http.get("/health")).json() == {"status": "ok"}
            for scheme in (f"Basic {HOME}", HOME, f"bearer {HOME}"):
                async with it.client(None, authorization=scheme) as http:
                    told = (await http.get("/v1/models")).status_code
                    assert told == (200 if scheme.startswith("bearer") else 401)
            async with it.client() as http:
                for path in ("/rpc/status", "/rpc/stop", "/rpc/generate"):
                    assert (await http.post(path, json={})).status_code == 404
                assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200

    run(work())


def test_a_web_page_is_told_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with tcp(tmp_path) as it:
            key = f"authorization: Bearer {HOME}\r\n"
            for method, path in [*ROUTES, ("GET", "/health")]:
                for head in (
                    "host: foreign.example",
                    f"host: {it.host}\r\norigin: http://foreign.example",
                    f"host: {it.host}\r\norigin: null",
                    f"host: {it.host}\r\nhost: foreign.example",
                    "host: 127.0.0.1.foreign.example",
                ):
                    status = await it.status(f"{method} {path} HTTP/1.1\r\n{key}{head}", b"{}")
                    assert status in (400, 403), (path, head, status)
            for host in ("localhost", "127.0.0.1:1", "[::1]:8", "LOCALHOST"):
                got = await it.status(f"GET /v1/models HTTP/1.1\r\n{key}host: {host}")
                assert got == 200, host
            simple = await it.status(
                f"POST /v1/chat/completions HTTP/1.1\r\n{key}host: localhost\r\n"
                "content-type: text/plain",
                json.dumps(CHAT).encode(),
            )
            assert simple == 400
            preflight = await it.status(
                "OPTIONS /v1/models HTTP/1.1\r\nhost: localhost\r\norigin: http://a.example"
            )
            assert preflight == 403

    run(work())


def test_pages_that_were_named_may_ask(tmp_path: Path) -> None:
    async def work() -> None:
        page = "http://localhost:3000"
        allowed = Allowed("127.0.0.1", ["chat.example"], [page])
        async with tcp(tmp_path, allowed) as it:
            async with it.client(origin=page) as http:
                before = await http.options("/v1/chat/completions")
                assert before.status_code == 204
                assert before.headers["access-control-allow-origin"] == page
                for path in ("/v1/models", "/nothing"):
                    answer = await http.get(path)
                    assert answer.headers["access-control-allow-origin"] == page
            async with it.client("wrong", origin=page) as http:
                refused = await http.get("/v1/models")
                assert refused.status_code == 401
                assert refused.headers["access-control-allow-origin"] == page
            key = f"authorization: Bearer {HOME}\r\n"
            assert await it.status(f"GET /v1/models HTTP/1.1\r\n{key}host: chat.example") == 200

    run(work())


def test_beyond_this_machine_numbers_are_names_and_others_are_not() -> None:
    wide = Allowed("0.0.0.0", ["box.lan"])
    assert wide.is_host("192.168.1.7:8765")
    assert wide.is_host("[fe80::1]:8765")
    assert wide.is_host("box.lan")
    assert not wide.is_host("evil.example")
    assert not Allowed("127.0.0.1").is_host("192.168.1.7")


def test_slow_clients_are_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(TimedProtocol, "head_s", 0.2)
        monkeypatch.setattr(TimedProtocol, "body_s", 0.2)
        async with tcp(tmp_path) as it:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: {it.host}\r\n".encode()
            key = f"authorization: Bearer {HOME}\r\n".encode()
            half = b"content-type: application/json\r\ncontent-length: 99\r\n\r\n{"
            for pieces in ([], [b"POST /v1"], [head], [head + key + half]):
                assert b"200" not in await it.raw(*pieces)
            dripping = asyncio.create_task(_drip(it))
            await until(lambda: it.listener.num_connections == 0)
            assert await dripping == "let go"
            async with it.client() as http:
                assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200
                await asyncio.sleep(0.3)  # an answered connection is no slow one
                assert (await http.get("/v1/models")).status_code == 200
            assert it.listener.limits.running == 0

    run(work())


async def _drip(it: Tcp) -> str:
    """A head of a letter now and then never comes to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", it.listener.port)
    try:
        for _ in range(200):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)
            if reader.at_eof():
                break
    except ConnectionError:
        return "let go"
    finally:
        writer.close()
    return "let go" if reader.at_eof() else "still there"


def test_floods_are_told_to_come_again_and_others_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with tcp(tmp_path, limits=Limits(of_all=6, of_key=4)) as it:
            async with it.client() as http, it.client(OTHER) as other:
                long = {**CHAT, "max_tokens": 1500}
                flood = [
                    asyncio.create_task(http.post("/v1/chat/completions", json=long))
                    for _ in range(9)
                ]
                await until(lambda: it.listener.limits.running == 4)
                assert (await other.post("/v1/chat/completions", json=CHAT)).status_code == 200
                assert (await http.get("/v1/models")).status_code == 200
                answers = await asyncio.gather(*flood)
                told = sorted(answer.status_code for answer in answers)
                assert told == [200] * 4 + [429] * 5
                for answer in answers:
                    if answer.status_code == 429:
                        assert int(answer.headers["retry-after"]) >= 1
                        assert answer.json()["error"]["type"] == "rate_limit_error"
            assert it.listener.limits.running == 0

    run(work())


def test_a_limit_is_given_back_however_a_request_ends() -> None:
    limits = Limits(of_all=2, of_key=1)
    with limits.request("a"):
        with pytest.raises(TooMany), limits.request("a"):
            raise AssertionError
        with limits.request("b"), pytest.raises(TooMany), limits.request("c"):
            raise AssertionError
    with pytest.raises(ZeroDivisionError), limits.request("a"):
        raise ZeroDivisionError
    assert limits.running == 0


def test_garbage_and_floods_of_headers(tmp_path: Path) -> None:
    async def work() -> None:
        async with tcp(tmp_path) as it:
            key = f"authorization: Bearer {HOME}\r\n"
            many = "".join(f"x-{i}: 1\r\n" for i in range(150))
            ask = f"GET /v1/models HTTP/1.1\r\n{key}host: localhost\r\n"
            assert await it.status(ask + many[:-2]) == 431
            long = await it.raw(f"{ask}x: {'a' * (2 * MAX_HEAD)}\r\n\r\n".encode())
            assert long.split(b" ", 2)[1] in (b"400", b"431")
            for garbage in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\0" * 500, b"A" * 100_000):
                got = await it.raw(garbage + b"\r\n\r\n")
                assert b" 200 " not in got
            twice = await it.raw(
                (ask + "\r\n" + ask + "connection: close\r\n\r\n").encode(), wait=2
            )
            assert twice.count(b"HTTP/1.1 200") == 2
            bad = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            smuggled = f"{bad}{key}transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n"
            assert b" 200 " not in await it.raw(smuggled.encode(), wait=1)

    run(work())


def test_a_body_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    async def work() -> None:
        async with tcp(tmp_path) as it:
            key = f"authorization: Bearer {HOME}\r\n"
            head = f"POST /v1/completions HTTP/1.1\r\n{key}host: localhost\r\n"
            head += "content-type: application/json\r\n"
            told = await it.raw(f"{head}content-length: 209715200\r\n\r\n".encode(), b"x" * 100_000)
            assert told.split(b" ", 2)[1] == b"413"
            before = _rss()
            piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"  # a MiB
            chunked = f"{head}transfer-encoding: chunked\r\n\r\n".encode()
            told = await it.raw(chunked, *[piece] * 90, wait=10)
            assert not told or told.split(b" ", 2)[1] == b"413"
            assert _rss() - before < 200 * 1024 * 1024
            async with it.client() as http:
                assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200

    run(work())


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_homes_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    places = Places.from_env({"RADCHAT_HOME": str(tmp_path / "h")})
    key = home_key(places)
    assert len(key) > 30
    assert home_key(places) == key
    path = key_file(places)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    assert home_key(places) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["api-key"]
    keys = Keys(key, [OTHER])
    assert keys.caller(f"Bearer {key}".encode()) == Caller()
    other = keys.caller(f"Bearer {OTHER}".encode())
    assert other is not None
    assert other.key
    assert other.namespace != Caller().namespace
    assert keys.caller(None) is None
    for bad in ("short", "a key with spaces", "x" * 600, "ключ-ключ-ключ"):
        with pytest.raises(InvalidInput, match="API key 1"):
            Keys(key, [bad])


def test_a_listener_is_open_as_long_as_its_stream(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            places = it.home.places
            events = serve(it.app, places)
            told = (await anext(events)).data
            assert told["url"] == it.app.listeners[0].url
            assert told["is_local"]
            with pytest.raises(Busy, match="--port 0"):
                await anext(serve(it.app, places, port=told["port"]))
            with pytest.raises(InvalidInput, match="no address"):
                await anext(serve(it.app, places, host="no.such.host.invalid"))
            with pytest.raises(InvalidInput, match="65535"):
                await anext(serve(it.app, places, port=70_000))
            await events.aclose()
            assert it.app.listeners == []
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", told["port"])
            again = serve(it.app, places, port=told["port"])
            await anext(again)
            it.app.stop_begun.set()
            with pytest.raises(Unreachable, match="stopped"):
                await anext(again)
            assert it.app.listeners == []

    run(work())


def test_another_keys_conversations_are_not_found(tmp_path: Path) -> None:
    async def work() -> None:
        async with tcp(tmp_path) as it, it.client() as http, it.client(OTHER) as other:

            async def ask(client: httpx2.AsyncClient, **more: Any) -> httpx2.Response:
                return await client.post("/v1/chat/completions", json={**CHAT, **more})

            mine = (await ask(http, radchat={"session": "notes"})).json()["radchat"]
            named = await ask(other, radchat={"session": "notes"})
            theirs = named.json()["radchat"]
            assert theirs["session"] != mine["session"]  # a session of their own
            assert named.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            for wanted in (
                {"session": mine["session"]},
                {"parent": mine["message"]},
                {"session": mine["session"], "parent": mine["message"]},
            ):
                assert (await ask(other, radchat=wanted)).status_code == 404
            again = await ask(other, radchat={"session": "notes"}, messages=USER)
            assert again.json()["radchat"]["session"] == theirs["session"]
            owner = await ask(http, radchat={"session": theirs["session"]})
            assert owner.status_code == 200
            # in passing too, though both tell the same words
            told = (await ask(http)).json()
            messages = [*USER, told["choices"][0]["message"], *USER]
            for client in (http, other):
                assert (await ask(client, messages=messages)).status_code == 200
            passing = {"parent": told["radchat"]["message"]}
            assert (await ask(http, radchat=passing)).status_code == 200
            assert (await ask(other, radchat=passing)).status_code == 404
            # counts tell of everybody
            assert (await other.get("/metrics")).status_code == 403
            assert (await http.get("/metrics")).status_code == 200

    run(work())
