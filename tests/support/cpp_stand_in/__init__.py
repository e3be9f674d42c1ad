"""A stand-in for TensorRT-LLM's C++ model: the scripted model in its dialect, in a real tritonserver.

Its configuration is the one that ``rollserve engine render`` writes, but for the backend; ``stand_in_model.py`` turns what the
scripted model sends into what the C++ model would. It is no TensorRT-LLM, and says nothing about what a GPU computes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine.contract import MODEL_NAME, contract_document
from engine.engine_config import EngineFacts, config_text
from engine.launch import EmbeddedTriton, TritonOptions
from engine.repository import COMMON, MODELS
from tests.support.triton import STOP_TIMEOUT_S

FACTS = EngineFacts(max_seq_len=131072, vocab_size=152_000, max_batch_size=8, tokens_per_block=4)


@asynccontextmanager
async def running_cpp_stand_in(
    run_dir: Path, parameters: Mapping[str, str], facts: EngineFacts = FACTS, **options: Any
) -> AsyncIterator[EmbeddedTriton]:
    """``parameters`` are the scripted model's; the tests' ``running_triton`` in the other dialect."""
    told = {"block_size": str(facts.tokens_per_block), **parameters}
    async with running_as_cpp(run_dir, _write_stand_in, told, facts, **options) as triton:
        yield triton


@asynccontextmanager
async def running_as_cpp(
    run_dir: Path,
    write: Callable[[Path], object],
    parameters: Mapping[str, str],
    facts: EngineFacts,
    *,
    weight_version: int = 0,
    **options: Any,
) -> AsyncIterator[EmbeddedTriton]:
    """A Python model that has the C++ one's configuration: ``write`` puts its modules into the folder that it is given."""
    folder = run_dir / "repository" / MODEL_NAME
    (folder / "1").mkdir(parents=True)
    write(folder / "1")
    text = config_text(facts, "none", {}, weight_version=weight_version, backend="python", more=parameters)
    (folder / "config.pbtxt").write_text(text)
    settings = {"stop_timeout_s": STOP_TIMEOUT_S, **options}
    async with EmbeddedTriton(TritonOptions(run_dir / "repository", run_dir, **settings)) as triton:
        yield triton


def _write_stand_in(version: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(MODELS / "scripted", version, ignore=ignore, dirs_exist_ok=True)
    (version / "model.py").rename(version / "scripted_model.py")
    shutil.copyfile(Path(__file__).with_name("stand_in_model.py"), version / "model.py")
    shutil.copytree(COMMON, version / "common", ignore=ignore)
    (version / "contract.json").write_text(json.dumps(contract_document()))
