"""What does the server at this address speak, and may its tokens be trained on?

The probe asks, it never guesses: first the model's metadata and configuration, which say what dialect it speaks, then one short
real generation at temperature 1, whose log probs must be as many as the ids, finite, not above 0 and not all 0. A model that
fails is refused with the reason and what to do about it, before any agent's turn is spent on it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
import numpy as np

from engine import cumulative
from engine.channel import messages, open_channel, open_stub
from engine.client import ClientOptions, TritonClient
from engine.contract import CONTROL_OUTPUTS, GENERATE_OUTPUTS, INPUTS, MODEL_NAME, OUTPUTS
from engine.errors import EngineProtocolError, EngineRejected, EngineUnavailable, ProbeFailed
from engine.failures import from_rpc
from engine.types import Dialect, EngineInfo, GenerateRequest, GuideKind, LogProbMode, SamplingParams, TokenChunk

PROBE_SESSION = "rollserve-probe"
"""The session name of the trial generation, as the engine log has it."""

NO_GUIDES = "none"
"""What the parameter ``guided_decoding`` of a model without it says."""

CPP_BACKEND = "tensorrtllm"
"""The name of TensorRT-LLM's own backend in Triton."""

_STREAMED = {Dialect.DELTA: "streamed as deltas", Dialect.CUMULATIVE: "streamed as all so far"}
_TRIAL_PROMPT_TOKENS = 8
_TRIAL_TOKENS = 24
_JUDGED_TOKENS = 16
"""From this many tokens on, log probs that are all 0 are none: a few exact zeros are normal in float32."""

_USE_OURS = "serve one of the models of model_repo (rollserve up starts one)"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked and found in order: ``subject`` in a word or two, ``detail`` what was seen."""

    subject: str
    detail: str


Report = Callable[[Finding], None]


def _no_report(finding: Finding) -> None:
    del finding


async def probe(
    address: str,
    *,
    model: str = MODEL_NAME,
    options: ClientOptions | None = None,
    report: Report = _no_report,
) -> EngineInfo:
    """Examine ``model`` on the Triton server at ``address`` (``host:port``). ``report`` gets each finding as it is
    made.

    Raises: ProbeFailed, if it must not be served from; EngineUnavailable, if it is not there or not ready;
    EngineTimeout or EngineFailed, if the trial generation broke.
    """
    options = options or ClientOptions()
    description = await _describe(address, model, options)
    report(Finding("server", f"{description.server} at {address}"))
    _check_tensors(description)
    report(Finding("model", f"{model}, backend {description.backend}: the contract's tensors, decoupled"))
    info = _read_parameters(description)
    report(Finding("log probs", f"{info.log_prob_mode}, {_STREAMED[info.dialect]}"))
    report(Finding("limits", f"{info.max_seq_len} tokens, a vocabulary of {info.vocab_size}"))
    report(Finding("guided decoding", ", ".join(sorted(info.guides)) or NO_GUIDES))
    version = await _try_generation(address, info, options, report)
    return replace(info, weight_version=version)


@dataclass(frozen=True, slots=True)
class _Description:
    """What the server says about the model. Tensors are by name, in Triton's dtypes."""

    server: str
    model: str
    backend: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    decoupled: bool
    parameters: Mapping[str, str]


