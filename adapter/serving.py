"""From a configuration to a listening server: the engine's address, the connection, the adapter in front of it.

``up`` runs ``embedded_engine`` around ``adapter_server``; ``serve`` runs ``adapter_server`` in front of somebody else's Triton.
"""

from __future__ import annotations

import gc
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from adapter.access import AccessKeys
from adapter.config import Config, ConfigError
from adapter.configuring import further_models
from adapter.engine_control import EngineControl
from adapter.engines import configured_addresses, engine_pool, is_attached, weight_version
from adapter.handles import HandleIds
from adapter.holding import NoPeers, Peers
from adapter.http.server import Address, Extend, listening
from adapter.http.state import ServerState
from adapter.ids import ReplyIds
from adapter.journaling import Recording, prepared, recording
from adapter.no_effect import check_effects
from adapter.ownership import Ownership
from adapter.parsing import UnknownParser, choose_parsers
from adapter.pausing import Pause
from adapter.preparing import TurnServices
from adapter.render.encoding import Encoder
from adapter.render.prompt import Renderer, TokenizerError
from adapter.served import Loaded, check_names, serve
from adapter.sessions import Sessions
from adapter.speeding_up import speeding_up
from adapter.tracing import Tracer, check_traces, tracing
from adapter.watching import Watching
from engine.assets import demo_model_dir
from engine.errors import EndpointListError
from engine.launch import EmbeddedTriton, TritonOptions
from engine.pool import Pool
from engine.repository import render_repository

logger = logging.getLogger("rollserve")

Tell = Callable[[str], None]
"""Where progress goes, a line at a time."""


STOP_TIMEOUT_S = 5.0
"""For the embedded server, once the adapter has stopped: what still runs there serves nobody."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that listens. ``state`` lets code in this process look at what it holds."""

    url: str
    state: ServerState


def tokenizer_dir(config: Config, tell: Tell) -> Path:
    """The configured tokenizer folder; the model's own, or the demo model's, where none is configured.

    Raises: AssetError, if the demo model cannot be made; ConfigError, if an attached engine leaves the tokenizer open.
    """
    if config.tokenizer or config.model_dir:
        return config.tokenizer or config.model_dir or Path()
    if is_attached(config):
        raise ConfigError("--tokenizer is needed with --triton: the folder with the served model's tokenizer.json")
    return demo_model_dir(tell)


@asynccontextmanager
async def embedded_engine(config: Config, tell: Tell, run_dir: Path) -> AsyncIterator[EmbeddedTriton]:
    """A tritonserver of our own with the configured model, ready. Its files and its log go to ``run_dir``."""
    parameters = engine_parameters(config, tell)
    repository = render_repository(config.engine_model, run_dir / "repository", parameters)
    tell(f"starting Triton with the {config.engine_model} model (log: {run_dir / 'triton.log'})")
    async with EmbeddedTriton(
        TritonOptions(repository, run_dir, env={"HF_HUB_OFFLINE": "1"}, stop_timeout_s=STOP_TIMEOUT_S)
    ) as triton:
        tell(f"Triton is ready on {triton.grpc_address}")
        yield triton


def engine_parameters(config: Config, tell: Tell) -> dict[str, str]:
    """Of the embedded model. Raises: ConfigError; AssetError."""
    parameters = dict(_name_and_value(item) for item in config.engine_setting)
    if config.engine_log is not None:
        parameters["engine_log"] = str(config.engine_log.absolute())
    if config.lora:
        parameters["loras"] = ",".join(map(_lora_folder, config.lora))
    if config.engine_model == "transformers":
        parameters["model_dir"] = str((config.model_dir or demo_model_dir(tell)).absolute())
    else:
        parameters.setdefault("tokenizer_dir", str(tokenizer_dir(config, tell).absolute()))
    return parameters


def _lora_folder(item: str) -> str:
    name, equals, folder = item.partition("=")
    if not equals:
        raise ConfigError(
            f"lora {item!r} must have the form NAME=FOLDER; a name alone is for an engine that runs already"
        )
    return f"{name}={Path(folder).absolute()}"


