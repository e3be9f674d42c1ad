"""In a running model repository ``common`` lies beside ``model.py``; here it is ``model_repo/common``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import model_repo.common
from tests.support.llm_api_stand_in import NEW, installed

# An alias, not an entry in sys.path: there, model_repo/transformers would hide the library of that name.
sys.modules["common"] = model_repo.common


@pytest.fixture(scope="module")
def network_module() -> Iterator[Any]:
    """The module of the model behind the stand-in for the LLM API."""
    with installed(NEW):
        yield sys.modules["stand_in_network"]


@pytest.fixture(scope="module")
def llm_dir(network_module: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network_module.write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "first", seed=1)


@pytest.fixture(scope="module")
def network(network_module: Any, llm_dir: Path) -> Any:
    return network_module.Network(llm_dir)
