"""What would have no effect is refused by name, on its own and before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapter.config import Config, ConfigError
from adapter.no_effect import check_effects
from adapter.serving import load_models
from adapter.types import Durability

TRITON = {"triton": ("h:1",)}
DIR = Path("/models/small")


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"durability": Durability.NONE, "journal": DIR}, "journal"),
        ({"durability": Durability.NONE, "journal_segment_bytes": 5000}, "journal_segment_bytes"),
        ({"max_queued_turns": 3}, "max_queued_turns"),
        ({"max_queued_turns": 3, "max_queue_wait_s": 3.0}, "max_queued_turns and max_queue_wait_s"),
        ({"advertise_url": "http://h"}, "advertise_url"),
        ({"worker_hang_s": 3.0}, "worker_hang_s"),
        ({**TRITON, "engine_model": "scripted"}, "engine_model"),
        ({**TRITON, "engine_setting": ("a=1",)}, "engine_setting"),
        ({"triton_file": DIR, "engine_log": DIR}, "engine_log"),
        ({**TRITON, "tokenizer": DIR, "model_dir": DIR}, "model_dir"),
        ({"engine_model": "scripted", "tokenizer": DIR, "model_dir": DIR}, "model_dir"),
        ({"engine_setting": ("model_dir=/m",)}, "engine_setting model_dir"),
        ({"engine_setting": ("loras=a=/l",), "lora": ("a=/l",)}, "engine_setting loras"),
        ({"engine_setting": ("engine_log=/l",), "engine_log": DIR}, "engine_setting engine_log"),
    ],
)
def test_a_setting_without_effect_is_refused(settings: dict[str, Any], names: str) -> None:
    for check in (check_effects, lambda config: load_models(config, print)):
        with pytest.raises(ConfigError, match=f"^{names} would have no effect: "):
            check(Config(**settings))


def test_a_parameter_has_one_value() -> None:
    with pytest.raises(ConfigError, match="engine_setting a is given more than once"):
        check_effects(Config(engine_setting=("a=1", "b=2", "a=3")))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"journal": DIR, "journal_segment_bytes": 5000},
        {"max_running_turns": 2, "max_queued_turns": 3, "max_queue_wait_s": 3.0},
        {"workers": 2, "advertise_url": "http://h", "worker_hang_s": 3.0},
        {"engine_model": "scripted", "engine_setting": ("script=/s", "model_dir=/m"), "model_dir": DIR},
        {"tokenizer": DIR, "model_dir": DIR, "engine_log": DIR, "lora": ("a=/l",)},
        {**TRITON, "model_dir": DIR},
        {**TRITON, "tokenizer": DIR},
    ],
)
def test_what_has_one_is_taken(settings: dict[str, Any]) -> None:
    check_effects(Config(**settings))
