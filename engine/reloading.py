"""New weights for a model that cannot swap them itself: Triton loads it again with another configuration.

TensorRT-LLM's C++ model reads its engine when it is loaded, from the folder in its parameter ``gpt_model_path``. So it is
unloaded, which lets its requests end and frees the memory, and loaded with the new folder and ``weight_version`` in its
configuration (Triton's model repository extension, the load parameter ``config``). Where that fails, the old configuration is
loaded again, and the old weights go on.

Triton takes such requests only where it was started with ``--model-control-mode=explicit``. A restarted server knows only what
its repository's ``config.pbtxt`` says; it is given the newer weights at the endpoint's next trial.
"""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf import json_format

from engine.channel import messages
from engine.errors import EngineError, EngineFailed, EngineRejected, EngineUnavailable
from engine.failures import from_rpc
from engine.weights import Weights

ENGINE_DIR = "gpt_model_path"
VERSION = "weight_version"
_LIMITS = ("vocab_size", "max_seq_len")

_NOT_EXPLICIT = "explicit model load / unload is not allowed"
"""Triton core, model_repository_manager.cc and server.cc: said in every other mode."""


class Reloading:
    """One model on one server. ``stub`` is Triton's; ``timeout_s`` is for a load, which reads the whole engine."""

    def __init__(self, stub: Any, address: str, model: str, timeout_s: float) -> None:
        self._stub = stub
        self._address = address
        self._model = model
        self._timeout_s = timeout_s

    async def weights(self) -> Weights:
        """Those in force, as the configuration says. Raises: EngineError."""
        return _weights(await self._config())

    async def stats(self) -> dict[str, Any]:
        """What the configuration says of the model, in the form of an answer to ``stats``; ``configuration`` are the parameters
        that an update does not change. Raises: EngineError."""
        config = await self._config()
        parameters = {name: value.string_value for name, value in config.parameters.items()}
        limits = {name: int(parameters[name]) for name in _LIMITS if parameters.get(name, "").isdigit()}
        lasting = {name: text for name, text in parameters.items() if name not in (VERSION, ENGINE_DIR)}
        return {**weights_document(_weights(config)), **limits, "configuration": lasting}

    async def update(self, weights: Weights) -> None:
        """Put ``weights`` in force; without a path the engine's folder is read again, where another engine may lie by now.

        Nothing happens if they are in force. Raises: EngineError; then the old ones are in force, unless it says otherwise.
        """
        config = await self._loaded_config()
        in_force = _weights(config)
        if in_force.version == weights.version and weights.path in (None, in_force.path):
            return
        if in_force.version == weights.version:
            raise EngineRejected(f"version {weights.version} are the weights of {in_force.path}; give others another")
        old = json_format.MessageToJson(config, preserving_proto_field_name=True)
        config.parameters[VERSION].string_value = str(weights.version)
        if weights.path is not None:
            config.parameters[ENGINE_DIR].string_value = weights.path
        await self._unload()
        try:
            await self._load(json_format.MessageToJson(config, preserving_proto_field_name=True))
        except EngineError as error:
            await self._go_back(old, error)

    async def _go_back(self, old: str, error: EngineError) -> None:
        """Raises: EngineFailed."""
        try:
            await self._load(old)
        except EngineError as again:
            raise EngineFailed(f"{error}; and the old weights cannot be loaded again: {again}") from error
        raise EngineFailed(f"{error}; the old weights were loaded again") from error

    async def _loaded_config(self) -> Any:
        """A model that an update left unloaded is loaded as its repository says."""
        try:
            return await self._config()
        except EngineUnavailable:
            await self._load("")
            return await self._config()

    async def _config(self) -> Any:
        try:
            answer = await self._stub.ModelConfig(
                messages.ModelConfigRequest(name=self._model), timeout=self._timeout_s
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self._address, sampled=False) from error
        return answer.config

    async def _unload(self) -> None:
        request = messages.RepositoryModelUnloadRequest(model_name=self._model)
        await self._ask(self._stub.RepositoryModelUnload, request)

    async def _load(self, config: str) -> None:
        """With this configuration; with that of the repository if it is empty."""
        request = messages.RepositoryModelLoadRequest(model_name=self._model)
        if config:
            request.parameters["config"].string_param = config
        await self._ask(self._stub.RepositoryModelLoad, request)

    async def _ask(self, method: Any, request: Any) -> None:
        try:
            await method(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            if _NOT_EXPLICIT in (error.details() or ""):
                raise EngineRejected(
                    f"Triton at {self._address} loads no model on demand; start it with --model-control-mode=explicit and "
                    f"--load-model={self._model}, or restart it with the new engine"
                ) from error
            raise from_rpc(error, self._address, sampled=False) from error


def weights_document(weights: Weights) -> dict[str, Any]:
    """In the form of an answer to a control request."""
    return {"weight_version": weights.version, "path": weights.path}


def _weights(config: Any) -> Weights:
    version, folder = (config.parameters[name].string_value for name in (VERSION, ENGINE_DIR))
    return Weights(int(version) if version.isdigit() else 0, folder or None)
