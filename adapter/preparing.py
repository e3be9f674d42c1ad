"""Before a turn: everything that can be refused, while nothing has been asked of the engine. Changes nothing."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from adapter.admission import Admission
from adapter.config import Config
from adapter.errors import BadRequest, PromptTooLong, from_engine
from adapter.guiding import ensured_guide
from adapter.ids import ReplyIds
from adapter.prompting import for_policy
from adapter.sampling import EffectiveSampling, effective_sampling
from adapter.served import ServedModel, ServedModels
from adapter.sessions import Session
from adapter.turn import Turn
from adapter.types import ChatRequest, Label
from adapter.watching import TurnWatch, Watching
from engine.errors import EngineError
from engine.types import Engine, GenerateRequest


@dataclass(frozen=True, slots=True)
class TurnServices:
    """What every turn needs; built once at start."""

    config: Config
    models: ServedModels
    ids: ReplyIds
    admission: Admission
    watching: Watching

    @classmethod
    def build(
        cls, config: Config, models: ServedModels, ids: ReplyIds, watching: Watching | None = None
    ) -> TurnServices:
        admission = Admission(config.max_running_turns, config.max_queued_turns, config.max_queue_wait_s)
        return cls(config, models, ids, admission, watching or Watching())


async def count_prompt_tokens(services: TurnServices, session: Session | None, request: ChatRequest) -> int:
    """The exact length of the prompt that ``request`` would send now. Raises: BadRequest, NotFound."""
    prompting = services.models.find(request.model).prompting
    if session is None:
        return int((await prompting.full_prompt(for_policy(services.config.history_policy, request))).size)
    request = for_policy(session.trajectory.policy, request)
    return int((await prompting.prompt(session, request)).ids.size)


async def prepare_turn(
    services: TurnServices,
    session: Session,
    number: int,
    request: ChatRequest,
    label: Label,
    watch: TurnWatch,
    choice: int = 0,
) -> Turn:
    """Everything that can be refused before the engine is asked. Raises: AdapterError.

    ``choice`` counts the replies to one request: each has the seed of the one before plus one.
    """
    model = services.models.find(request.model)
    await _connect(model.engine)
    session.check_weight_lag(model.name, model.engine.info.weight_version)
    request = model.prompting.told(for_policy(session.trajectory.policy, request))
    sampling = effective_sampling(services.config, session.settings.sampling, request, secrets.randbits(63), choice)
    prompt = await model.prompting.prompt(session, request)
    generate = GenerateRequest(
        request_id=services.ids.new("gen_", 24),
        prompt_ids=prompt.ids,
        max_tokens=_token_limit(services.config, model, session, sampling, int(prompt.ids.size)),
        sampling=sampling.params,
        end_ids=model.renderer.end_ids,
        guide=await ensured_guide(model.prompting, request, prompt, model.engine.info.guides),
        lora=model.lora,
        session=session.sid,
        turn=number,
    )
    return Turn(model, session, request, label, prompt, generate, sampling, watch)


async def _connect(engine: Engine) -> None:
    """An engine that cannot be reached is known before anything is streamed. Raises: Unavailable."""
    try:
        await engine.connect()
    except EngineError as error:
        raise from_engine(error) from error


def _token_limit(
    config: Config, model: ServedModel, session: Session, sampling: EffectiveSampling, prompt_tokens: int
) -> int:
    """Output tokens that fit. Raises: PromptTooLong, TooManyRequests; BadRequest, if ``min_tokens`` do not fit."""
    context = min(session.settings.max_context_tokens or model.context_tokens, model.context_tokens)
    if prompt_tokens >= context:
        raise PromptTooLong(prompt_tokens, context)
    left = session.tokens_left(config)
    limit = min(sampling.max_tokens, context - prompt_tokens, *([] if left is None else [left]))
    if sampling.params.min_tokens > limit:
        message = f"min_tokens is {sampling.params.min_tokens}, but only {limit} tokens may be sampled"
        raise BadRequest(message, field="min_tokens")
    return limit