def _name_and_value(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals:
        raise ConfigError(f"engine_setting {item!r} must have the form NAME=VALUE")
    return name, value


def load_renderer(config: Config, tell: Tell) -> Renderer:
    """Tokenizer and chat template; first of all, since a mistake in these settings should not wait for an engine to start.

    Raises: TokenizerError; UnknownParser; ConfigError, for settings that exclude one another; as ``tokenizer_dir``.
    """
    if is_attached(config) and (folders := [item for item in config.lora if "=" in item]):
        raise ConfigError(
            f"lora {folders[0]!r}: a running Triton loads its adapters itself; give the name that it has loaded one under"
        )
    renderer = Renderer.load(tokenizer_dir(config, tell), config.chat_template, config.end_token)
    choose_parsers(renderer.template.source, config.tool_parser, config.reasoning_parser)
    for warning in renderer.warnings:
        tell(f"warning: {warning}")
    return renderer


@dataclass(frozen=True, slots=True)
class Rendered:
    """A model to serve, as far as it is known without its engine."""

    config: Config
    renderer: Renderer


def load_models(config: Config, tell: Tell) -> tuple[Rendered, ...]:
    """The configured model, and those in its file of further ones. Raises: as ``load_renderer``, ``further_models``,
    ``check_effects``, ``check_names`` and ``configured_addresses``."""
    check_traces(config)
    check_effects(config)
    configs = (config, *further_models(config))
    check_names(configs)
    for each in filter(is_attached, configs):
        with _told_whose(each, config):
            configured_addresses(each)
    loaded = []
    for each in configs:
        with _told_whose(each, config):
            loaded.append(Rendered(each, load_renderer(each, tell)))
    return tuple(loaded)


@contextmanager
def _told_whose(model: Config, server: Config) -> Iterator[None]:
    """Errors of one of the further models name its entry in the file. Raises: ConfigError."""
    try:
        yield
    except (ConfigError, EndpointListError, TokenizerError, UnknownParser) as error:
        if model is server:
            raise
        raise ConfigError(f"[{model.served_model_name}] of {server.models}: {error}") from error


def encoders_of(models: Sequence[Rendered]) -> dict[str, Encoder]:
    """By the model's name."""
    return {model.config.served_model_name: model.renderer.encoder for model in models}


def freeze_heap() -> None:
    """What there is when a server is ready stays: the collector of cycles need not go through it each time, which takes 0.1 s."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """What is one worker's of several: its sessions, its addresses, what is around its handlers."""

    ownership: Ownership = field(default_factory=Ownership)
    own_url: str | None = None
    addresses: tuple[Address, ...] = ()
    extend: Extend = lambda app: None
    peers: Peers = field(default_factory=NoPeers)
    """The other workers."""


@asynccontextmanager
async def adapter_server(
    models: Sequence[Rendered],
    triton: str | Sequence[str],
    ids: ReplyIds | None = None,
    place: WorkerPlace | None = None,
) -> AsyncIterator[RunningServer]:
    """Serve the first of ``models`` in front of the engines at ``triton``, one HOST:PORT or several, the others before theirs.

    Raises: ProbeFailed, if none of them is fit to be served from; one that cannot be reached is waited for while this serves.
    StorageError, if the journal cannot be used.
    """
    place = place or WorkerPlace()
    addresses = [(triton,) if isinstance(triton, str) else triton]
    addresses += [configured_addresses(model.config) for model in models[1:]]
    async with AsyncExitStack() as stack:
        recorded = await stack.enter_async_context(recording(models[0].config, place.ownership.slot))
        loaded = [
            Loaded(model.config, await stack.enter_async_context(engine_pool(model.config, where)), model.renderer)
            for model, where in zip(models, addresses, strict=True)
        ]
        yield await stack.enter_async_context(models_server(loaded, recorded, ids, place))


@asynccontextmanager
async def models_server(
    loaded: Sequence[Loaded], recorded: Recording, ids: ReplyIds | None, place: WorkerPlace
) -> AsyncIterator[RunningServer]:
    """Serve these models; the first one's configuration is the server's. Raises: ConfigError, if traces cannot be sent."""
    async with tracing(loaded[0].config, place.ownership.slot) as tracer:
        state = _state(loaded, recorded, ids, place, tracer)
        await state.engine.join()
        async with listening(state, place.addresses, place.extend) as url:
            try:
                await state.engine.join()
                yield RunningServer(url, state)
            finally:
                await state.engine.close()


def _state(
    loaded: Sequence[Loaded], recorded: Recording, ids: ReplyIds | None, place: WorkerPlace, tracer: Tracer
) -> ServerState:
    config = loaded[0].config
    ids = ids or HandleIds(recorded.handles)
    models = serve(loaded, ids)
    services = TurnServices.build(config, models, ids, Watching(tracer=tracer))
    sessions = Sessions(
        config,
        models.decode,
        lambda name: weight_version(models.sampled_by(name).engine),
        recorded.recorder,
        recorded.recovered,
        place.ownership,
    )
    keys = AccessKeys(config.admin_key, recorded.handles)
    return ServerState(
        services, sessions, _engine_control(loaded, services, recorded, place.peers), place.own_url, keys
    )


def _engine_control(
    loaded: Sequence[Loaded], services: TurnServices, recorded: Recording, peers: Peers
) -> EngineControl:
    engines = {each.config.served_model_name: each.engine for each in loaded if isinstance(each.engine, Pool)}
    return EngineControl(engines, Pause(list(engines.values()), services.admission), recorded.recorder, peers)


@asynccontextmanager
async def configured_engine(config: Config, tell: Tell) -> AsyncIterator[tuple[str, ...]]:
    """The gRPC addresses of the configured Tritons, or of an embedded one that runs meanwhile. Raises: EngineError."""
    if not is_attached(config):
        with tempfile.TemporaryDirectory(prefix="rollserve-") as run_dir:
            async with embedded_engine(config, tell, Path(run_dir)) as triton:
                yield (triton.grpc_address,)
        return
    yield configured_addresses(config)


@asynccontextmanager
async def everything(config: Config, tell: Tell, ids: ReplyIds | None = None) -> AsyncIterator[RunningServer]:
    """The embedded engine, or the configured one, with the adapter in front of it. Raises: as the functions above; ConfigError."""
    models = load_models(config, tell)
    with prepared(config), speeding_up(encoders_of(models)):
        async with (
            configured_engine(config, tell) as triton,
            adapter_server(models, triton, ids) as server,
        ):
            freeze_heap()
            yield server
