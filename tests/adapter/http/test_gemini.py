"""The Gemini API over HTTP: its routes, its two kinds of stream, its errors, and what clients do to their history."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from engine.errors import EngineFailed, EngineUnavailable
from tests.support.engine import Answer, FakeEngine
from tests.support.sse import data_objects

MODEL = "/v1beta/models/slime-actor"
BODY = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
TOOLS = [
    {
        "functionDeclarations": [
            {"name": "read", "parameters": {"type": "OBJECT", "properties": {"p": {"type": "STRING"}}}}
        ]
    }
]
CALL = '<tool_call>\n{"name": "read", "arguments": {"p": "a"}}\n</tool_call><|im_end|>'


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def parts_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    return reply["candidates"][0]["content"]["parts"]


@pytest.mark.parametrize("version", ["v1beta", "v1"])
async def test_a_whole_reply(serve, encode, version) -> None:
    async with serve(FakeEngine([Answer([encode("hello<|im_end|>")], cached_tokens=4)])) as server:
        async with server.http.post(f"/{version}/models/slime-actor:generateContent", json=BODY) as response:
            assert (response.status, response.content_type) == (200, "application/json")
            reply = await response.json()
    (part,) = parts_of(reply)
    assert part["text"] == "hello"
    assert reply["candidates"][0]["finishReason"] == "STOP"
    usage = reply["usageMetadata"]
    assert (usage["candidatesTokenCount"], usage["cachedContentTokenCount"]) == (2, 4)
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + 2
    assert reply["modelVersion"] == "slime-actor"


async def test_both_kinds_of_stream_carry_the_same_chunks(serve, encode) -> None:
    answers = [Answer([encode("one"), encode(" two"), encode("<|im_end|>")]) for _ in range(2)]
    async with serve(FakeEngine(answers)) as server:
        async with server.http.post(f"{MODEL}:streamGenerateContent?alt=sse", json=BODY) as response:
            assert response.content_type == "text/event-stream"
            events = data_objects(await response.read())
        async with server.http.post(f"{MODEL}:streamGenerateContent", json=BODY) as response:
            assert response.content_type == "application/json"
            array = await response.json()
        async with server.http.get("/v1/sessions/default") as response:
            assert (await response.json())["turn_count"] == 2
    assert [chunk.get("usageMetadata") for chunk in array] == [chunk.get("usageMetadata") for chunk in events]
    texts = [[part["text"] for part in parts_of(chunk)] for chunk in events]
    assert texts == [[part["text"] for part in parts_of(chunk)] for chunk in array] == [[""], ["one"], [" two"], [""]]
    assert [chunk["candidates"][0].get("finishReason") for chunk in array] == [None, None, None, "STOP"]
    assert array[0]["usageMetadata"]["promptTokenCount"] == array[-1]["usageMetadata"]["promptTokenCount"] > 0


@pytest.mark.parametrize("alt", ["sse", "json", None])
async def test_several_candidates_with_log_probs(serve, encode, alt) -> None:
    """Each a turn of its own; ``alt`` None is a whole reply."""
    config = {"candidateCount": 2, "responseLogprobs": True}
    engine = FakeEngine([Answer([encode("one"), encode("<|im_end|>")]), Answer([encode("two"), encode("<|im_end|>")])])
    method = "generateContent" if alt is None else f"streamGenerateContent?alt={alt}"
    async with serve(engine) as server:
        async with server.http.post(f"{MODEL}:{method}", json={**BODY, "generationConfig": config}) as response:
            read = data_objects(await response.read()) if alt == "sse" else await response.json()
        async with server.http.get("/v1/sessions/default") as response:
            assert (await response.json())["turn_count"] == 2
    chunks = [read] if alt is None else read
    assert chunks[-1]["usageMetadata"]["candidatesTokenCount"] == 4
    for index, text in enumerate(("one", "two")):
        mine = [each for chunk in chunks for each in chunk["candidates"] if each["index"] == index]
        assert "".join(part["text"] for each in mine for part in each["content"]["parts"]) == text
        assert [each["finishReason"] for each in mine if "finishReason" in each] == ["STOP"]
        chosen = [token for each in mine for token in each.get("logprobsResult", {}).get("chosenCandidates", [])]
        assert [(token["token"], token["logProbability"]) for token in chosen] == [(text, -0.5), ("<|im_end|>", -0.5)]


@pytest.mark.parametrize("shown", [True, False])
async def test_thoughts_are_shown_to_those_who_ask(serve, encode, shown) -> None:
    text = "<think>\nplan\n</think>\n\nhello<|im_end|>"
    body = {**BODY, "generationConfig": {"thinkingConfig": {"includeThoughts": shown}}}
    engine = FakeEngine([Answer([encode(text)]) for _ in range(2)])
    async with serve(engine, reasoning_parser="think") as server:
        async with server.http.post(f"{MODEL}:generateContent", json=body) as response:
            whole = parts_of(await response.json())
        async with server.http.post(f"{MODEL}:streamGenerateContent?alt=sse", json=body) as response:
            chunks = data_objects(await response.read())
        async with server.http.get("/v1/sessions/default") as response:
            session = await response.json()
    thoughts = "".join(part["text"] for part in whole if part.get("thought"))
    assert thoughts.strip() == ("plan" if shown else "")
    streamed = [part for chunk in chunks for part in parts_of(chunk)]
    assert "".join(part["text"] for part in streamed if part.get("thought")) == thoughts
    assert "plan" in json.dumps(session["paths"]), "the record has what was thought"


@pytest.mark.parametrize("kept", ["everything", "id", "signature", "nothing"])
async def test_a_replayed_call_is_recognised(serve, encode, kept) -> None:
    engine = FakeEngine([Answer([encode(CALL)]), Answer([encode("done<|im_end|>")])])
    async with serve(engine) as server:
        ask = {"contents": [user({"text": "go"})], "tools": TOOLS}
        async with server.http.post(f"{MODEL}:generateContent", json=ask) as response:
            (part,) = parts_of(await response.json())
        assert part["functionCall"]["args"] == {"p": "a"}
        replayed = {"functionCall": dict(part["functionCall"])}
        if kept in ("everything", "signature"):
            replayed["thoughtSignature"] = part["thoughtSignature"]
        if kept in ("signature", "nothing"):
            del replayed["functionCall"]["id"]
        result = {"name": "read", "response": {"output": "text"}}
        if "id" in replayed["functionCall"]:
            result["id"] = part["functionCall"]["id"]
        ask["contents"] += [{"role": "model", "parts": [replayed]}, user({"functionResponse": result})]
        async with server.http.post(f"{MODEL}:generateContent", json=ask) as response:
            assert response.headers["x-rollserve-match"] == "exact"
            assert parts_of(await response.json())[0]["text"] == "done"


async def test_a_chat_that_replays_every_chunk_is_one_conversation(serve, encode) -> None:
    """As the SDKs' chats do: a content for each chunk of the stream."""
    engine = FakeEngine([Answer([encode("one"), encode(" two<|im_end|>")]), Answer([encode("done<|im_end|>")])])
    async with serve(engine) as server:
        async with server.http.post(f"{MODEL}:streamGenerateContent?alt=sse", json=BODY) as response:
            chunks = data_objects(await response.read())
        replayed = [chunk["candidates"][0]["content"] for chunk in chunks]
        body = {"contents": [*BODY["contents"], *replayed, user({"text": "more"})]}
        async with server.http.post(f"{MODEL}:generateContent", json=body) as response:
            assert response.headers["x-rollserve-match"] == "exact"
    first, second = engine.requests
    known = [*first.prompt_ids.tolist(), *encode("one two<|im_end|>")]
    assert second.prompt_ids.tolist()[: len(known)] == known


