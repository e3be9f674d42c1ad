"""Settings that would have no effect beside others: they are refused, since whoever gives one expects something of it."""

from __future__ import annotations

from adapter.config import Config, ConfigError
from adapter.engines import is_attached
from adapter.types import Durability

_DEFAULTS = Config()


def check_effects(config: Config) -> None:
    """Raises: ConfigError, naming the setting and what takes its effect."""
    if config.durability is Durability.NONE:
        _refuse(config, ("journal", "journal_segment_bytes"), "durability is none, so there is no journal")
    if config.max_running_turns is None:
        _refuse(config, ("max_queued_turns", "max_queue_wait_s"), "no turn waits without max_running_turns")
    if config.workers == 1:
        _refuse(config, ("advertise_url", "worker_hang_s"), "they are for several workers, and workers is 1")
    if is_attached(config):
        _refuse(config, ("engine_model", "engine_setting", "engine_log"), "the embedded engine is not used with triton")
    if config.tokenizer is not None and (is_attached(config) or config.engine_model == "scripted"):
        _refuse(config, ("model_dir",), "the tokenizer is given, and no model is loaded from there")
    _check_parameters(config)


def _refuse(config: Config, names: tuple[str, ...], why: str) -> None:
    given = [name for name in names if getattr(config, name) != getattr(_DEFAULTS, name)]
    if given:
        raise ConfigError(f"{' and '.join(given)} would have no effect: {why}; leave it out")


def _check_parameters(config: Config) -> None:
    names = [item.partition("=")[0] for item in config.engine_setting]
    of_options = {
        "model_dir": config.engine_model == "transformers",
        "loras": bool(config.lora),
        "engine_log": config.engine_log is not None,
    }
    for name in names:
        if of_options.get(name, False):
            option = {"loras": "lora"}.get(name, name)
            raise ConfigError(f"engine_setting {name} would have no effect: {option} sets it; leave it out")
        if names.count(name) > 1:
            raise ConfigError(f"engine_setting {name} is given more than once")
