"""A TensorRT engine from a checkpoint, for fleets that still run engines (TensorRT-LLM 1.2 and before): two commands of its own.

    python MODEL_FOLDER/convert_checkpoint.py ...   the checkpoint in TensorRT-LLM's form
    trtllm-build ...                                the engine

Families convert with these scripts of ``examples/models`` in TensorRT-LLM's repository, whose flags were read there in the files of
the 1.2 line; its container has the examples under ``/app/tensorrt_llm``:

    llama                        core/llama/convert_checkpoint.py
    mixtral, exaone              core/llama/convert_checkpoint.py, says core/FAMILY/README.md (no engines of EXAONE 4.0)
    qwen, gpt, internlm2         core/FAMILY/convert_checkpoint.py
    nemotron                     core/gpt/convert_checkpoint.py, says core/nemotron/README.md
    phi                          core/phi/convert_checkpoint.py, which takes no pipeline parallelism
    gemma                        core/gemma/convert_checkpoint.py: --ckpt-type and --world-size, no pipeline parallelism
    deepseek_v2                  contrib/deepseek_v2/convert_checkpoint.py

The flags of ``trtllm-build`` are those of ``tensorrt_llm/commands/build.py`` and ``tensorrt_llm/plugin/plugin.py``. Paged context
attention is what KV cache reuse and chunked prefill need. Not tried on a GPU.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import EngineSetupError

TOKENS_PER_BLOCK = 32
"""Smaller than the 128 of old: a session's prefix is reused in whole blocks."""
DTYPES = ("bfloat16", "float16", "float32")
"""What every script takes."""


@dataclass(frozen=True, slots=True)
class Script:
    """``folder`` is below ``examples/models``. Only gemma's has flags of its own."""

    folder: str
    pipelines: bool = True
    own_flags: bool = False


FAMILIES: Mapping[str, Script] = {
    "llama": Script("core/llama"),
    "qwen": Script("core/qwen"),
    "gemma": Script("core/gemma", pipelines=False, own_flags=True),
    "gpt": Script("core/gpt"),
    "phi": Script("core/phi", pipelines=False),
    "mixtral": Script("core/llama"),
    "deepseek_v2": Script("contrib/deepseek_v2"),
    "nemotron": Script("core/gpt"),
    "exaone": Script("core/llama"),
    "internlm2": Script("core/internlm2"),
}


class BuildFailed(EngineSetupError):
    """TensorRT-LLM is not here, or one of its commands failed; the message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What to build. ``family`` is one of ``FAMILIES``; lengths in tokens."""

    checkpoint: Path
    target: Path
    family: str
    examples: Path = Path("/app/tensorrt_llm/examples")
    dtype: str = "bfloat16"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    max_batch_size: int = 64
    max_num_tokens: int = 8192
    max_seq_len: int = 32768

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise BuildFailed(f"there is no family {self.family!r}; there are {', '.join(FAMILIES)}")
        if self.dtype not in DTYPES:
            raise BuildFailed(f"the dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        if self.pipeline_parallel > 1 and not FAMILIES[self.family].pipelines:
            raise BuildFailed(
                f"{self.family}'s conversion script takes no pipeline parallelism: use tensor parallelism"
            )

    @property
    def converted(self) -> Path:
        """Where the checkpoint in TensorRT-LLM's form goes."""
        return self.target / "checkpoint"

    @property
    def engine(self) -> Path:
        return self.target / "engine"

    @property
    def script(self) -> Path:
        return self.examples / "models" / FAMILIES[self.family].folder / "convert_checkpoint.py"

    def commands(self) -> tuple[list[str], list[str]]:
        """Conversion, then the build."""
        convert = [sys.executable, str(self.script)]
        convert += ["--model_dir", str(self.checkpoint), "--output_dir", str(self.converted), "--dtype", self.dtype]
        if FAMILIES[self.family].own_flags:
            convert += ["--ckpt-type", "hf", "--world-size", str(self.tensor_parallel)]
        else:
            convert += ["--tp_size", str(self.tensor_parallel), "--pp_size", str(self.pipeline_parallel)]
        build = ["trtllm-build", "--checkpoint_dir", str(self.converted), "--output_dir", str(self.engine)]
        build += ["--gpt_attention_plugin", "auto", "--gemm_plugin", "auto", "--remove_input_padding", "enable"]
        build += ["--context_fmha", "enable", "--kv_cache_type", "paged", "--use_paged_context_fmha", "enable"]
        build += ["--tokens_per_block", str(TOKENS_PER_BLOCK), "--max_batch_size", str(self.max_batch_size)]
        build += ["--max_num_tokens", str(self.max_num_tokens), "--max_seq_len", str(self.max_seq_len)]
        build += ["--max_beam_width", "1"]
        return convert, build


def build_engine(plan: BuildPlan, tell: Callable[[str], None]) -> Path:
    """Run both commands, whose output goes where ours goes; gives the engine's folder. Raises: BuildFailed."""
    _check_installed(plan)
    plan.target.mkdir(parents=True, exist_ok=True)
    for command in plan.commands():
        tell(f"running {command[0]} {command[1]} ...")
        status = subprocess.run(command, check=False).returncode
        if status:
            raise BuildFailed(f"{' '.join(command)} ended with status {status}")
    return plan.engine


def _check_installed(plan: BuildPlan) -> None:
    if shutil.which("trtllm-build") is None:
        raise BuildFailed(
            "trtllm-build is not installed here: run this in Triton's TensorRT-LLM container (the 1.2 line; later ones build "
            "no engines), or see the commands with --show"
        )
    if not plan.script.is_file():
        raise BuildFailed(
            f"{plan.script} is not there: name the examples folder of TensorRT-LLM's repository with --examples"
        )
    if not plan.checkpoint.is_dir():
        raise BuildFailed(f"the checkpoint {plan.checkpoint} is no folder")
