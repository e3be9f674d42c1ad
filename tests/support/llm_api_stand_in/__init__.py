"""A stand-in for TensorRT-LLM's LLM API: names and behaviour are those of its documentation and sources, the model is a tiny one on
the CPU. It is no TensorRT-LLM, and says nothing about what a GPU computes.

    flavour_1_2/tensorrt_llm   the surface of the 1.2 line: one log prob mode, no penalties, one generator for all requests
    flavour_1_4/tensorrt_llm   that of the 1.4 line: ``logprobs_mode``, ``logprobs_simple_format``, penalties, seeds by request
    shared/stand_in_*.py       what both are made of

Only tests put a flavour on the path: ``installed`` in this process, ``server_models`` in a tritonserver's.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from engine.repository import MODELS

_FOLDER = Path(__file__).parent
OLD, NEW = "flavour_1_2", "flavour_1_4"


def server_models(flavour: str, target: Path) -> Path:
    """A folder of models for ``running_triton``: ours over TensorRT-LLM, which finds the flavour (Triton ignores PYTHONPATH)."""
    folder = target / "tensorrt_llm"
    shutil.copytree(MODELS / "tensorrt_llm", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "model.py").rename(folder / "real_model.py")
    found = [str(path) for path in _folders(flavour)]
    (folder / "model.py").write_text(
        f"import sys\n\nsys.path[:0] = {found}\n\nfrom .real_model import TritonPythonModel as TritonPythonModel\n"
    )
    return target


@contextmanager
def installed(flavour: str) -> Iterator[ModuleType]:
    """The flavour as the module ``tensorrt_llm`` of this process."""
    folders = [str(folder) for folder in _folders(flavour)]
    before = _take_modules()
    sys.path[:0] = folders
    try:
        yield importlib.import_module("tensorrt_llm")
    finally:
        for folder in folders:
            sys.path.remove(folder)
        _take_modules()
        sys.modules.update(before)


def _take_modules() -> dict[str, ModuleType]:
    """Those of a flavour, out of ``sys.modules``: one may be installed within another."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "tensorrt_llm"}


def _folders(flavour: str) -> tuple[Path, Path]:
    return _FOLDER / flavour, _FOLDER / "shared"