@pytest.mark.parametrize("alt", ["sse", "json"])
async def test_a_failed_stream_ends_in_an_error_that_the_sdks_know(serve, encode, alt) -> None:
    engine = FakeEngine([Answer([encode("one")], error=EngineFailed("it broke"))])
    async with serve(engine) as server:
        async with server.http.post(f"{MODEL}:streamGenerateContent?alt={alt}", json=BODY) as response:
            seen = await response.read()
    assert b"finishReason" not in seen
    last = seen.rstrip().rpartition(b"\n")[2].removeprefix(b",")
    assert json.loads(last)["error"]["code"] == 502
    if alt == "json":
        with pytest.raises(json.JSONDecodeError):
            json.loads(seen)


async def test_an_error_before_the_first_token_is_a_plain_one(serve) -> None:
    async with serve(FakeEngine([Answer([], error=EngineUnavailable("gone"))])) as server:
        async with server.http.post(f"{MODEL}:streamGenerateContent?alt=sse", json=BODY) as response:
            assert (response.status, response.content_type) == (503, "application/json")
            error = (await response.json())["error"]
    assert (error["code"], error["status"]) == (503, "UNAVAILABLE")


@pytest.mark.parametrize("alt", ["sse", "json"])
async def test_a_silent_engine_is_bridged(serve, encode, alt) -> None:
    """Without comments, which @google/genai does not take."""
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("one"), encode("two")], hold=hold, hold_before=1)])
    seen = b""
    async with serve(engine, keepalive_s=0.01) as server:
        async with server.http.post(f"{MODEL}:streamGenerateContent?alt={alt}", json=BODY) as response:
            while b'"parts":[{"text":""}]' not in seen.partition(b"one")[2]:
                seen += await response.content.readany()
            hold.set()
            seen += await response.read()
    assert not any(line.startswith(b":") for line in seen.split(b"\n"))
    chunks = json.loads(seen) if alt == "json" else data_objects(seen)
    assert "".join(part["text"] for chunk in chunks for part in parts_of(chunk)) == "onetwo"


