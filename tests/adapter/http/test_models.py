"""Several models behind one server: which of them a request means, and what of a session they share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapter.config import Config, ConfigError
from adapter.handles import HandleIds, Handles
from adapter.render.prompt import Renderer
from adapter.served import Loaded, serve
from adapter.serving import engine_parameters
from engine.errors import EngineUnavailable
from tests.support.assets import tokenizer_dir
from tests.support.engine import INFO, Answer, FakeEngine
from tests.support.server import TestServer, serving

END = 151645
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def qwen3() -> Renderer:
    return Renderer.load(tokenizer_dir("qwen3"))


@asynccontextmanager
async def two_models(
    engines: Sequence[FakeEngine], renderers: Sequence[Renderer], **settings: Any
) -> AsyncIterator[TestServer]:
    """``large``, with the adapter ``sql``, and ``small``, which is also called ``tiny``."""
    config = Config(served_model_name="large", lora=("sql=/loras/sql",), **settings)
    small = replace(config, served_model_name="small", lora=(), model_alias=("tiny",), max_context_tokens=100)
    async with serving(engines[0], renderers[0], config, beside=[Loaded(small, engines[1], renderers[1])]) as server:
        yield server


def answering(encode: Any, *texts: str) -> FakeEngine:
    return FakeEngine([Answer([[*encode(text), END]]) for text in texts])


async def ask(server: TestServer, model: str | None, messages: Sequence[dict[str, Any]], status: int = 200) -> Any:
    body = {"model": model, "messages": list(messages)} if model else {"messages": list(messages)}
    async with server.http.post("/s/mine" + CHAT, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def exported(server: TestServer) -> list[dict[str, Any]]:
    async with server.http.post("/v1/sessions/mine/finish") as response:
        return (await response.json())["samples"]


async def opened(server: TestServer, **settings: Any) -> None:
    async with server.http.post("/v1/sessions", json={"sid": "mine", **settings}) as response:
        assert response.status == 201, await response.text()


async def test_a_request_goes_to_the_model_that_it_names(qwen, encode) -> None:
    engines = answering(encode, "a", "b", "c"), answering(encode, "d", "e")
    async with two_models(engines, (qwen, qwen)) as server:
        await opened(server)
        for model in ("large", "sql", None, "small", "tiny"):
            assert (await ask(server, model, HELLO))["model"] == (model or "large")
        refused = await ask(server, "huge", HELLO, status=404)
        async with server.http.get("/v1/models") as response:
            listed = await response.json()
        samples = await exported(server)
    assert [request.lora for request in engines[0].requests] == ["", "sql", ""]
    assert [request.lora for request in engines[1].requests] == ["", ""]
    assert refused["error"]["message"] == "model: there is no model 'huge'; served: large, sql, small, tiny"
    assert refused["error"]["param"] == "model"
    assert {each["id"]: each["inputTokenLimit"] for each in listed["data"]} == {
        "large": INFO.max_seq_len,
        "sql": INFO.max_seq_len,
        "small": 100,
        "tiny": 100,
    }
    trained_by = [turn["model"] for sample in samples for turn in sample["metadata"]["turns"] if turn["trained"]]
    assert sorted(trained_by) == ["large", "large", "small", "small", "sql"]


@pytest.mark.parametrize(("later", "trained"), [(1, ["large", "small"]), (2, ["large"])])
async def test_how_old_tokens_are_is_told_by_the_model_that_sampled_them(qwen, encode, later, trained) -> None:
    """The default model is six versions ahead of the other, which is no reason to drop what the other sampled."""
    engines = answering(encode, "a"), answering(encode, "b")
    engines[0].info, engines[1].info = replace(INFO, weight_version=8), replace(INFO, weight_version=1)
    async with two_models(engines, (qwen, qwen)) as server:
        await opened(server, max_weight_lag=0)
        await ask(server, "large", HELLO)
        await ask(server, "small", HELLO)
        engines[1].info = replace(INFO, weight_version=later)
        samples = await exported(server)
    trained_by = [turn["model"] for sample in samples for turn in sample["metadata"]["turns"] if turn["trained"]]
    assert sorted(trained_by) == trained


async def test_a_session_is_ended_by_the_weights_of_the_model_that_is_asked(qwen, encode) -> None:
    engines = answering(encode, "a", "c"), answering(encode, "b")
    engines[0].info, engines[1].info = replace(INFO, weight_version=1), replace(INFO, weight_version=8)
    async with two_models(engines, (qwen, qwen)) as server:
        await opened(server, max_weight_lag=0, on_weight_lag="end")
        await ask(server, "large", HELLO)
        await ask(server, "small", HELLO)
        engines[0].info = replace(INFO, weight_version=2)
        refused = await ask(server, "large", HELLO, status=410)
    assert "tokens of weight version 1, 1 behind version 2" in refused["error"]["message"]


async def test_an_adapter_goes_on_from_the_ids_of_its_model(qwen, encode) -> None:
    """In a row of its own: other weights sampled it."""
    engine = answering(encode, "one", "two")
    async with two_models((engine, FakeEngine()), (qwen, qwen)) as server:
        await opened(server)
        said = (await ask(server, "large", HELLO))["choices"][0]["message"]
        await ask(server, "sql", [*HELLO, said, {"role": "user", "content": "more"}])
        samples = await exported(server)
    first, second = engine.requests
    known = [*first.prompt_ids.tolist(), *encode("one"), END]
    assert second.prompt_ids.tolist()[: len(known)] == known
    assert [sample["response"] for sample in samples] == ["one<|im_end|>", "two<|im_end|>"]


@pytest.mark.parametrize("policy", ["keep", "template"])
async def test_models_of_other_vocabularies_share_words_only(qwen, qwen3, policy) -> None:
    def tokens(renderer: Renderer, text: str) -> list[int]:
        return renderer.tokenizer.encode(text, add_special_tokens=False).ids

    engines = (
        FakeEngine([Answer([[*tokens(qwen, "one"), END]])]),
        FakeEngine([Answer([[*tokens(qwen3, "two"), END]])]),
    )
    async with two_models(engines, (qwen, qwen3), reasoning_parser="none") as server:
        await opened(server, policy=policy)
        said = (await ask(server, "large", HELLO))["choices"][0]["message"]
        more = [*HELLO, said, {"role": "user", "content": "more"}]
        await ask(server, "small", more)
        async with server.http.get("/v1/sessions/mine/explain") as response:
            reasons = [turn["reason"] for turn in (await response.json())["turns"]]
        samples = await exported(server)
    assert reasons == ["new", "new"]
    assert "one" in qwen3.decode(engines[1].requests[0].prompt_ids.tolist())
    assert [len(sample["metadata"]["turns"]) for sample in samples] == [1, 1]


async def test_count_tokens_counts_for_the_model_named(qwen, encode) -> None:
    async with two_models((FakeEngine(), FakeEngine()), (qwen, qwen)) as server:
        path = "/v1/messages/count_tokens"
        async with server.http.post(path, json={"model": "small", "messages": HELLO}) as response:
            assert (await response.json())["input_tokens"] > 0
        async with server.http.post(path, json={"model": "huge", "messages": HELLO}) as response:
            assert response.status == 404


async def test_each_model_has_its_own_context(qwen, encode) -> None:
    async with two_models((answering(encode, "a"), FakeEngine()), (qwen, qwen)) as server:
        await opened(server)
        long = [{"role": "user", "content": "word " * 100}]
        assert "100" in (await ask(server, "small", long, status=400))["error"]["message"]
        await ask(server, "large", long)


async def test_one_server_is_ready_when_all_its_models_are(qwen) -> None:
    broken = FakeEngine(unavailable=EngineUnavailable("down"))
    async with two_models((FakeEngine(), broken), (qwen, qwen)) as server:
        async with server.http.get("/readyz") as response:
            assert response.status == 503
            assert "small: down" in (await response.json())["reason"]


@pytest.mark.parametrize("other", [{"served_model_name": "large"}, {"model_alias": ("large",)}, {"lora": ("large",)}])
def test_a_name_is_of_one_model(qwen, other) -> None:
    config = Config(served_model_name="large")
    second = replace(Config(served_model_name="small"), **other)
    with pytest.raises(ConfigError, match="two served models are called 'large'"):
        serve([Loaded(config, FakeEngine(), qwen), Loaded(second, FakeEngine(), qwen)], HandleIds(Handles()))


def test_an_adapter_of_the_embedded_engine_needs_its_folder() -> None:
    config = Config(engine_model="scripted", tokenizer=Path("/t"), lora=("sql=/l",))
    assert engine_parameters(config, print)["loras"] == "sql=/l"
    with pytest.raises(ConfigError, match="must have the form NAME=FOLDER"):
        engine_parameters(replace(config, lora=("sql",)), print)
