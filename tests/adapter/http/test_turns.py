"""Turns over HTTP, both protocols: the baseline's adapter cases and what a session keeps."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.support.engine import Answer, FakeEngine
from tests.support.sse import data_objects, events_of

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


def finished(text_ids: list[int], end: int = 151645) -> Answer:
    return Answer([[*text_ids[:1]], [*text_ids[1:], end]])


async def finish(server: Any, sid: str) -> dict[str, Any]:
    async with server.http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}) as response:
        assert response.status == 200
        return await response.json()


@pytest.mark.parametrize(
    ("headers", "sid"),
    [
        ({"Authorization": "Bearer b-sid", "x-api-key": "k-sid"}, "b-sid"),
        ({"x-api-key": "k-sid"}, "k-sid"),
        ({}, "default"),
        ({"X-Claude-Code-Session-Id": "cc", "Authorization": "Bearer b-sid"}, "cc"),
        ({"x-session-affinity": "ses_1", "Authorization": "Bearer b-sid"}, "ses_1"),
        ({"thread-id": "t1", "session-id": "root", "Authorization": "Bearer b-sid"}, "t1"),
    ],
)
async def test_session_of_a_messages_request(serve, encode, headers, sid) -> None:
    engine = FakeEngine([finished(encode("ok"))])
    async with serve(engine) as server:
        async with server.http.post(MESSAGES, json={"messages": HELLO, "max_tokens": 7}, headers=headers) as response:
            assert response.status == 200
            assert response.headers["x-rollserve-session"] == sid
        assert engine.requests[0].session == sid


@pytest.mark.parametrize(
    ("headers", "more", "sid"),
    [
        ({"Authorization": "Bearer b"}, {"metadata": {"session_id": "m"}, "user": "u"}, "b"),
        ({}, {"metadata": {"session_id": "m"}, "user": "u"}, "m"),
        ({}, {"user": "u"}, "u"),
        ({}, {}, "default"),
    ],
)
async def test_session_of_a_chat_request(serve, encode, headers, more, sid) -> None:
    engine = FakeEngine([finished(encode("ok"))])
    async with serve(engine) as server:
        async with server.http.post(CHAT, json={"messages": HELLO, **more}, headers=headers) as response:
            assert response.status == 200
        assert engine.requests[0].session == sid


async def test_messages_turn_reaches_the_engine_and_the_sample(serve, encode) -> None:
    ids = encode("done now")
    engine = FakeEngine([Answer([ids], log_probs=[-0.1, -0.2])])
    async with serve(engine, tool_parser="xml") as server:
        body = {"messages": HELLO, "max_tokens": 7}
        async with server.http.post(MESSAGES, json=body, headers={"Authorization": "Bearer x"}) as response:
            reply = await response.json()
        assert reply["type"] == "message"
        assert reply["content"] == [{"type": "text", "text": "done now"}]
        assert reply["stop_reason"] == "end_turn"
        assert engine.requests[0].max_tokens == 7
        samples = (await finish(server, "x"))["samples"]
    assert len(samples) == 1
    assert samples[0]["tokens"][-2:] == ids
    assert samples[0]["loss_mask"] == [1, 1]
    assert samples[0]["rollout_log_probs"] == pytest.approx([-0.1, -0.2])
    assert samples[0]["response"] == "done now"


async def test_chat_turn_reaches_the_engine_and_the_sample(serve, encode) -> None:
    ids = encode("hello")
    engine = FakeEngine([Answer([ids], log_probs=[-0.3])])
    async with serve(engine, tool_parser="xml") as server:
        async with server.http.post(CHAT, json={"messages": HELLO, "max_tokens": 4, "user": "u"}) as response:
            reply = await response.json()
        assert reply["object"] == "chat.completion"
        assert reply["choices"][0]["message"] == {"role": "assistant", "content": "hello"}
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert engine.requests[0].max_tokens == 4
        sample = (await finish(server, "u"))["samples"][0]
    assert sample["tokens"][-1] == ids[0]
    assert sample["loss_mask"] == [1]


async def test_messages_stream_has_every_delta_between_start_and_stop(serve, encode) -> None:
    ids = encode("The whole reply, in several pieces.")
    engine = FakeEngine([Answer([[token] for token in ids])])
    async with serve(engine, tool_parser="xml") as server:
        async with server.http.post(MESSAGES, json={"messages": HELLO, "stream": True}) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            events = events_of(await response.read())
    assert events[0][0] == "message_start"
    assert events[-1][0] == "message_stop"
    texts = [data["delta"]["text"] for name, data in events if name == "content_block_delta"]
    assert len(texts) > 3
    assert "".join(texts) == "The whole reply, in several pieces."


async def test_chat_stream_begins_with_the_role_and_ends_with_done(serve, encode) -> None:
    engine = FakeEngine([finished(encode("hello there"))])
    async with serve(engine, tool_parser="xml") as server:
        async with server.http.post(CHAT, json={"messages": HELLO, "stream": True}) as response:
            objects = data_objects(await response.read())
    assert objects[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert objects[-2]["choices"][0]["finish_reason"] == "stop"
    assert objects[-1] == "[DONE]"


async def test_two_turns_with_a_tool_call_continue_one_session(serve, encode) -> None:
    call = "<tool_call><function=lookup><parameter=query>slime</parameter></function></tool_call>"
    engine = FakeEngine([finished(encode(call)), finished(encode("It is soft."))])
    tool = {"name": "lookup", "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}}}
    async with serve(engine, tool_parser="xml") as server:
        body = {"messages": HELLO, "tools": [tool], "metadata": {"session_id": "s"}}
        async with server.http.post(MESSAGES, json=body) as response:
            first = await response.json()
        assert first["stop_reason"] == "tool_use"
        (block,) = [block for block in first["content"] if block["type"] == "tool_use"]
        assert (block["name"], block["input"]) == ("lookup", {"query": "slime"})
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": "soft"}
        body["messages"] = [
            *HELLO,
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
        ]
        async with server.http.post(MESSAGES, json=body) as response:
            assert response.status == 200
        assert [request.session for request in engine.requests] == ["s", "s"]
        first_prompt, second_prompt = (request.prompt_ids.tolist() for request in engine.requests)
        assert second_prompt[: len(first_prompt)] == first_prompt
        samples = (await finish(server, "s"))["samples"]
    assert samples
    for sample in samples:
        assert len(sample["loss_mask"]) == len(sample["rollout_log_probs"]) == sample["response_length"]
        assert sum(sample["loss_mask"]) >= 1


async def test_turn_limit_is_429(serve, encode) -> None:
    engine = FakeEngine([finished(encode("ok"))])
    async with serve(engine, max_turns=1) as server:
        async with server.http.post(MESSAGES, json={"messages": HELLO}) as response:
            assert response.status == 200
        async with server.http.post(MESSAGES, json={"messages": HELLO}) as response:
            assert response.status == 429
            assert (await response.json())["error"]["type"] == "rate_limit_error"
            assert response.headers["x-should-retry"] == "false"
        assert len(engine.requests) == 1


async def test_pinned_sampling_overrides_the_request_and_says_so(serve, encode) -> None:
    engine = FakeEngine([finished(encode("ok"))])
    async with serve(engine, top_k=11) as server:
        sampling = {"default": {"top_p": 0.5, "seed": 9}, "pinned": {"temperature": 0.25, "max_tokens": 5}}
        async with server.http.post("/v1/sessions", json={"sid": "p", "sampling": sampling}) as response:
            assert response.status == 201
        body = {"messages": HELLO, "temperature": 1.0, "top_p": 0.9, "max_tokens": 50}
        async with server.http.post("/s/p/v1/messages", json=body) as response:
            assert response.status == 200
            assert sorted(response.headers["x-rollserve-pinned"].split(",")) == ["max_tokens", "temperature"]
        sent = engine.requests[0]
    assert (sent.sampling.temperature, sent.sampling.top_p, sent.sampling.top_k, sent.sampling.seed) == (
        0.25,
        0.9,
        11,
        9,
    )
    assert sent.max_tokens == 5


async def test_two_turns_get_different_seeds(serve, encode) -> None:
    engine = FakeEngine([finished(encode("a")), finished(encode("b"))])
    async with serve(engine) as server:
        for _ in range(2):
            async with server.http.post(MESSAGES, json={"messages": HELLO}) as response:
                assert response.status == 200
    assert engine.requests[0].sampling.seed != engine.requests[1].sampling.seed


async def test_max_tokens_never_passes_the_context(serve, encode) -> None:
    engine = FakeEngine([finished(encode("ok"))])
    async with serve(engine, max_context_tokens=100) as server:
        async with server.http.post(MESSAGES, json={"messages": HELLO, "max_tokens": 5000}) as response:
            assert response.status == 200
    assert engine.requests[0].prompt_ids.size + engine.requests[0].max_tokens == 100


@pytest.mark.parametrize(
    ("route", "words", "code"),
    [
        (MESSAGES, "prompt is too long: ", None),
        (CHAT, "maximum context length is 30 tokens", "context_length_exceeded"),
    ],
)
async def test_a_prompt_past_the_context_is_refused_in_words_that_make_clients_compact(
    serve, route, words, code
) -> None:
    engine = FakeEngine()
    async with serve(engine, max_context_tokens=30) as server:
        async with server.http.post(route, json={"messages": [{"role": "user", "content": "word " * 50}]}) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert words in error["message"]
        assert error.get("code") == code
    assert not engine.requests


async def test_a_stop_string_ends_record_and_reply_at_the_token_that_completed_it(serve, encode) -> None:
    ids = encode("one two STOP three four")
    engine = FakeEngine([Answer([ids])])
    async with serve(engine, tool_parser="xml") as server:
        body = {"messages": HELLO, "stop_sequences": ["STOP"], "metadata": {"session_id": "s"}}
        async with server.http.post(MESSAGES, json=body) as response:
            reply = await response.json()
        assert reply["content"] == [{"type": "text", "text": "one two "}]
        assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "STOP")
        sample = (await finish(server, "s"))["samples"][0]
    kept = encode("one two STOP")
    assert sample["tokens"][-sample["response_length"] :] == kept
    assert reply["usage"]["output_tokens"] == len(kept)


async def test_count_tokens_is_the_length_of_the_prompt_that_is_sent(serve, encode) -> None:
    engine = FakeEngine([finished(encode("ok"))])
    async with serve(engine) as server:
        body = {"system": "Be brief.", "messages": HELLO, "tools": [{"name": "t", "input_schema": {"type": "object"}}]}
        async with server.http.post("/v1/messages/count_tokens", json=body) as response:
            counted = (await response.json())["input_tokens"]
        async with server.http.post(MESSAGES, json=body) as response:
            assert (await response.json())["usage"]["input_tokens"] == counted
    assert engine.requests[0].prompt_ids.size == counted


async def test_usage_reports_cached_tokens(serve, encode) -> None:
    answer = finished(encode("ok"))
    answer.cached_tokens = 16
    engine = FakeEngine([answer])
    async with serve(engine) as server, server.http.post(CHAT, json={"messages": HELLO}) as response:
        usage = (await response.json())["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 16
    assert usage["prompt_tokens"] == engine.requests[0].prompt_ids.size


async def test_all_zero_log_probs_are_kept_but_never_trained(serve, encode) -> None:
    ids = encode("a sentence of certainly more than sixteen tokens, so that zeros cannot be chance, can they")
    engine = FakeEngine([Answer([ids], log_probs=[0.0] * len(ids))])
    assert len(ids) >= 16
    async with serve(engine) as server:
        async with server.http.post(MESSAGES, json={"messages": HELLO, "metadata": {"session_id": "z"}}) as response:
            assert response.status == 200
        answer = await finish(server, "z")
    assert answer["samples"] == []
    assert answer["ledger"] == {"sampled": len(ids), "trained": 0, "dropped": {"suspect_logprobs": len(ids)}}


async def test_models_list_serves_both_sdks(serve) -> None:
    async with serve(FakeEngine(), model_alias=("also",)) as server, server.http.get("/v1/models") as response:
        body = orjson.loads(await response.read())
    assert [model["id"] for model in body["data"]] == ["slime-actor", "also"]
    assert body["object"] == "list"
    assert body["has_more"] is False


async def test_one_model_can_be_asked_for(serve) -> None:
    async with serve(FakeEngine()) as server:
        async with server.http.get("/v1/models/slime-actor") as response:
            assert (await response.json())["id"] == "slime-actor"
        async with server.http.get("/v1/models/other") as response:
            assert response.status == 404


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", [MESSAGES, CHAT])
async def test_large_integers_in_arguments_keep_their_digits(serve, encode, route, stream) -> None:
    number = "123456789012345678901234567890"
    call = f'<tool_call>\n{{"name": "add", "arguments": {{"a": {number}}}}}\n</tool_call>'
    async with serve(FakeEngine([finished(encode(call))]), tool_parser="hermes") as server:
        async with server.http.post(route, json={"messages": HELLO, "stream": stream}) as response:
            assert number in (await response.text()).replace("\\", "")
        async with server.http.get("/v1/sessions/default") as response:
            assert number in await response.text()