@pytest.mark.parametrize("wrapped", [True, False])
async def test_counted_tokens_are_the_prompts(serve, encode, wrapped) -> None:
    request = {**BODY, "systemInstruction": {"parts": [{"text": "Be brief."}]}, "tools": TOOLS}
    counted = {"generateContentRequest": {"model": "models/slime-actor", **request}} if wrapped else request
    async with serve(FakeEngine([Answer([encode("x<|im_end|>")])])) as server:
        async with server.http.post(f"{MODEL}:countTokens", json=counted) as response:
            total = (await response.json())["totalTokens"]
        async with server.http.post(f"{MODEL}:generateContent", json=request) as response:
            assert (await response.json())["usageMetadata"]["promptTokenCount"] == total


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"generateContentRequest": 1}, "generateContentRequest"),
        ({"generateContentRequest": {**BODY}, **BODY}, "contents"),
        ({"generate_content_request": {}}, "contents"),
    ],
)
async def test_bad_counts_name_the_field(serve, body, field) -> None:
    async with serve(FakeEngine()) as server, server.http.post(f"{MODEL}:countTokens", json=body) as response:
        assert response.status == 400
        (detail,) = (await response.json())["error"]["details"]
        assert detail["fieldViolations"][0]["field"] == field


@pytest.mark.parametrize(
    ("path", "headers", "sid"),
    [
        (f"{MODEL}:generateContent", {"x-goog-api-key": "by-key"}, "by-key"),
        (f"{MODEL}:generateContent?key=by-query", {}, "by-query"),
        (f"{MODEL}:generateContent?key=by-query", {"x-goog-api-key": "by-key"}, "by-key"),
        (f"/s/by-url{MODEL}:generateContent?key=by-query", {}, "by-url"),
        ("/s/by-url/v1/models/slime-actor:generateContent", {"x-goog-api-key": "by-key"}, "by-url"),
        (f"{MODEL}:generateContent", {}, "by-label"),
    ],
)
async def test_whose_session_it_is(serve, encode, path, headers, sid) -> None:
    body = {**BODY, "labels": {"session_id": "by-label"}}
    async with serve(FakeEngine([Answer([encode("x<|im_end|>")])])) as server:
        async with server.http.post("/v1/sessions", json={"sid": "by-url"}) as response:
            assert response.status == 201
        async with server.http.post(path, json=body, headers=headers) as response:
            assert response.headers["x-rollserve-session"] == sid


