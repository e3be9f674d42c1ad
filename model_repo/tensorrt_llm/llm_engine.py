"""One ``tensorrt_llm.LLM``: built, asked for replies, given new weights, built again.

Prompts go in as ids. ``cache_salt`` limits the reuse of keys and values to requests with the same salt: it names the adapter and
how often everything was forgotten, so forgetting needs nothing of the engine (the old blocks are the first to be evicted).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from . import checkpoint
from .ipc_weights import load_in_place, local_devices
from .library import Library
from .lora_adapters import Adapters
from .names import Features, read_features
from .sampling import RequestRefused, sampling_params
from .settings import Settings, SettingsError, WeightUpdate
from .tokens import EngineFault


class LlmEngine:
    """``submit`` must be called in a running event loop: the LLM makes its queue for that loop."""

    def __init__(self, library: Library, settings: Settings) -> None:
        """Raises: SettingsError."""
        self.features: Features = read_features(library.names, library.version, settings)
        self._library = library
        self._settings = settings
        self._adapters = Adapters(settings.loras, library)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._salt = 0
        self._check_model_dir()
        self._llm: Any = self._load(settings.model_dir)
        self._guide_end = self._read_guide_end()

    @property
    def updates_in_place(self) -> bool:
        return (
            self._llm is not None
            and bool(local_devices())
            and self._settings.weight_update is not WeightUpdate.RELOAD
            and self._settings.has_ray
            and self.features.collective_rpc
        )

    def submit(self, request: Any) -> Any:
        """The ``RequestOutput`` of a ``common.requests.GenerateRequest``, an asynchronous iterator over its own states.

        Raises: RequestRefused.
        """
        params = sampling_params(request, self._library, self.features, self._guide_end)
        arguments: dict[str, Any] = {
            "inputs": request.prompt_ids.tolist(),
            "sampling_params": params,
            "streaming": True,
        }
        if request.lora:
            arguments["lora_request"] = self._adapters.request(request.lora)
        if self.features.cache_salt and (self._salt or request.lora):
            arguments["cache_salt"] = f"{self._salt}:{request.lora}"
        try:
            return self._llm.generate_async(**arguments)
        except ValueError as error:
            raise RequestRefused(f"TensorRT-LLM refused the request: {error}") from error

    def is_healthy(self) -> bool:
        """Whether its workers are there. A request to workers that are gone would wait for ever."""
        if self._llm is None:
            return False
        if self.features.check_health:
            return bool(self._llm._check_health())
        executor = getattr(self._llm, "_executor", None)
        is_shutdown = getattr(executor, "is_shutdown", None)
        return executor is not None and not (callable(is_shutdown) and is_shutdown())

    def forget_prefixes(self) -> bool:
        """Nothing computed so far is used again. False where the version cannot, short of loading anew."""
        if self.features.cache_salt:
            self._salt += 1
        return self.features.cache_salt or not self._settings.has_reuse

    def check_weights(self, path: Path) -> None:
        """Raises: CheckpointError, if the weights at ``path`` cannot be this model's."""
        files = checkpoint.weight_files(path)
        if not (path / "config.json").is_file():
            checkpoint.check_names(files, self._settings.model_dir)
        elif checkpoint.vocab_size(path) != self._settings.vocab_size:
            raise checkpoint.CheckpointError(f"{path} has a vocabulary of another size")

    def load_in_place(self, path: Path) -> None:
        """Through the workers, which drop their prefixes at its end. Raises: whatever they raise."""
        load_in_place(self._llm, checkpoint.weight_files(path))
        self.forget_prefixes()

    def reload(self, path: Path) -> None:
        """The LLM anew, with the weights at ``path``: there is no room on a GPU for both. Raises: EngineFault."""
        self.close()
        try:
            files = checkpoint.weight_files(path)
            self._llm = self._load(self._whole(path, files))
        except (SettingsError, checkpoint.CheckpointError) as error:
            raise EngineFault(str(error)) from error
        self.forget_prefixes()

    def close(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _check_model_dir(self) -> None:
        try:
            found = checkpoint.vocab_size(self._settings.model_dir)
        except checkpoint.CheckpointError as error:
            raise SettingsError(f"parameter model_dir: {error}") from error
        if found is not None and found != self._settings.vocab_size:
            raise SettingsError(f"parameter vocab_size: {self._settings.vocab_size}, but the model has {found} tokens")

    def _whole(self, path: Path, files: list[Path]) -> Path:
        if (path / "config.json").is_file():
            return path
        self._scratch = tempfile.TemporaryDirectory(prefix="weights-")
        return checkpoint.joined(files, self._settings.model_dir, Path(self._scratch.name))

    def _load(self, model: Path) -> Any:
        own = {"model": str(model), **self._adapters.llm_args()}
        update = self._library.names.get("update_llm_args_with_extra_dict")
        try:
            # Theirs turns tables into the classes that the version wants; where it is gone, LLM does so itself.
            given = dict(self._settings.llm_args)
            arguments = own | given if update is None else update(own, given)
            return self._library["LLM"](**arguments)
        except Exception as error:
            # Whatever is wrong with the arguments, the version says it best: it names the key.
            raise SettingsError(
                f"TensorRT-LLM {self._library.version} could not load {model} (parameters and engine_yaml): {error}"
            ) from error

    def _read_guide_end(self) -> int | None:
        if not self._settings.guides:
            return None
        end = getattr(getattr(self._llm, "tokenizer", None), "eos_token_id", None)
        if not isinstance(end, int):
            raise SettingsError(
                "parameter guided_decoding: the checkpoint's tokenizer has no end token; set it to none"
            )
        return end
