"""A turn as spans, with OpenTelemetry's own SDK and an exporter in memory; and that a turn never waits for an exporter."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from adapter import tracing as module
from adapter.config import Config, ConfigError
from adapter.metrics import Metrics, Stage
from adapter.serving import load_models
from adapter.tracing import ENDPOINTS, NoTracer, SpanTracer, tracing
from adapter.watching import TurnWatch, Watching
from engine.errors import EngineFailed
from engine.types import TokenChunk
from tests.support.engine import Answer, FakeEngine

END = 151645
BODY = {"messages": [{"role": "user", "content": "a question of mine"}]}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENDPOINT = "http://127.0.0.1:9"


@pytest.fixture
def exported(monkeypatch):
    """What a server with traces on has exported when it has stopped."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(module, "_exporter", lambda endpoint: exporter)
    return exporter


async def post(server, body=BODY, path="/v1/messages", **headers):
    async with server.http.post(path, json=body, headers=headers) as response:
        return response.status, await response.read()


def spans_of(exporter):
    return {span.name: span for span in exporter.get_finished_spans()}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_turn_is_a_span_with_its_stages(serve, encode, exported, stream) -> None:
    ids = [*encode("an answer of mine"), END]
    engine = FakeEngine([Answer([ids[:1], ids[1:]], cached_tokens=2)])
    async with serve(engine, otel_endpoint=ENDPOINT) as server:
        assert (await post(server, {**BODY, "stream": stream, "temperature": 0.5}))[0] == 200
    spans = spans_of(exported)
    turn = spans.pop("chat slime-actor")
    assert list(spans) == ["queue", "prepare", "generate", "commit", "journal"]
    assert {span.parent.span_id for span in spans.values()} == {turn.context.span_id}
    assert {span.context.trace_id for span in spans.values()} == {turn.context.trace_id}
    assert (turn.parent, turn.kind, turn.status.status_code) == (None, SpanKind.SERVER, StatusCode.UNSET)
    assert turn.end_time >= spans["journal"].end_time >= spans["journal"].start_time >= spans["commit"].end_time
    said = dict(turn.attributes)
    assert said.pop("gen_ai.response.time_to_first_chunk") > 0
    assert said.pop("gen_ai.response.id") == engine.requests[0].request_id
    assert said.pop("gen_ai.request.seed") == engine.requests[0].sampling.seed
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "rollserve",
        "gen_ai.request.model": "slime-actor",
        "gen_ai.conversation.id": "default",
        "gen_ai.request.max_tokens": engine.requests[0].max_tokens,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.usage.input_tokens": engine.requests[0].prompt_ids.size,
        "gen_ai.usage.output_tokens": len(ids),
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.response.finish_reasons": ("stop",),
        "rollserve.protocol": "anthropic",
        "rollserve.turn": 1,
        "rollserve.match": "new",
        "rollserve.weight_versions": (3,),
    }
    assert turn.resource.attributes["service.name"] == "rollserve"
    assert "of mine" not in "".join(span.to_json() for span in exported.get_finished_spans())


async def test_the_trace_of_the_client_goes_on(serve, encode, exported) -> None:
    async with serve(FakeEngine([Answer([[END]])]), otel_endpoint=ENDPOINT) as server:
        await post(server, **{"Traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b"})
    turn = spans_of(exported)["chat slime-actor"]
    assert f"{turn.context.trace_id:032x}" == TRACE
    assert f"{turn.parent.span_id:016x}" == PARENT
    assert turn.context.trace_state.get("a") == "b"


async def test_a_client_that_does_not_want_to_be_traced_is_not(serve, exported) -> None:
    async with serve(FakeEngine([Answer([[END]])]), otel_endpoint=ENDPOINT) as server:
        assert (await post(server, traceparent=f"00-{TRACE}-{PARENT}-00"))[0] == 200
    assert exported.get_finished_spans() == ()


@pytest.mark.parametrize("header", ["", "00-xyz", f"00-{'0' * 32}-{PARENT}-01", "ff" * 200])
async def test_a_traceparent_that_is_none_begins_a_trace(serve, exported, header) -> None:
    async with serve(FakeEngine([Answer([[END]])]), otel_endpoint=ENDPOINT) as server:
        assert (await post(server, traceparent=header))[0] == 200
    assert spans_of(exported)["chat slime-actor"].parent is None


async def test_a_turn_that_fails_says_where(serve, encode, exported) -> None:
    engine = FakeEngine([Answer([encode("a"), encode("b")], error=EngineFailed("it broke"))])
    async with serve(engine, otel_endpoint=ENDPOINT) as server:
        assert (await post(server))[0] == 502
    spans = spans_of(exported)
    assert list(spans) == ["queue", "prepare", "generate", "chat slime-actor"]
    for name, error in (("generate", "EngineFailed"), ("chat slime-actor", "upstream_failed")):
        assert spans[name].attributes["error.type"] == error
        assert spans[name].status.status_code is StatusCode.ERROR