async def test_keys_are_not_logged(serve, encode, caplog) -> None:
    caplog.set_level("DEBUG")
    async with serve(FakeEngine([Answer([encode("x<|im_end|>")])]), explicit_sessions=True) as server:
        async with server.http.post(f"{MODEL}:generateContent?key=query-secret", json={}) as response:
            assert response.status == 400
    assert "query-secret" not in caplog.text


async def test_models_in_the_protocols_shape(serve) -> None:
    async with serve(FakeEngine(), model_alias=("alias",)) as server:
        async with server.http.get("/v1beta/models") as response:
            models = (await response.json())["models"]
        async with server.http.get("/v1/models") as response:
            assert (await response.json())["models"] == models
        async with server.http.get("/v1beta/models/alias") as response:
            assert await response.json() == models[1]
        async with server.http.get("/v1beta/models/other") as response:
            error = (await response.json())["error"]
    assert [model["name"] for model in models] == ["models/slime-actor", "models/alias"]
    assert all(model["inputTokenLimit"] == 4096 for model in models)
    assert (error["code"], error["status"]) == (404, "NOT_FOUND")


async def test_refusals_are_in_the_protocols_shape(serve) -> None:
    async with serve(FakeEngine()) as server:
        async with server.http.post("/v1beta/models/other:generateContent", json=BODY) as response:
            assert (await response.json())["error"]["status"] == "NOT_FOUND"
        async with server.http.post("/v1/models/of%0Atwo%20lines:generateContent", json=BODY) as response:
            assert (response.status, (await response.json())["error"]["status"]) == (404, "NOT_FOUND")
        async with server.http.post(f"{MODEL}:streamGenerateContent?alt=xml", json=BODY) as response:
            assert "alt: must be" in (await response.json())["error"]["message"]
        async with server.http.post(f"{MODEL}:generateContent", data=b"{") as response:
            assert (await response.json())["error"]["status"] == "INVALID_ARGUMENT"


async def test_what_had_no_effect_is_listed(serve, encode) -> None:
    body = {**BODY, "safetySettings": [], "generationConfig": {"mediaResolution": "MEDIA_RESOLUTION_LOW"}}
    async with serve(FakeEngine([Answer([encode("x<|im_end|>")])])) as server:
        async with server.http.post(f"{MODEL}:generateContent", json=body) as response:
            listed = response.headers["x-rollserve-unused-fields"].split(",")
    assert listed == ["safetySettings", "generationConfig.mediaResolution"]


@pytest.mark.parametrize("alt", ["sse", "json"])
async def test_a_reply_that_is_read_again_is_events_whatever_the_client_asked_for(serve, encode, alt) -> None:
    engine = FakeEngine([Answer([encode("one")], error=EngineFailed("it broke"))])
    async with serve(engine) as server:
        async with server.http.post(f"{MODEL}:streamGenerateContent?alt={alt}", json=BODY) as response:
            number = response.headers["x-rollserve-reply"]
            await response.read()
        seen = b""
        async with server.http.get(f"/v1/sessions/default/replies/{number}/events") as response:
            with suppress(aiohttp.ClientPayloadError):
                while piece := await response.content.readany():
                    seen += piece
    again = data_objects(seen)
    assert [part["text"] for chunk in again[:-1] for part in parts_of(chunk)] == ["", "one"]
    assert again[-1]["error"]["status"] == "UNAVAILABLE"
