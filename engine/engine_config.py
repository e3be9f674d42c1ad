"""The model repository of TensorRT-LLM's C++ backend, for an engine that was built with its 1.2 line: ``config.pbtxt`` and no code.

``model_repo/tensorrt_llm_engine/model.json`` has its tensors and parameters, those of
``triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt`` (TensorRT-LLM 1.2) as far as text models use them; dims
are without the batch dimension. Its defaults are ours where they are not the backend's: KV cache reuse and chunked prefill on, for
agents send their history again and again; cancels are seen within 10 ms; no KV cache on the host (TensorRT-LLM #8813).

``engine.engine_parameters`` says what may be set. What the backend does not know, it ignores: the parameters
``log_probs_streaming``, ``log_prob_mode``, ``max_seq_len``, ``vocab_size``, ``tokens_per_block``, ``weight_version`` and
``guided_decoding`` are for ``engine.probe``.

Fixed by what is recorded: ``normalize_log_probs`` is false, or log probs would be renormalised over the top k; one beam, or the
knobs of sampling would do nothing; the model is decoupled, or nothing would stream. Not tried on a GPU.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engine.contract import MODEL_NAME
from engine.engine_parameters import EMPTY, FIXED, QUEUE_SIZE, ModelTable, offers_guides
from engine.errors import RepositoryError

BACKEND = "tensorrtllm"

_PLAIN = ("guided_decoding_guide_type", "guided_decoding_guide")
"""Inputs of one element that the backend takes as they come; the others of one element are reshaped to scalars."""

GUIDES = "json,json_schema,regex,ebnf_grammar"
"""What the backend decodes by, where it has a guided decoding backend."""

_MARK = "rendered-by-rollserve"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Of a built engine, or as the user says. In tokens, but for ``max_batch_size``; 0 tokens a block: reuse is not reported."""

    max_seq_len: int
    vocab_size: int
    max_batch_size: int
    tokens_per_block: int = 0


def read_engine(engine_dir: Path) -> EngineFacts:
    """From the ``config.json`` that ``trtllm-build`` leaves beside the engine. Raises: RepositoryError."""
    file = engine_dir / "config.json"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        build = document["build_config"]
        return EngineFacts(
            max_seq_len=int(build["max_seq_len"]),
            vocab_size=int(document["pretrained_config"]["vocab_size"]),
            max_batch_size=int(build["max_batch_size"]),
            tokens_per_block=int(build.get("plugin_config", {}).get("tokens_per_block", 0)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RepositoryError(
            f"{file} does not tell build_config.max_seq_len, build_config.max_batch_size and pretrained_config.vocab_size "
            f"({error!r}); is {engine_dir} a folder that trtllm-build wrote?"
        ) from error


def render_engine(
    engine_dir: Path, target: Path, settings: Mapping[str, str] | None = None, *, weight_version: int = 0
) -> Path:
    """Write the model repository ``target`` for the engine in ``engine_dir``; what an earlier call wrote there is replaced.

    Raises: RepositoryError, if the engine cannot be read, a setting is unknown or fixed, or the target holds something else.
    """
    text = config_text(
        read_engine(engine_dir), str(engine_dir.absolute()), settings or {}, weight_version=weight_version
    )
    folder = target / MODEL_NAME
    if folder.exists():
        if not (folder / _MARK).is_file():
            raise RepositoryError(f"{folder} exists and was not rendered here; choose another target or remove it")
        shutil.rmtree(folder)
    (folder / "1").mkdir(parents=True)
    (folder / _MARK).touch()
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")
    return target


def config_text(
    facts: EngineFacts,
    engine_dir: str,
    settings: Mapping[str, str],
    *,
    weight_version: int = 0,
    backend: str = BACKEND,
    more: Mapping[str, str] | None = None,
) -> str:
    """``config.pbtxt``. ``more`` are parameters of another ``backend``. Raises: RepositoryError."""
    table = ModelTable.read()
    table.check(settings)
    guides = {"guided_decoding": GUIDES} if offers_guides(settings) else {}
    told = {name: str(getattr(facts, name)) for name in ("max_seq_len", "vocab_size", "tokens_per_block")}
    parameters = {
        **EMPTY,
        **table.defaults,
        **{name: value for name, value in settings.items() if name != QUEUE_SIZE},
        **FIXED,
        **guides,
        **told,
        "weight_version": str(weight_version),
        "gpt_model_path": engine_dir,
        **(more or {}),
    }
    config = model_config_pb2.ModelConfig(
        name=MODEL_NAME,
        backend=backend,
        max_batch_size=facts.max_batch_size,
        model_transaction_policy={"decoupled": True},
        dynamic_batching=_batching(facts, settings.get(QUEUE_SIZE)),
        input=[_input(name, *shape, name not in table.required) for name, shape in table.inputs.items()],
        output=[_tensor(name, *shape) for name, shape in table.outputs.items()],
        instance_group=[{"count": 1, "kind": model_config_pb2.ModelInstanceGroup.KIND_CPU}],
        parameters={name: {"string_value": value} for name, value in parameters.items()},
    )
    return str(text_format.MessageToString(config))


def _batching(facts: EngineFacts, queue_size: str | None) -> dict[str, Any]:
    """Without a queue size, as many requests wait as come."""
    policy = {} if queue_size is None else {"default_queue_policy": {"max_queue_size": int(queue_size)}}
    return {"preferred_batch_size": [facts.max_batch_size], "max_queue_delay_microseconds": 0, **policy}


def _input(name: str, kind: str, dims: tuple[int, ...], optional: bool) -> dict[str, Any]:
    more: dict[str, Any] = {"optional": optional}
    if dims == (1,) and name not in _PLAIN:
        more["reshape"] = {"shape": []}
    if -1 in dims:
        more["allow_ragged_batch"] = True
    return {**_tensor(name, kind, dims), **more}


def _tensor(name: str, kind: str, dims: tuple[int, ...]) -> dict[str, Any]:
    return {"name": name, "data_type": f"TYPE_{kind}", "dims": dims}
