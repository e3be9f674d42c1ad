"""A Triton model that answers by script, over the same contract as the real ones: load tests, client tests, fault
tests.

Parameters, besides those of every model: ``script`` (path of the script, see ``script``), ``tokenizer_dir`` (a folder
with ``tokenizer.json``; needed where the script has ``text`` or ``prompt_regex``), and the script's timing by name.
Sampling parameters are validated as by a real model; of them only ``seed`` and ``min_tokens`` change anything.
``control``: ``flush`` empties the simulated prefix cache; ``update_weights`` also changes the version that later tokens carry,
by which rules can answer, while the path is only remembered; ``stats`` adds ``waiting``, ``slots`` and ``cache_tokens``. A script
that is malformed fails the load of the model.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for ``common``: ours, not an installed one

from common.contract import load_contract
from common.front import Front, FrontSettings
from common.parameters import ParameterError, Parameters
from common.triton import TritonReader, TritonSender, warn
from tokenizers import Tokenizer

from .events import EventLoop
from .rules import RuleBook
from .script import Script, ScriptError, Timing, parse_script
from .simulator import Simulator

CRASH_STATUS = 70
"""The exit status of a scripted crash."""


class TritonPythonModel:
    """What Triton's Python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters.from_model_config(args["model_config"])
        settings = FrontSettings.from_parameters(parameters)
        if settings.limits.guides:
            raise ParameterError("parameter guided_decoding: replies are the script's, so it must be none")
        text = _Text(parameters.text("tokenizer_dir", ""))
        script = _load_script(Path(parameters.text("script")), text, _timing_parameters(parameters))
        if script.reads_prompts:
            text.require("prompt_regex")
        self._loop = EventLoop(warn)
        self._simulator = Simulator(
            rules=RuleBook(script, text.decode),
            timing=script.timing,
            limits=settings.limits,
            weight_version=parameters.integer("weight_version", 0),
            schedule=self._loop,
            crash=lambda: os._exit(CRASH_STATUS),
        )
        self._front = Front(load_contract(Path(__file__).parent), settings, self._simulator, warn)
        self._loop.start()
        self._front.start()

    def execute(self, requests: list[Any]) -> None:
        self._front.execute((TritonReader(request), TritonSender(request)) for request in requests)

    def finalize(self) -> None:
        self._loop.close()
        self._simulator.end_all("the model is being unloaded")
        self._front.close()


class _Text:
    """The tokenizer, where there is one."""

    def __init__(self, directory: str) -> None:
        self._tokenizer = Tokenizer.from_file(str(Path(directory) / "tokenizer.json")) if directory else None

    def require(self, what: str) -> Tokenizer:
        if self._tokenizer is None:
            raise ParameterError(f"parameter tokenizer_dir: the script has {what}, which needs a tokenizer")
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.require("text").encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.require("prompt_regex").decode(ids, skip_special_tokens=False))


def _load_script(path: Path, text: _Text, timing: dict[str, float]) -> Script:
    try:
        return parse_script(json.loads(path.read_text(encoding="utf-8")), text.encode, timing)
    except ScriptError as error:
        raise ScriptError(f"{path}: {error}") from error
    except json.JSONDecodeError as error:
        raise ScriptError(f"{path}: not JSON: {error}") from error
    except OSError as error:
        raise ScriptError(f"{path}: {error.strerror}") from error


def _timing_parameters(parameters: Parameters) -> dict[str, float]:
    """Only those that were given."""
    names = Timing.__dataclass_fields__
    return {name: parameters.number(name) for name in names if parameters.text(name, "")}
