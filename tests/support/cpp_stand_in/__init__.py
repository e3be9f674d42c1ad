"""A stand-in for TensorRT-LLM's C++ model: the scripted model in its dialect, in a real tritonserver.

Its configuration is the one that ``rollserve engine render`` writes, but for the backend; ``stand_in_model.py`` turns what the
scripted model sends into what the C++ model would. It is no TensorRT-LLM, and says nothing about what a GPU computes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Mapping
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
    folder = run_dir / "repository" / MODEL_NAME
    version = folder / "1"
    shutil.copytree(MODELS / "scripted", version, ignore=shutil.ignore_patterns("__pycache__"))
    (version / "model.py").rename(version / "scripted_model.py")
    shutil.copyfile(Path(__file__).with_name("stand_in_model.py"), version / "model.py")
    shutil.copytree(COMMON, version / "common", ignore=shutil.ignore_patterns("__pycache__"))
    (version / "contract.json").write_text(json.dumps(contract_document()))
    told = {"block_size": str(facts.tokens_per_block), **parameters}
    (folder / "config.pbtxt").write_text(config_text(facts, "none", {}, backend="python", more=told))
    settings = {"stop_timeout_s": STOP_TIMEOUT_S, **options}
    async with EmbeddedTriton(TritonOptions(run_dir / "repository", run_dir, **settings)) as triton:
        yield triton
