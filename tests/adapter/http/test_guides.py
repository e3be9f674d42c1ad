"""Demands on the output over HTTP: a guide where the engine has guided decoding, else refused by the field that asks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.types import GuideKind
from tests.support.engine import INFO, Answer, FakeEngine

MESSAGES, CHAT, RESPONSES = "/v1/messages", "/v1/chat/completions", "/v1/responses"
GEMINI = "/v1beta/models/slime-actor:generateContent"
GUIDING = replace(INFO, guides=frozenset({GuideKind.JSON_SCHEMA, GuideKind.LARK}))
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ODD = {"type": "object", "properties": {"n": {"type": "string", "format": "rainbow"}}}
HI = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call><|im_end|>'


def body(route: str, **more: Any) -> dict[str, Any]:
    if route == GEMINI:
        return {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], **more}
    return {("input" if route == RESPONSES else "messages"): HI, **more}


def tool(route: str, schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    if route == GEMINI:
        return {"tools": [{"functionDeclarations": [{"name": "add", "parametersJsonSchema": schema}]}]}
    if route == MESSAGES:
        return {"tools": [{"name": "add", "input_schema": schema, **more}]}
    function = {"name": "add", "parameters": schema, **more}
    return {"tools": [{"type": "function"} | (function if route == RESPONSES else {"function": function})]}


def output(route: str, schema: Any = SCHEMA) -> dict[str, Any]:
    if route == GEMINI:
        return {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": schema}}
    if route == MESSAGES:
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    if route == RESPONSES:
        return {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


FORCE = {
    MESSAGES: {"tool_choice": {"type": "tool", "name": "add"}},
    CHAT: {"tool_choice": {"type": "function", "function": {"name": "add"}}},
    RESPONSES: {"tool_choice": {"type": "function", "name": "add"}},
    GEMINI: {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]}}},
}
VALIDATED = {"toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}}}
DEMANDS = [
    (MESSAGES, FORCE[MESSAGES] | tool(MESSAGES), "tool_choice"),
    (MESSAGES, tool(MESSAGES, strict=True), "tools.0.strict"),
    (MESSAGES, output(MESSAGES), "output_config.format"),
    (CHAT, FORCE[CHAT] | tool(CHAT), "tool_choice"),
    (CHAT, tool(CHAT, strict=True), "tools.0.function.strict"),
    (CHAT, output(CHAT), "response_format"),
    (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
    (RESPONSES, FORCE[RESPONSES] | tool(RESPONSES), "tool_choice"),
    (RESPONSES, tool(RESPONSES, strict=True), "tools.0.strict"),
    (RESPONSES, output(RESPONSES), "text.format"),
    (GEMINI, FORCE[GEMINI] | tool(GEMINI), "toolConfig.functionCallingConfig"),
    (GEMINI, VALIDATED | tool(GEMINI), "toolConfig.functionCallingConfig.mode"),
    (GEMINI, output(GEMINI), "generationConfig.responseJsonSchema"),
]


def named_field(route: str, answer: Any) -> str:
    """The field that an error blames, where the protocol says it."""
    error = answer["error"]
    if route in (CHAT, RESPONSES):
        return error["param"]
    if route == GEMINI:
        return error["details"][0]["fieldViolations"][0]["field"]
    assert answer["type"] == "error"
    assert error["type"] == "invalid_request_error"
    return error["message"].partition(": ")[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("route", "demand", "field"), DEMANDS)
async def test_an_engine_without_guided_decoding_refuses_by_name(serve, route, demand, field, stream) -> None:
    if stream and route == GEMINI:
        path, asked = route.replace("generateContent", "streamGenerateContent?alt=sse"), body(route, **demand)
    else:
        path, asked = route, body(route, **demand) | ({"stream": True} if stream else {})
    engine = FakeEngine()
    async with serve(engine, tool_parser="hermes") as server:
        async with server.http.post(path, json=asked) as response:
            assert (response.status, response.content_type) == (400, "application/json")
            answer = await response.json()
    assert named_field(route, answer) == field
    assert "the engine has no guided decoding" in str(answer)
    assert engine.requests == []


@pytest.mark.parametrize(("route", "demand", "field"), DEMANDS)
async def test_what_is_demanded_goes_to_the_engine_as_a_guide_and_into_the_record(
    serve, encode, route, demand, field
) -> None:
    text = '{"n": 1}<|im_end|>' if "ormat" in field or "esponse" in field else CALL
    engine = FakeEngine([Answer([encode(text)])], info=GUIDING)
    async with serve(engine, tool_parser="hermes") as server:
        async with server.http.post(route, json=body(route, **demand)) as response:
            assert response.status == 200, await response.text()
        async with server.http.post("/v1/sessions/default/finish", json={}) as response:
            (sample,) = (await response.json())["samples"]
    (request,) = engine.requests
    assert request.guide is not None
    wanted = GuideKind.JSON_SCHEMA if text.startswith("{") else GuideKind.LARK
    assert request.guide.kind is wanted
    assert ('"integer"' in request.guide.text) or demand == {"response_format": {"type": "json_object"}}
    assert request.end_ids
    (turn,) = sample["metadata"]["turns"]
    assert turn["guide"] == {"kind": str(wanted), "text": request.guide.text}


@pytest.mark.parametrize(
    ("route", "demand", "field"),
    [
        (MESSAGES, output(MESSAGES, ODD), "output_config.format"),
        (CHAT, output(CHAT, ODD), "response_format"),
        (CHAT, tool(CHAT, ODD, strict=True), "tools.0.function.strict"),
        (RESPONSES, output(RESPONSES, ODD), "text.format"),
        (RESPONSES, output(RESPONSES) | tool(RESPONSES, ODD, strict=True), "tools.0.strict"),
        (GEMINI, output(GEMINI, ODD), "generationConfig.responseJsonSchema"),
    ],
)
async def test_a_schema_that_cannot_be_ensured_is_refused_before_the_headers(serve, route, demand, field) -> None:
    engine = FakeEngine(info=GUIDING)
    async with serve(engine, tool_parser="hermes") as server:
        asked = body(route, **demand) | ({} if route == GEMINI else {"stream": True})
        async with server.http.post(route, json=asked) as response:
            assert (response.status, response.content_type) == (400, "application/json")
            answer = await response.json()
    assert named_field(route, answer) == field
    assert "this schema cannot be ensured: Unknown format: rainbow" in str(answer)
    assert engine.requests == []


async def test_a_turn_without_demands_has_no_guide(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("ok<|im_end|>")])], info=GUIDING)
    async with serve(engine, tool_parser="hermes") as server:
        async with server.http.post(CHAT, json=body(CHAT, **tool(CHAT))) as response:
            assert response.status == 200
    assert engine.requests[0].guide is None
