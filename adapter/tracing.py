"""Traces of turns for OpenTelemetry: off unless ``--otel-endpoint`` or the standard OTEL_* variables name a collector.

    chat MODEL                from the request until the turn is durable; child of the client's span, by its ``traceparent``
    ├── queue, prepare        see ``metrics.Stage``
    ├── generate              one for each segment, where a generation was continued elsewhere
    ├── commit
    └── journal

Attributes are those of OpenTelemetry's semantic conventions for generative AI (opentelemetry-semantic-conventions 0.66b2,
``gen_ai_attributes.py``), and ``rollserve.*``. No message, tool call or token is in them. Spans are handed to the SDK's batch
processor, which exports in a thread and drops what does not fit: a collector that is slow or gone holds up nothing. With traces off
nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from adapter.config import Config, ConfigError
from adapter.logs import event
from adapter.types import TurnRecord
from engine.types import GenerateRequest

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from opentelemetry.trace import Tracer as OtelTracer

logger = logging.getLogger("rollserve.tracing")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""OpenTelemetry's own variables (specification, "OpenTelemetry Protocol Exporter"); the others are read by its SDK."""

PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SPOKEN = "http/protobuf"

FLUSH_S = 3.0
"""For the last spans, when the server stops."""

PROVIDER = "rollserve"
SPAN_ERROR = "error.type"

_LARGEST = 2**63 - 1
"""OpenTelemetry's integers are int64, seeds are uint64."""


class TurnTrace(Protocol):
    """The trace of one turn."""

    def begin(self, stage: str) -> None: ...

    def end(self, error: BaseException | None = None) -> None: ...

    def prepared(self, request: GenerateRequest, reason: str) -> None: ...

    def first_token(self, seconds: float) -> None: ...

    def committed(self, record: TurnRecord) -> None: ...

    def ended(self, error: str | None) -> None: ...


class Tracer(Protocol):
    """Where turns get their traces from."""

    def turn(self, protocol: str, model: str, headers: Mapping[str, str]) -> TurnTrace: ...


class NoTrace:
    """Of a turn that nobody traces."""

    __slots__ = ()

    def begin(self, stage: str) -> None:
        pass

    def end(self, error: BaseException | None = None) -> None:
        pass

    def prepared(self, request: GenerateRequest, reason: str) -> None:
        pass

    def first_token(self, seconds: float) -> None:
        pass

    def committed(self, record: TurnRecord) -> None:
        pass

    def ended(self, error: str | None) -> None:
        pass


class NoTracer:
    """Traces are off."""

    def __init__(self) -> None:
        self._trace = NoTrace()

    def turn(self, protocol: str, model: str, headers: Mapping[str, str]) -> TurnTrace:
        return self._trace


class SpanTracer:
    """Makes spans of turns with ``tracer``."""

    def __init__(self, tracer: OtelTracer) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    def turn(self, protocol: str, model: str, headers: Mapping[str, str]) -> TurnTrace:
        # What a propagator is given is looked up by lower-case names.
        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        return SpanTrace(self._tracer, self._propagator.extract(carrier), protocol, model)