async def _describe(address: str, model: str, options: ClientOptions) -> _Description:
    """Raises: EngineUnavailable."""
    async with open_channel(address) as channel:
        stub = open_stub(channel)
        try:
            server = await stub.ServerMetadata(
                messages.ServerMetadataRequest(), timeout=options.connect_timeout_s, wait_for_ready=True
            )
            timeout_s = options.control_timeout_s
            metadata = await stub.ModelMetadata(messages.ModelMetadataRequest(name=model), timeout=timeout_s)
            answer = await stub.ModelConfig(messages.ModelConfigRequest(name=model), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise _not_there(error, address, model) from error
    config = answer.config
    return _Description(
        server=f"{server.name} (Triton {server.version})",
        model=model,
        backend=config.backend,
        inputs={tensor.name: tensor.datatype for tensor in metadata.inputs},
        outputs={tensor.name: tensor.datatype for tensor in metadata.outputs},
        decoupled=config.model_transaction_policy.decoupled,
        parameters={name: value.string_value for name, value in config.parameters.items()},
    )


def _not_there(error: grpc.aio.AioRpcError, address: str, model: str) -> Exception:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return EngineUnavailable(f"no Triton server answers at {address}; is it running, and is that its gRPC port?")
    failure = from_rpc(error, address, sampled=False)
    if isinstance(failure, EngineUnavailable | EngineRejected):
        return EngineUnavailable(f"{failure}; does the server serve a model named {model}?")
    return failure


def _check_tensors(description: _Description) -> None:
    inputs: Collection[str] = [spec.name for spec in INPUTS]
    outputs: Collection[str] = GENERATE_OUTPUTS + CONTROL_OUTPUTS
    if _dialect(description) is Dialect.CUMULATIVE:
        inputs, outputs = cumulative.INPUTS, cumulative.OUTPUTS
    _check_dtypes("input", {spec.name: spec.dtype for spec in INPUTS if spec.name in inputs}, description)
    _check_dtypes("output", {spec.name: spec.dtype for spec in OUTPUTS if spec.name in outputs}, description)
    if not description.decoupled:
        raise ProbeFailed(
            f"the model {description.model} is not decoupled, so it cannot stream; set model_transaction_policy "
            "{ decoupled: true } in its config.pbtxt"
        )


def _check_dtypes(kind: str, wanted: Mapping[str, str], description: _Description) -> None:
    found = description.inputs if kind == "input" else description.outputs
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ProbeFailed(f"the model {description.model} lacks the {kind} {', '.join(missing)}; {_USE_OURS}")
    wrong = [f"{name} is {found[name]}, not {dtype}" for name, dtype in wanted.items() if found[name] != dtype]
    if wrong:
        raise ProbeFailed(f"the model {description.model} has another {kind} dtype: {'; '.join(wrong)}; {_USE_OURS}")


def _dialect(description: _Description) -> Dialect:
    """The parameter says it; TensorRT-LLM's own C++ backend has but one."""
    its_own = str(Dialect.CUMULATIVE) if description.backend == CPP_BACKEND else None
    streaming = _Parameters(description).text("log_probs_streaming", its_own)
    if streaming not in list(Dialect) or its_own not in (None, streaming):
        expected = its_own or " or ".join(Dialect)
        raise ProbeFailed(f"the parameter log_probs_streaming is {streaming!r}; of this backend it must be {expected}")
    return Dialect(streaming)


def _read_parameters(description: _Description) -> EngineInfo:
    """The model's limits and log-prob mode; the weight version of our own models is not known before the trial."""
    parameters, dialect = _Parameters(description), _dialect(description)
    is_cpp = dialect is Dialect.CUMULATIVE
    mode = parameters.text("log_prob_mode", str(LogProbMode.PROCESSED) if is_cpp else None)
    if mode not in list(LogProbMode):
        raise ProbeFailed(f"the parameter log_prob_mode is {mode!r}; it must be one of {', '.join(LogProbMode)}")
    if is_cpp and parameters.text("normalize_log_probs", "true") != "false":
        raise ProbeFailed(
            f"the model {description.model} renormalises log probs over its top k; set normalize_log_probs to false in its "
            "config.pbtxt (`rollserve engine render` writes one)"
        )
    return EngineInfo(
        model=description.model,
        dialect=dialect,
        tokens_per_block=parameters.count("tokens_per_block", "0") if is_cpp else 0,
        log_prob_mode=LogProbMode(mode),
        max_seq_len=parameters.count("max_seq_len"),
        vocab_size=parameters.count("vocab_size"),
        weight_version=parameters.count("weight_version", "0") if is_cpp else 0,
        guides=_read_guides(parameters.text("guided_decoding", NO_GUIDES)),
        loras=_read_loras(parameters.text("loras", "")),
    )


def _read_guides(listed: str) -> frozenset[GuideKind]:
    """``listed``: kinds of guides with commas between them, or ``none``."""
    names = [] if listed == NO_GUIDES else listed.split(",")
    if unknown := [name for name in names if name not in list(GuideKind)]:
        raise ProbeFailed(
            f"the parameter guided_decoding has {unknown[0]!r}; it lists some of {', '.join(GuideKind)}, or is {NO_GUIDES}"
        )
    return frozenset(GuideKind(name) for name in names)


def _read_loras(listed: str) -> frozenset[str]:
    """The names in ``NAME=FOLDER``, with commas between them."""
    return frozenset(item.partition("=")[0] for item in listed.split(",") if item)


class _Parameters:
    """The model configuration's parameters, each of which must be there unless it has a default."""

    def __init__(self, description: _Description) -> None:
        self._description = description

    def text(self, name: str, default: str | None = None) -> str:
        value = self._description.parameters.get(name, default)
        if value is None:
            raise ProbeFailed(
                f"the configuration of the model {self._description.model} has no parameter {name}; render it with "
                "engine.repository, or add the parameter to its config.pbtxt"
            )
        return value

    def count(self, name: str, default: str | None = None) -> int:
        """A whole number; above 0, unless there is a default."""
        text = self.text(name, default)
        if not (text.isascii() and text.isdigit() and int(text) >= (default is None)):
            raise ProbeFailed(f"the parameter {name} is {text!r}; it must be a positive whole number")
        return int(text)


async def _try_generation(address: str, info: EngineInfo, options: ClientOptions, report: Report) -> int:
    """Sample a few tokens and judge them; the weight version that they came with."""
    chunks: list[TokenChunk] = []
    async with TritonClient(address, info, options) as client:
        try:
            async with aclosing(client.generate(_trial_request(info))) as stream:
                chunks = [chunk async for chunk in stream]
        except EngineProtocolError as error:
            raise ProbeFailed(f"the trial generation contradicts the contract: {error}; {_USE_OURS}") from error
        except EngineRejected as error:
            raise ProbeFailed(f"the model refused a plain trial request: {error}") from error
    ids = np.concatenate([chunk.ids for chunk in chunks])
    log_probs = np.concatenate([chunk.log_probs for chunk in chunks])
    _judge(ids, log_probs)
    report(Finding("trial", f"{len(ids)} tokens, log probs from {log_probs.min():.3g} to {log_probs.max():.3g}"))
    return chunks[-1].weight_version


def _trial_request(info: EngineInfo) -> GenerateRequest:
    """At temperature 1 with nothing cut off, so that log probs are those of the model in either mode."""
    prompt = np.arange(_TRIAL_PROMPT_TOKENS, dtype=np.int32) % info.vocab_size
    max_tokens = min(_TRIAL_TOKENS, info.max_seq_len - len(prompt))
    if max_tokens < 1:
        raise ProbeFailed(f"max_seq_len is {info.max_seq_len}, too short to sample anything")
    is_cpp = info.dialect is Dialect.CUMULATIVE
    return GenerateRequest(
        request_id=f"{PROBE_SESSION}-{secrets.token_hex(8)}",
        prompt_ids=prompt,
        max_tokens=max_tokens,
        sampling=SamplingParams(seed=secrets.randbits(64), min_tokens=0 if is_cpp else max_tokens),
        session=PROBE_SESSION,
    )


def _judge(ids: Any, log_probs: Any) -> None:
    if len(ids) == 0:
        raise ProbeFailed("the trial generation gave no tokens at all; see the server's log")
    if len(ids) >= _JUDGED_TOKENS and not log_probs.any():
        raise ProbeFailed(
            f"the log probs of {len(ids)} tokens sampled at temperature 1 are all 0, so the model does not compute them; "
            f"{_USE_OURS}"
        )
