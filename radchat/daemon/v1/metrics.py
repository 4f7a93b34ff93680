"""``/metrics`` for Prometheus. SGLang's and vLLM's names where the meaning is theirs; ``radchat:``
for what they don't have. docs/serve.md lists them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as CountMetric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radchat.daemon.app import App
from radchat.daemon.service import Service
from radchat.daemon.v1.caller import NotYours, caller_of
from radchat.daemon.v1.described import STREAMED
from radchat.daemon.v1.gate import CarefulRoute, service_of

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
# an engine's counts, and what they are called: the last two with the same meaning as vLLM's
COUNTERS = (
    ("vllm:prompt_tokens", "Tokens of prompts that were begun.", "input_tokens"),
    ("vllm:generation_tokens", "Tokens that were drawn or forced.", "output_tokens"),
    ("vllm:prefix_cache_queries", "Tokens of prompts that were looked up.", "input_tokens"),
    ("vllm:prefix_cache_hits", "Of them, those that were cached.", "cached_tokens"),
    (
        "radchat:forced_tokens",
        "Of the output, tokens without a choice.",
        "forced_tokens",
    ),
    ("radchat:requests_begun", "Requests that an engine has admitted.", "requests"),
    ("radchat:steps", "Forward steps.", "steps"),
    ("radchat:rows", "Rows sent through models.", "rows_run"),
    ("radchat:retractions", "Requests put back as memory ran out.", "retractions"),
)


class Metrics:
    """What is counted of requests here; what engines count of themselves is read when asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._first = Histogram(
            "vllm:time_to_first_token_seconds",
            "From a request to its first word, of those that stream.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._whole = Histogram(
            "vllm:e2e_request_latency_seconds",
            "From a request to the end of its answer.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._answers = CountMetric(
            "radchat:http_requests",
            "Answers of the API.",
            ("route", "status"),
            registry=self.registry,
        )

    def watching(self, inner: ASGIApp, paths: Iterable[str]) -> ASGIApp:
        """The app, its answers counted. ``paths``: those with a name of their own."""
        known = frozenset(paths)

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            begun, status, is_stream, has_spoken = time.monotonic(), 499, False, False

            async def sending(message: Message) -> None:
                nonlocal status, is_stream, has_spoken
                if message["type"] == "http.response.start":
                    status = int(message["status"])
                    is_stream = (b"content-type", b"text/event-stream") in message["headers"]
                elif is_stream and not has_spoken and message["body"][:1] != b":":  # no comment
                    has_spoken = True
                    self._first.observe(time.monotonic() - begun)
                await send(message)

            try:
                await inner(scope, receive, sending)
            finally:
                route = scope.get("path", "")
                route = route if route in known else "other"
                self._answers.labels(route, str(status)).inc()
                if status == 200 and route in STREAMED:
                    self._whole.observe(time.monotonic() - begun)

        return watched


class _Engines(Collector):
    """Gauges of those loaded; counters over all there have been, so that none goes back."""

    def __init__(self, app: App, service: Service) -> None:
        self._app, self._service = app, service

    def collect(self) -> Iterator[Metric]:
        engines = self._service.engines
        stats = [each.engine.stats() for each in engines.all]
        running = sum(each["running"] for each in stats)
        waiting = sum(each["waiting"] for each in stats)
        total = sum(each["tokens"]["total"] for each in stats)
        held = sum(each["tokens"]["locked"] for each in stats)
        counts = Counter(engines.gone)
        for each in stats:
            counts.update({name: each[name] for _, _, name in COUNTERS})
        yield _gauge("vllm:num_requests_running", "Requests in the running batch.", running)
        yield _gauge("sglang:num_running_reqs", "Requests in the running batch.", running)
        yield _gauge("vllm:num_requests_waiting", "Requests that wait to be admitted.", waiting)
        yield _gauge("sglang:num_queue_reqs", "Requests that wait to be admitted.", waiting)
        used = held / total if total else 0.0
        yield _gauge(
            "vllm:kv_cache_usage_perc", "Share of the KV pool that running requests hold.", used
        )
        yield _gauge("sglang:num_used_tokens", "Tokens of KV that running requests hold.", held)
        read = counts["input_tokens"]
        rate = counts["cached_tokens"] / read if read else 0.0
        yield _gauge("radchat:cache_hit_rate", "Cached share of all prompt tokens so far.", rate)
        tiers = GaugeMetricFamily(
            "radchat:kv_tokens", "Tokens of KV on the device.", labels=("state",)
        )
        for state in ("free", "evictable", "pinned", "locked"):
            tiers.add_metric((state,), sum(each["tokens"][state] for each in stats))
        yield tiers
        yield _gauge("radchat:engines", "Models that are loaded.", len(stats))
        yield _gauge(
            "radchat:requests_in_progress", "Of commands and of the API.", self._app.active
        )
        yield _gauge(
            "radchat:listeners", "Of the API, besides the socket.", len(self._app.listeners)
        )
        for name, text, key in COUNTERS:
            family = CounterMetricFamily(name, text)
            family.add_metric((), counts[key])
            yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric((), value)
    return family


def router(app: App, metrics: Metrics) -> APIRouter:
    routes = APIRouter(route_class=CarefulRoute)
    collectors: list[Any] = []

    @routes.get("/metrics", operation_id="metrics", response_class=Response)
    async def read(request: Request) -> Response:
        """Prometheus' text format, for the owner: counts of one key are not another's to see."""
        if caller_of(request.scope).key:
            raise NotYours("/metrics tells of all keys: it takes the home's own")
        service = await service_of(app)
        if not collectors:
            collectors.append(_Engines(app, service))
            metrics.registry.register(collectors[0])
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return routes