class SpanTrace:
    """One turn as a span with its stages as children."""

    def __init__(self, tracer: OtelTracer, parent: Context, protocol: str, model: str) -> None:
        from opentelemetry import trace

        self._api = trace
        self._tracer = tracer
        self._turn = tracer.start_span(
            f"chat {model}",
            parent,
            kind=trace.SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": model,
                "rollserve.protocol": protocol,
            },
        )
        self._inside = trace.set_span_in_context(self._turn, parent)
        self._stage: Span | None = None

    def begin(self, stage: str) -> None:
        self._stage = self._tracer.start_span(stage, self._inside)

    def end(self, error: BaseException | None = None) -> None:
        if self._stage is not None:
            if error is not None:
                self._fail(self._stage, getattr(error, "code", type(error).__name__))
            self._stage.end()
            self._stage = None

    def prepared(self, request: GenerateRequest, reason: str) -> None:
        sampling = request.sampling
        self._turn.set_attributes(
            {
                "gen_ai.conversation.id": request.session,
                "gen_ai.response.id": request.request_id,
                "gen_ai.request.max_tokens": request.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.request.top_k": sampling.top_k,
                "gen_ai.request.presence_penalty": sampling.presence_penalty,
                "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
                "gen_ai.usage.input_tokens": len(request.prompt_ids),
                "rollserve.turn": request.turn,
                "rollserve.match": reason,
            }
        )
        if sampling.seed <= _LARGEST:
            self._turn.set_attribute("gen_ai.request.seed", sampling.seed)

    def first_token(self, seconds: float) -> None:
        self._turn.set_attribute("gen_ai.response.time_to_first_chunk", seconds)

    def committed(self, record: TurnRecord) -> None:
        self._turn.set_attributes(
            {
                "gen_ai.response.finish_reasons": (str(record.finish_reason),),
                "gen_ai.usage.output_tokens": len(record.output_ids),
                "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
                "rollserve.weight_versions": tuple(span.version for span in record.versions),
            }
        )

    def ended(self, error: str | None) -> None:
        self.end()
        if error is not None:
            self._fail(self._turn, error)
        self._turn.end()

    def _fail(self, span: Span, error: str) -> None:
        span.set_attribute(SPAN_ERROR, error)
        span.set_status(self._api.StatusCode.ERROR, error)


@asynccontextmanager
async def tracing(config: Config, worker: int = 0) -> AsyncIterator[Tracer]:
    """The tracer that the configuration or the environment asks for. Raises: ConfigError, if it cannot be made."""
    provider = _provider(config, worker)
    if provider is None:
        yield NoTracer()
        return
    try:
        yield SpanTracer(provider.get_tracer("rollserve"))
    finally:
        await _stopped(provider)


def check_traces(config: Config) -> None:
    """Raises: ConfigError, if traces are asked for that cannot be made."""
    if config.otel_endpoint is None:
        return
    try:
        _exporter(config.otel_endpoint)
    except ImportError as error:
        raise ConfigError("--otel-endpoint needs the extra `otel`: pip install 'rollserve[otel]'") from error


def _provider(config: Config, worker: int) -> TracerProvider | None:
    """None where nobody asks for traces. Raises: ConfigError."""
    check_traces(config)
    exporter = _exporter(config.otel_endpoint) if config.otel_endpoint is not None else _exporter_of_variables()
    if exporter is None:
        return None
    sdk: Any = import_module("opentelemetry.sdk.trace")
    export: Any = import_module("opentelemetry.sdk.trace.export")
    resources: Any = import_module("opentelemetry.sdk.resources")
    resource = resources.Resource.create(_resource(worker))
    provider: TracerProvider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return provider


def _exporter_of_variables() -> Any:
    """None where they ask for none; and, since they may be set for every program of a machine, where they cannot be followed."""
    if not any(map(os.environ.get, ENDPOINTS)) or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    spoken = next(filter(None, map(os.environ.get, PROTOCOLS)), SPOKEN)
    if spoken != SPOKEN:
        event(logger, logging.WARNING, "no_traces", reason=f"OTEL_* asks for {spoken}, only {SPOKEN} is spoken")
        return None
    try:
        return _exporter(None)
    except ImportError:
        event(logger, logging.WARNING, "no_traces", reason="OTEL_* is set, but the extra `otel` is not installed")
        return None


def _exporter(endpoint: str | None) -> Any:
    """Raises: ImportError."""
    otlp: Any = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    return otlp.OTLPSpanExporter(endpoint=endpoint and f"{endpoint.rstrip('/')}/v1/traces")


def _resource(worker: int) -> dict[str, str]:
    """What is given here goes before the variables, so a name that they give is left to them."""
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {"service.instance.id": f"worker-{worker}", **({} if named else {"service.name": PROVIDER})}


async def _stopped(provider: TracerProvider) -> None:
    """Send the last spans, unless that takes too long; the thread ends with the process."""
    thread = threading.Thread(target=provider.shutdown, name="last-spans", daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, FLUSH_S)
    if thread.is_alive():
        event(logger, logging.WARNING, "spans_dropped", reason="the collector does not take them")
