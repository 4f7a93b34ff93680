"""What the socket takes and what it refuses, on a real daemon."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from radchat.client import Client
from radchat.daemon.body import check_arguments, parse_body
from radchat.errors import (
    Busy,
    ContextOverflow,
    InvalidInput,
    NotFound,
    RadchatError,
)
from radchat.protocol import MAX_BODY, METHODS, STREAMS, Where
from radchat.wire import Exchange, result
from tests.daemon.conftest import Home
from tests.daemon.fake_daemon import SECRET
from tests.waiting import wait_until

JSON = "Content-Type: application/json"


class Raw:
    """HTTP as we type it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def send(self, *pieces: bytes) -> tuple[int, Any]:
        """Status and JSON body. A daemon that closes early is still heard."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(self.path)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for piece in pieces:
                    connection.sendall(piece)
            raw = b""
            with contextlib.suppress(ConnectionResetError):
                while b"\r\n\r\n" not in raw or not _whole(raw):
                    data = connection.recv(65536)
                    if not data:
                        break
                    raw += data
        head, _, body = raw.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        return status, json.loads(body) if b"application/json" in head else body

    def post(self, body: bytes, *headers: str, target: str = "/rpc/sessions.list") -> Any:
        given = [name for name in headers if name.startswith("Host")]
        lines = [
            f"POST {target} HTTP/1.1",
            *([] if given else ["Host: localhost"]),
            *headers,
            f"Content-Length: {len(body)}",
        ]
        return self.send("\r\n".join([*lines, "", ""]).encode() + body)


def _whole(raw: bytes) -> bool:
    head, _, body = raw.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return False


@pytest.fixture
def client(shared: Home) -> Client:
    return shared.client()


@pytest.fixture
def raw(shared: Home) -> Raw:
    return Raw(shared.info.socket or "")


# -- bodies ----------------------------------------------------------------------------------------

BAD_BODIES = {
    "nothing at all": b"",
    "a brace and a colon": b"{:",
    "cut off": b'{"name": "x',
    "GBK": '{"name": "中文"}'.encode("gbk"),
    "UTF-16": '{"name": "x"}'.encode("utf-16"),
    "an array": b"[1, 2]",
    "a text": b'"x"',
    "null": b"null",
    "NaN": b'{"n": NaN}',
    "many brackets": b"[" * 100_000,
    "many braces": b'{"a":' * 100_000,
    "a number of 10,000 digits": b'{"n": ' + b"9" * 10_000 + b"}",
}


def test_a_body_that_is_no_json_object_is_400_with_an_error_object(shared: Home, raw: Raw) -> None:
    for what, body in BAD_BODIES.items():
        status, answer = raw.post(body, JSON)
        assert status == 400, what
        assert answer["error"]["code"] == "invalid_input", what
        assert answer["error"]["exit_code"] == 42, what
        assert answer["error"]["message"].startswith("the body"), what
    assert raw.post(b"{}", JSON)[0] == 200
    assert shared.info.pid == shared.status()["pid"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_content_type_is_400(raw: Raw, kind: str) -> None:
    status, answer = raw.post(b"{}", f"Content-Type: {kind}")
    assert (status, answer["error"]["code"]) == (400, "invalid_input")
    assert raw.post(b"{}", "Content-Type: application/json; charset=utf-8")[0] == 200


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_a_huge_body_is_413_before_it_is_read_and_memory_stays_flat(shared: Home, raw: Raw) -> None:
    raw.post(b"{}", JSON)
    before = resident(shared.info.pid)
    head = (
        f"POST /rpc/log HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 200000000\r\n\r\n"
    )
    status, answer = raw.send(head.encode())  # not a byte of the body
    assert (status, answer["error"]["limit"]) == (413, MAX_BODY)
    status, answer = raw.send(head.encode(), *[bytes(1 << 20)] * 200)
    assert status == 413
    assert resident(shared.info.pid) - before < 20e6
    assert raw.post(b"{}", JSON)[0] == 200


def test_a_body_of_unknown_size_is_413_once_it_is_over_the_limit(raw: Raw) -> None:
    head = (
        f"POST /rpc/log HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"%x\r\n" % (1 << 20) + bytes(1 << 20) + b"\r\n"
    status, answer = raw.send(head.encode(), *[chunk] * (MAX_BODY // (1 << 20) + 2))
    assert (status, answer["error"]["code"]) == (413, "invalid_input")


def test_the_client_does_not_send_what_would_be_refused(client: Client) -> None:
    with pytest.raises(InvalidInput, match="the daemon takes 67,108,864"):
        client.call("sessions.rename", name="x" * MAX_BODY)


def test_a_body_near_the_limit_arrives_whole(client: Client) -> None:
    name = "x" * 5_000_000
    where = {"terminal": None, "folder": "/"}
    assert client.call("sessions.rename", name=name, where=where) == {"name": name}


def test_what_is_no_http_is_refused_and_the_daemon_lives(raw: Raw) -> None:
    assert raw.send(b"\x16\x03\x01\x02 hello\r\n\r\n")[0] == 400
    assert raw.post(b"{}", JSON)[0] == 200


def test_halves_of_surrogates_are_joined_or_replaced() -> None:
    assert parse_body(rb'{"a": "\ud83d\ude00", "b": ["\ud83d x"], "\udc80": 1}') == {
        "a": "\U0001f600",
        "b": ["\ufffd x"],
        "\ufffd": 1,
    }
    assert parse_body(rb'{"a": "\\ud83d"}') == {"a": r"\ud83d"}


def test_words_that_python_read_from_broken_bytes_cross_the_socket(client: Client) -> None:
    where = {"terminal": None, "folder": "/"}
    assert client.call("sessions.rename", name="a\udcff", where=where) == {"name": "a\ufffd"}


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "args", "field"),
    [
        ("sessions.rename", {"name": "x"}, "where"),
        ("sessions.rename", {"name": 1, "where": {"terminal": None, "folder": "/"}}, "name"),
        ("sessions.rename", {"name": "x", "where": "here"}, "where"),
        ("sessions.rename", {"name": "x", "where": {"folder": "/"}}, "where.terminal"),
        (
            "sessions.rename",
            {"name": "x", "where": {"terminal": 1, "folder": "/"}},
            "where.terminal",
        ),
        ("sessions.list", {"everything": True}, "everything"),
        ("undo", {"n": "1"}, "n"),
        ("undo", {"n": True}, "n"),
        ("undo", {"n": 1.5}, "n"),
        ("undo", {"head": {"branch": 1}}, "head.branch"),
        ("generate", {}, "text"),
        ("generate", {"text": "x", "kind": "shout"}, "kind"),
        ("generate", {"text": "x", "options": {"stop": ["a", 1]}}, "options.stop[1]"),
        ("stop", {"now": True}, "now"),
    ],
)
def test_a_wrong_argument_is_400_and_named(
    raw: Raw, method: str, args: dict[str, Any], field: str
) -> None:
    status, answer = raw.post(json.dumps(args).encode(), JSON, target=f"/rpc/{method}")
    assert (status, answer["error"]["field"]) == (400, field), answer
    assert answer["error"]["message"].startswith(method)


def takes(
    *, where: Where | None, number: float = 0.0, names: list[str] | None = None, **more: Any
) -> None:
    """A signature to check against."""


def test_numbers_that_are_none_are_refused_where_a_number_is_wanted() -> None:
    check_arguments("m", takes, {"where": None, "number": 1, "names": [], "other": object()})
    for bad in (float("inf"), True, "1", None):
        with pytest.raises(InvalidInput, match="m: number must be a number"):
            check_arguments("m", takes, {"where": None, "number": bad})
    with pytest.raises(InvalidInput, match="names must be a list or null, not a text"):
        check_arguments("m", takes, {"where": None, "names": "x"})
    with pytest.raises(InvalidInput, match=r"names\[1\] must be a text$"):  # the list is one
        check_arguments("m", takes, {"where": None, "names": ["x", 1]})


def test_an_error_about_an_argument_does_not_repeat_what_was_in_it() -> None:
    with pytest.raises(InvalidInput) as error:
        check_arguments("m", takes, {"where": SECRET})
    assert SECRET not in error.value.message


@pytest.mark.parametrize(
    "target", ["/rpc/close", "/rpc/__init__", "/rpc/sessions_list", "/rpc/no.such", "/rpc/", "/"]
)
def test_an_unknown_method_is_404(raw: Raw, target: str) -> None:
    status, answer = raw.post(b"{}", JSON, target=target)
    assert (status, answer["error"]["code"]) == (404, "not_found")


def test_another_verb_is_405_with_an_error_object(raw: Raw) -> None:
    status, answer = raw.send(b"GET /rpc/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, answer["error"]["code"]) == (405, "not_found")


def test_another_dialect_is_refused_but_for_control(raw: Raw) -> None:
    status, answer = raw.post(b"{}", JSON, "X-Radchat-Protocol: 99")
    assert (status, answer["error"]["code"]) == (400, "invalid_input")
    assert raw.post(b"{}", JSON, "X-Radchat-Protocol: 99", target="/rpc/status")[0] == 200


# -- errors ----------------------------------------------------------------------------------------


def test_an_error_of_ours_arrives_as_the_same_class(client: Client) -> None:
    with pytest.raises(NotFound, match="no session x"):
        client.call("sessions.show", session="x")


def test_an_unexpected_error_is_500_logged_without_its_words_and_the_daemon_lives(
    shared: Home, client: Client, raw: Raw
) -> None:
    assert raw.post(b"{}", JSON, target="/rpc/log")[0] == 500
    with pytest.raises(RadchatError, match=r"log failed inside the daemon \(ValueError\)") as error:
        client.call("log")
    assert error.value.exit_code == 1
    assert 'fake_daemon.py", line' in shared.log()
    assert "builtins.ValueError (its message is not logged)" in shared.log()
    assert SECRET not in shared.log()
    assert client.call("sessions.list")


def test_an_error_before_the_first_event_is_an_answer_with_a_status(
    client: Client, raw: Raw
) -> None:
    status, answer = raw.post(b'{"text": "refuse"}', JSON, target="/rpc/generate")
    assert (status, answer["error"]["tokens"], answer["error"]["exit_code"]) == (400, 12, 56)
    with pytest.raises(ContextOverflow) as error:
        client.stream("generate", text="refuse")
    assert error.value.data == {"tokens": 12, "limit": 10}


def test_an_error_in_the_middle_ends_the_stream_with_an_event(client: Client) -> None:
    with client.stream("generate", text="break") as events:
        assert next(events).name == "init"
        with pytest.raises(RadchatError, match="generate failed inside the daemon"):
            next(events)
    assert client.call("sessions.list")


# -- streams ---------------------------------------------------------------------------------------


def test_events_arrive_in_order_and_one_by_one(client: Client) -> None:
    with client.stream("generate", text="slow 5") as events:
        times = [(event.name, time.monotonic()) for event in events]
    assert [name for name, _ in times] == ["init", *["delta"] * 5, "done"]
    assert times[-1][1] - times[0][1] >= 0.08


def test_a_stream_of_many_events_loses_none(client: Client) -> None:
    with client.stream("generate", text="count 5000") as events:
        numbers = [event.data["text"] for event in events if event.name == "delta"]
    assert numbers == [f"{i} " for i in range(5000)]


# "hang" says nothing more, and the next sign of life would be written long after ``wait_until`` has
# given up: so it is the closed socket that is seen, not a write that fails
@pytest.mark.parametrize("text", ["hang", "late", "count 10000000"])
def test_a_client_that_goes_away_cancels_whether_there_is_something_to_say_or_not(
    shared: Home, text: str
) -> None:
    before = shared.status()["cancelled"]
    exchange = Exchange(shared.info.socket or "")
    exchange.send("POST", "/rpc/generate", {"text": text})
    wait_until(lambda: shared.status()["running"] == 1)
    exchange.close()
    wait_until(lambda: shared.status()["cancelled"] == before + 1)
    assert shared.status()["running"] == 0


def test_the_same_client_can_ask_again_at_once(client: Client) -> None:
    for _ in range(20):
        with client.stream("generate", text="hang") as events:
            next(events)
    with client.stream("generate", text="count 2") as events:
        assert [event.name for event in events] == ["init", "delta", "delta", "done"]


def test_the_daemon_says_that_it_still_is_there_while_it_has_nothing_to_say(
    tmp_path: Path,
) -> None:
    import asyncio

    from radchat.daemon.app import App
    from radchat.protocol import Event

    class Daemon:
        def about(self) -> dict[str, Any]:
            return {}

        def stop(self, *, force: bool) -> None:
            raise AssertionError

    sent: list[bytes] = []
    sign = b": still here\n\n"

    async def run() -> None:
        app = App(Daemon(), clock=time.monotonic, keep_alive_s=0.01)
        said_twice = asyncio.Event()

        async def one_late_event() -> Any:
            await said_twice.wait()
            yield Event("done", {})

        async def receive() -> Any:
            await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))
            if sent.count(sign) == 2:
                said_twice.set()

        await app.stream("generate", one_late_event(), receive, send)

    asyncio.run(run())
    body = b"".join(sent)
    assert body.count(sign) >= 2
    assert body.endswith(b"event: done\ndata: {}\n\n")


def test_status_health_and_cancel_are_answered_while_the_service_computes(client: Client) -> None:
    with client.stream("generate", text="compute") as events:
        next(events)
        for _ in range(5):
            assert client.call("status")["running"] == 1
            assert client.call("health")["state"] == "ready"
            assert client.call("cancel", request="known") == {"cancelled": True}
        client.call("cancel", request="the computing")
        assert list(events)[-1].name == "done"


def test_a_stopping_daemon_answers_control_and_refuses_work(home: Home) -> None:
    client = home.client()
    path = home.info.socket or ""
    late = Exchange(path)  # connected before the stop
    later = Exchange(path)
    with client.stream("generate", text="slow 50") as events:
        next(events)
        client.call("stop")
        late.send("POST", "/rpc/sessions.list", {})
        late.receive_head(timeout=60)
        with pytest.raises(Busy) as error:
            result(late)
        assert error.value.data == {"stopping": True}
        later.send("POST", "/rpc/status", {})
        later.receive_head(timeout=60)
        assert result(later)["state"] == "stopping"
        events.close()
    late.close()
    later.close()
    wait_until(lambda: not home.held)


# -- who may ask -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["/health", "/rpc/status", "/rpc/generate", "/rpc/stop", "/x"])
@pytest.mark.parametrize(
    "headers",
    [
        ["Host: foreign.example"],
        ["Host: localhost.foreign.example"],
        ["Host: 127.0.0.1.foreign.example:80"],
        ["Host: "],
        ["Host: localhost", "Host: foreign.example"],
        ["Host: localhost", "Origin: http://foreign.example"],
        ["Host: localhost", "Origin: http://localhost:8080"],
        ["Host: localhost", "Origin: null"],
    ],
)
def test_what_a_page_elsewhere_could_send_is_403(raw: Raw, target: str, headers: list[str]) -> None:
    status, answer = raw.post(b"{}", "Content-Type: text/plain", *headers, target=target)
    assert (status, answer["error"]["code"]) == (403, "forbidden")


def test_a_request_without_a_host_is_403(raw: Raw) -> None:
    assert raw.send(b"GET /health HTTP/1.1\r\n\r\n")[0] == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080"]
)
def test_loopback_names_are_let_in(raw: Raw, host: str) -> None:
    assert raw.post(b"{}", JSON, f"Host: {host}", target="/rpc/status")[0] == 200
    same = f"Origin: http://{host}"
    assert raw.post(b"{}", JSON, f"Host: {host}", same, target="/rpc/status")[0] == 200


def test_many_clients_at_once_are_all_answered(raw: Raw) -> None:
    answers: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(raw.post(b"{}", JSON, target="/rpc/tree")[0])
        )
        for _ in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 50


def test_every_name_on_the_wire_is_a_word_or_two() -> None:
    assert all(name.replace(".", "").isalpha() for name in METHODS)
    assert STREAMS < METHODS
