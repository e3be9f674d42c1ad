"""The models that are served: which of them a request means, and what its turns need of it.

A *served model* has a name towards clients, and is a model with its own tokenizer and engine, or an adapter (LoRA) of one, with
which it shares both. Weights of one name sampled what is recorded under it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from adapter.config import Config, ConfigError
from adapter.errors import NotFound
from adapter.ids import ReplyIds
from adapter.parsing import choose_parsers
from adapter.prompting import Prompting
from adapter.render.prompt import Renderer
from engine.types import Engine

ANY_NAME = "*"
"""As an alias: whatever a client asks for."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """``lora`` is the adapter's name in the engine, empty for the model itself; ``max_context_tokens`` bounds the engine's."""

    name: str
    engine: Engine
    prompting: Prompting
    max_context_tokens: int | None = None
    lora: str = ""

    @property
    def renderer(self) -> Renderer:
        return self.prompting.renderer

    @property
    def context_tokens(self) -> int:
        """Prompt and output together."""
        return min(self.max_context_tokens or self.engine.info.max_seq_len, self.engine.info.max_seq_len)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is there, with its own settings."""

    config: Config
    engine: Engine
    renderer: Renderer


class ServedModels:
    """At least one model; the first is what a request without a name means."""

    def __init__(self, models: Sequence[ServedModel], aliases: Mapping[str, str] | None = None) -> None:
        """``aliases`` give other names of models; ``ANY_NAME`` is whose they are that are no name."""
        self._models = {model.name: model for model in models}
        self._aliases = dict(aliases or {})
        self.default = models[0]

    def find(self, name: str | None) -> ServedModel:
        """The model that a client means. Raises: NotFound, which lists what there is."""
        found = self.default if name is None else self._known(name)
        if found is None:
            raise NotFound(f"there is no model {name!r}; served: {', '.join(self.names())}", field="model")
        return found

    def decode(self, name: str, ids: list[int]) -> str:
        """The text of ids that the model of that name sampled; of the default one where it is not served any more."""
        return self.sampled_by(name).renderer.decode(ids)

    def sampled_by(self, name: str) -> ServedModel:
        """The model of that name; the default one where it is not served any more."""
        return self._known(name) or self.default

    def names(self) -> list[str]:
        """What clients can ask for."""
        return [*self._models, *(alias for alias in self._aliases if alias != ANY_NAME)]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)

    def _known(self, name: str) -> ServedModel | None:
        own = self._aliases.get(name) or self._aliases.get(ANY_NAME, "")
        return self._models.get(name) or self._models.get(own)


def serve(loaded: Sequence[Loaded], ids: ReplyIds) -> ServedModels:
    """All that clients can ask for. Raises: UnknownParser; ConfigError, as ``check_names``."""
    check_names([each.config for each in loaded])
    models = [model for each in loaded for model in _with_adapters(each, ids)]
    if len(models) > 1:
        models = [replace(model, prompting=_apart(model.prompting, loaded)) for model in models]
    aliases = {alias: each.config.served_model_name for each in loaded for alias in each.config.model_alias}
    return ServedModels(models, aliases)


def check_names(configs: Sequence[Config]) -> None:
    """Of models, adapters and aliases. Raises: ConfigError, if two have one name, or one has none."""
    names = [name for config in configs for name in (config.served_model_name, *_adapters(config), *config.model_alias)]
    if not all(names):
        raise ConfigError(
            "a name in served_model_name, model_alias, lora or models is empty; clients ask for a model by its name"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"two served models are called {twice[0]!r}; see served_model_name, model_alias, lora and models"
        )


def _with_adapters(loaded: Loaded, ids: ReplyIds) -> list[ServedModel]:
    config, renderer = loaded.config, loaded.renderer
    parsers = choose_parsers(renderer.template.source, config.tool_parser, config.reasoning_parser)
    prompting = Prompting(config.served_model_name, renderer, parsers, ids)
    model = ServedModel(prompting.model, loaded.engine, prompting, config.max_context_tokens)
    return [
        model,
        *(replace(model, name=name, lora=name, prompting=replace(prompting, model=name)) for name in _adapters(config)),
    ]


def _adapters(config: Config) -> list[str]:
    """Their names."""
    return [item.partition("=")[0] for item in config.lora]


def _apart(prompting: Prompting, loaded: Sequence[Loaded]) -> Prompting:
    """What a model's ids mean, by the name of the model whose tokenizer it is."""
    own = next(each.config.served_model_name for each in loaded if each.renderer is prompting.renderer)
    return replace(prompting, vocabulary=own)
