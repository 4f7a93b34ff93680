"""docs/serve.md says what is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from radchat.daemon.tcp import limits, protocol
from radchat.daemon.v1.bodies import ChatBody, Ignored
from radchat.protocol import MAX_BODY
from tests.daemon.services import run
from tests.v1.apis import api

TEXT = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_examples_are_requests() -> None:
    blocks = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    inline = re.findall(r"-d '(\{.*\})'", TEXT)
    assert len(blocks) == 2
    assert len(inline) == 1
    for block in (*blocks, *inline):
        ChatBody.model_validate(json.loads(block))


def test_every_parameter_is_told_as_what_it_is() -> None:
    paragraphs = section("What is taken, ignored, refused").split("\n\n")
    (taken,) = (each for each in paragraphs if each.strip().startswith("Taken"))
    (ignored,) = (each for each in paragraphs if each.startswith("Ignored"))
    for name in Ignored.model_fields:
        assert f"`{name}`" in ignored
    for name in ChatBody.model_fields.keys() - Ignored.model_fields.keys() - {"model"}:
        assert f"`{name}`" in taken or f"`{name}." in taken, name


def test_the_limits_are_those_that_are_kept() -> None:
    told = section("Security")
    for number in (
        f"{MAX_BODY >> 20} MiB",
        f"{limits.MAX_HEAD >> 10} KiB, {limits.MAX_HEADERS} of",
        f"{protocol.HEAD_S:.0f} s / {protocol.BODY_S:.0f} s",
        f"| {limits.MAX_CONNECTIONS} |",
        f"| {limits.MAX_REQUESTS} / {limits.MAX_OF_KEY} |",
    ):
        assert number in told


def test_every_route_and_every_metric_is_in_the_tables(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            await it.chat()
            paths = (await it.http.get("/openapi.json")).json()["paths"]
            for path in paths:
                assert f"/{path.rpartition('/')[2].replace('{name}', 'NAME')}`" in TEXT, path
            read = (await it.http.get("/metrics")).text
            table = set(re.findall(r"`((?:vllm|sglang|radchat):\w+)`", section("Metrics")))
            families = {family.name for family in text_string_to_metric_families(read)}
            assert {name for name in families if not name.endswith("_created")} == table

    run(work())
