"""The API against its own description: whatever fits the schema, or just does not, is answered as
the description says, and never with a 500.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from radchat.daemon.tcp.guard import Allowed
from radchat.daemon.tcp.keys import Keys
from radchat.daemon.tcp.limits import Limits
from radchat.daemon.tcp.listener import Listener
from tests.v1.apis import api

KEY = "the-key-of-the-home"
HEADERS = {"Authorization": f"Bearer {KEY}"}
QUICK, LONG = 12, 300
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A listener on a loop of its own: schemathesis asks from this thread."""
    found: list[str] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def work(root: Path) -> None:
        async with api(root) as it:
            listener = Listener(it.app, Keys(KEY), Allowed("127.0.0.1"), Limits())
            await listener.open(0)
            found.append(f"http://127.0.0.1:{listener.port}")
            ready.set()
            await done.wait()
            await listener.close()

    root = tmp_path_factory.mktemp("schemathesis")
    thread = threading.Thread(target=lambda: loop.run_until_complete(work(root)))
    thread.start()
    assert ready.wait(60)
    yield found[0]
    loop.call_soon_threadsafe(done.set)
    thread.join(30)
    loop.close()


def _try(url: str, num: int) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=HEADERS)
    seen = 0
    for result in schema.get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]

        @settings(
            max_examples=num,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def test(case: Any) -> None:
            nonlocal seen
            seen += 1
            if isinstance(case.body, dict):  # as the models say, and short
                case.body["model"] = case.body.get("model") and "tiny"
                case.body["max_tokens"] = 1
                case.body.pop("max_completion_tokens", None)
            case.call_and_validate(headers=HEADERS, checks=CHECKS, timeout=30)

        test()
    assert seen > num


def test_whatever_is_asked_is_answered_as_it_is_described(url: str) -> None:
    _try(url, QUICK)


@pytest.mark.slow
def test_a_great_many_requests_are(url: str) -> None:
    _try(url, LONG)