async def test_every_choice_is_a_span(serve, exported) -> None:
    async with serve(FakeEngine([Answer([[END]]), Answer([[END]])]), otel_endpoint=ENDPOINT) as server:
        assert (await post(server, {**BODY, "n": 2}, "/v1/chat/completions"))[0] == 200
    turns = [span for span in exported.get_finished_spans() if span.name == "chat slime-actor"]
    assert sorted(span.attributes["rollserve.turn"] for span in turns) == [1, 2]


class Stuck(SpanExporter):
    """Takes spans, and never comes back with them before it is let go."""

    def __init__(self) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()

    def export(self, spans):
        self.asked.set()
        self.let_go.wait(20)
        raise RuntimeError("the collector is gone")

    def shutdown(self):
        self.let_go.wait(20)
        return SpanExportResult.FAILURE


async def test_a_collector_that_hangs_holds_up_no_turn_and_no_stop(serve, monkeypatch, caplog) -> None:
    stuck = Stuck()
    monkeypatch.setattr(module, "_exporter", lambda endpoint: stuck)
    monkeypatch.setattr(module, "FLUSH_S", 0.05)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    async with serve(FakeEngine([Answer([[END]]) for _ in range(5)]), otel_endpoint=ENDPOINT) as server:
        for _ in range(5):
            assert (await post(server))[0] == 200
        assert stuck.asked.wait(20)
    assert "spans_dropped" in [record.getMessage() for record in caplog.records]
    stuck.let_go.set()


def test_continuations_are_spans_and_counts() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter, metrics = InMemorySpanExporter(), Metrics()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    watch = Watching(metrics, SpanTracer(provider.get_tracer("test"))).turn("anthropic", "m")
    assert isinstance(watch, TurnWatch)
    with watch.stage(Stage.GENERATE):
        for segment in (0, 0, 1, 1, 2):
            watch.sampled(TokenChunk(np.zeros(1, np.int32), np.zeros(1, np.float32), 1, segment=segment))
    watch.ended("upstream_failed")
    assert [span.name for span in exporter.get_finished_spans()] == ["generate"] * 3 + ["chat m"]
    labels = {"protocol": "anthropic", "model": "m"}
    assert metrics.registry.get_sample_value("rollserve_continuations_total", labels) == 2
    provider.shutdown()


async def test_off_unless_asked_for(monkeypatch) -> None:
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    async with tracing(Config()) as tracer:
        assert isinstance(tracer, NoTracer)


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_the_standard_variables_ask_for_it(monkeypatch, exported, name) -> None:
    monkeypatch.setenv(name, ENDPOINT)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    async with tracing(Config()) as tracer:
        assert isinstance(tracer, SpanTracer)
        tracer.turn("anthropic", "m", {}).ended(None)
    assert exported.get_finished_spans()[0].resource.attributes["service.name"] == "mine"


@pytest.mark.parametrize(
    ("variables", "warned"),
    [
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
    ],
)
async def test_variables_that_cannot_be_followed_are_warned_of(
    monkeypatch, exported, caplog, variables, warned
) -> None:
    monkeypatch.setenv(ENDPOINTS[1], ENDPOINT)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with tracing(Config()) as tracer:
        assert isinstance(tracer, NoTracer)
    assert ("no_traces" in [record.getMessage() for record in caplog.records]) is warned


async def test_without_the_extra_the_option_is_refused_and_the_variables_are_warned_of(monkeypatch, caplog) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="extra `otel`"):
        async with tracing(Config(otel_endpoint=ENDPOINT)):
            pass
    with pytest.raises(ConfigError, match="extra `otel`"):
        load_models(Config(otel_endpoint=ENDPOINT, tokenizer=Path("nowhere")), print)
    monkeypatch.setenv(ENDPOINTS[0], ENDPOINT)
    async with tracing(Config()) as tracer:
        assert isinstance(tracer, NoTracer)
    assert "no_traces" in [record.getMessage() for record in caplog.records]


def test_nothing_of_opentelemetry_is_imported_while_it_is_off() -> None:
    code = "import sys, adapter.serving; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_option_names_the_collector(monkeypatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://elsewhere:1")
    exporter = module._exporter("http://collector:4318/")
    assert exporter._endpoint == "http://collector:4318/v1/traces"
    assert module._exporter(None)._endpoint == "http://elsewhere:1/v1/traces"
