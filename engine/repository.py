"""Render ``model_repo/NAME`` into a model repository that a tritonserver can load.

    TARGET/tensorrt_llm/config.pbtxt        from the contract's table, with the parameters of this server
    TARGET/tensorrt_llm/1/model.py ...      the model's own modules, flat
    TARGET/tensorrt_llm/1/common/           model_repo/common
    TARGET/tensorrt_llm/1/contract.json     the table as data: the models import nothing of ours

The Python backend imports the model as the module ``1.model`` and appends the folder ``1`` to ``sys.path``. So both
``from .common.x import y`` (never shadowed by an installed package) and ``from common.x import y`` work in a model.

Parameters. ``COMMON_PARAMETERS`` are understood by every model of ours; a model declares its own in ``parameters.json``
beside its ``model.py``: ``{name: default}``, strings all, ``null`` where the caller must give a value. A name that
nobody declared is an error, so no parameter is ever accepted and ignored. Where a model has a ``model_dir``,
``max_seq_len`` and ``vocab_size`` are read from its ``config.json`` unless given, and there is no guided decoding if it has no
``tokenizer.json``: grammars are over text.

Triton must not batch: ``max_batch_size`` is 1 (it gives each tensor its leading dimension) and there is no dynamic
batcher, so that one request is one ``execute`` and the model does its own continuous batching.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

import model_repo
from engine.contract import INPUTS, MODEL_NAME, OUTPUTS, TensorSpec, contract_document
from engine.errors import RepositoryError

MODELS = Path(model_repo.__file__).parent
"""Where the models of this package lie."""

COMMON = MODELS / "common"

_NO_GUIDES = "none"

COMMON_PARAMETERS: Mapping[str, str | None] = {
    "log_probs_streaming": "delta",
    "log_prob_mode": "raw",
    "max_seq_len": None,
    "vocab_size": None,
    "weight_version": "0",
    "guided_decoding": _NO_GUIDES,
    "loras": "",
    "coalesce_ms": "20",
    "coalesce_per_live_ms": "1",
    "coalesce_max_ms": "100",
    "engine_log": "",
}
"""What every model of ours understands, and its default; ``None`` must be given, an empty ``engine_log`` or ``loras`` is none."""

_CONTRACT_FILE = Path("1") / "contract.json"


def render_repository(model: str, target: Path, parameters: Mapping[str, str], *, models: Path = MODELS) -> Path:
    """Write the model repository ``target`` for the model folder ``models/model`` and return ``target``.

    What an earlier call wrote there is replaced.

    Raises: RepositoryError, if the model is unknown, a parameter is unknown or missing, or the target holds something
    else.
    """
    source = _model_folder(models, model)
    effective = effective_parameters(source, parameters)
    folder = target / MODEL_NAME
    _clear(folder)
    version = folder / "1"
    version.mkdir(parents=True)
    for module in sorted(source.glob("*.py")):
        shutil.copyfile(module, version / module.name)
    shutil.copytree(COMMON, version / "common", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / _CONTRACT_FILE).write_text(json.dumps(contract_document(), indent=2) + "\n", encoding="utf-8")
    (folder / "config.pbtxt").write_text(_config_text(effective), encoding="utf-8")
    return target


def effective_parameters(source: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The given parameters over the defaults of the model folder ``source``.

    Raises: RepositoryError, if one is unknown or one without a default is missing.
    """
    declared = {**COMMON_PARAMETERS, **_declared_parameters(source)}
    unknown = sorted(set(given) - set(declared))
    if unknown:
        raise RepositoryError(
            f"the model {source.name} has no parameter {', '.join(unknown)}; it has {', '.join(sorted(declared))}"
        )
    known = {name: value for name, value in declared.items() if value is not None} | dict(given)
    if model_dir := known.get("model_dir"):
        known = _limits_of_checkpoint(Path(model_dir)) | known
        if "guided_decoding" not in given and not (Path(model_dir) / "tokenizer.json").is_file():
            known["guided_decoding"] = _NO_GUIDES
    missing = sorted(set(declared) - set(known))
    if missing:
        raise RepositoryError(f"the model {source.name} needs a value for {', '.join(missing)}")
    return {name: known[name] for name in declared}


def available_models(models: Path = MODELS) -> list[str]:
    """The names of the model folders that can be rendered."""
    return sorted(path.parent.name for path in models.glob("*/model.py"))


def _model_folder(models: Path, model: str) -> Path:
    if model not in available_models(models):
        raise RepositoryError(
            f"no model {model!r}; there are {', '.join(available_models(models)) or 'none'} in {models}"
        )
    return models / model


def _declared_parameters(source: Path) -> dict[str, str | None]:
    path = source / "parameters.json"
    if not path.is_file():
        return {}
    declared = _read_json_object(path)
    wrong = [name for name, value in declared.items() if not isinstance(value, str | None)]
    if wrong:
        raise RepositoryError(f"{path}: the default of {', '.join(wrong)} must be a string or null")
    return declared


def _limits_of_checkpoint(model_dir: Path) -> dict[str, str]:
    """``max_seq_len`` and ``vocab_size`` of the checkpoint's ``config.json``, nested in ``text_config`` or not."""
    path = model_dir / "config.json"
    if not path.is_file():
        raise RepositoryError(f"model_dir {model_dir} has no config.json; is it a transformers checkpoint?")
    config = _read_json_object(path)
    text_config = config.get("text_config")
    if isinstance(text_config, dict):
        config = config | text_config
    names = {"max_seq_len": "max_position_embeddings", "vocab_size": "vocab_size"}
    return {ours: str(config[theirs]) for ours, theirs in names.items() if isinstance(config.get(theirs), int)}


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RepositoryError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise RepositoryError(f"{path} does not hold a JSON object")
    return document


def _clear(folder: Path) -> None:
    """Remove what an earlier rendering left; anything else is the user's, and stays."""
    if not folder.exists():
        return
    if not (folder / _CONTRACT_FILE).is_file():
        raise RepositoryError(f"{folder} exists and was not rendered here; choose another target or remove it")
    shutil.rmtree(folder)


def _config_text(parameters: Mapping[str, str]) -> str:
    config = model_config_pb2.ModelConfig(
        name=MODEL_NAME,
        backend="python",
        max_batch_size=1,
        model_transaction_policy={"decoupled": True},
        input=[_tensor_config(spec, optional=spec.optional) for spec in INPUTS],
        output=[_tensor_config(spec) for spec in OUTPUTS],
        instance_group=[{"count": 1, "kind": model_config_pb2.ModelInstanceGroup.KIND_CPU}],
        parameters={name: {"string_value": value} for name, value in parameters.items()},
    )
    return str(text_format.MessageToString(config))


def _tensor_config(spec: TensorSpec, **more: bool) -> dict[str, Any]:
    kind = "STRING" if spec.dtype == "BYTES" else spec.dtype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": spec.dims, **more}
