"""A stand-in for TensorRT-LLM's LLM API: names and behaviour are those of its documentation and sources, the model is a tiny one on
the CPU. It is no TensorRT-LLM, and says nothing about what a GPU computes.

    flavour_1_2/tensorrt_llm   the surface of the 1.2 line: one log prob mode, no penalties, one generator for all requests
    flavour_1_4/tensorrt_llm   that of the 1.4 line: ``logprobs_mode``, ``logprobs_simple_format``, penalties, seeds by request
    shared/stand_in_*.py       what both are made of

Only tests put a flavour on the path: ``installed`` in this process, ``server_environment`` in a tritonserver's.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parent
OLD, NEW = "flavour_1_2", "flavour_1_4"


def server_environment(flavour: str) -> Mapping[str, str]:
    """Variables under which a tritonserver's Python finds the flavour."""
    found = [str(folder) for folder in _folders(flavour)]
    return {"PYTHONPATH": os.pathsep.join([*found, *filter(None, [os.environ.get("PYTHONPATH")])])}


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
