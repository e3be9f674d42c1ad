"""Gemini requests: contents become messages, knobs are honoured, refused by name or listed."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.errors import BadRequest
from adapter.protocols.gemini import Gemini
from adapter.protocols.gemini_reply import ThoughtDisplay
from adapter.types import ChatRequest, OutputFormat, ToolChoice, ToolChoiceMode

HI = {"role": "user", "parts": [{"text": "hi"}]}
READ = {"functionCall": {"id": "c1", "name": "read", "args": {"p": "a"}}}
DECLARED = [{"functionDeclarations": [{"name": "read"}, {"name": "write"}]}]


def parse(*contents: dict[str, Any], **members: Any) -> ChatRequest:
    return Gemini().parse_request({"contents": list(contents) or [HI], **members})


def config(**members: Any) -> ChatRequest:
    return parse(generationConfig=members)


def refused(body: dict[str, Any]) -> str:
    """The field that the refusal names."""
    with pytest.raises(BadRequest) as caught:
        Gemini().parse_request({"contents": [HI], **body})
    assert caught.value.field is not None
    return caught.value.field


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def result(name: str, response: Any, call_id: str | None = None) -> dict[str, Any]:
    answer = {"name": name, "response": response} | ({} if call_id is None else {"id": call_id})
    return {"role": "user", "parts": [{"functionResponse": answer}]}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_whole_conversation() -> None:
    request = parse(
        {"parts": [{"text": "one"}, {"text": "two"}]},
        model({"text": "plan", "thought": True}, {"text": "I look", "thoughtSignature": "s1"}, READ),
        result("read", {"output": "text"}, "c1"),
        {"role": "user", "parts": [{"text": "go on"}]},
        systemInstruction={"parts": [{"text": "Be brief."}, {"text": "Be kind."}]},
        model="models/m",
        stream=True,
    )
    assert request.messages == (
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "one\ntwo"},
        {
            "role": "assistant",
            "content": "I look",
            "reasoning_content": "plan",
            "tool_calls": [call("read", p="a")],
        },
        {"role": "tool", "content": "text"},
        {"role": "user", "content": "go on"},
    )
    assert request.handles == ((), (), ("s1", "c1"), (), ())
    assert (request.model, request.stream, request.continues) == ("m", True, False)


def test_both_spellings_of_a_member() -> None:
    camel = config(maxOutputTokens=5, topP=0.5, stopSequences=["x"], thinkingConfig={"thinkingBudget": 0})
    snake = parse(
        generation_config={
            "max_output_tokens": 5,
            "top_p": 0.5,
            "stop_sequences": ["x"],
            "thinking_config": {"thinking_budget": 0},
        }
    )
    assert camel == snake
    assert (snake.max_tokens, snake.sampling, snake.stop) == (5, {"top_p": 0.5}, ("x",))
    assert snake.template_options == {"enable_thinking": False}


def test_the_clients_own_objects_keep_their_spelling() -> None:
    request = parse(
        HI, model({"function_call": {"name": "f", "args": {"fileName": 1, "file_name": 2}}}), result("f", {"aB": 1})
    )
    assert request.messages[1]["tool_calls"] == [call("f", fileName=1, file_name=2)]
    assert request.messages[2]["content"] == '{"aB":1}'


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "system", "parts": [{"text": "x"}]}]}, "contents.0.role"),
        ({"contents": [{"role": "user"}]}, "contents.0.parts"),
        ({"contents": [{"role": "user", "parts": []}]}, "contents.0.parts"),
        ({"contents": [{"role": "user", "parts": [{}]}]}, "contents.0.parts.0.text"),
        ({"contents": [{"role": "user", "parts": [{"inlineData": {"data": ""}}]}]}, "contents.0.parts.0.inlineData"),
        ({"contents": [{"role": "user", "parts": [{"inline_data": {"data": ""}}]}]}, "contents.0.parts.0.inline_data"),
        ({"contents": [{"role": "user", "parts": [{"fileData": {"fileUri": "u"}}]}]}, "contents.0.parts.0.fileData"),
        ({"contents": [{"role": "user", "parts": [READ]}]}, "contents.0.parts.0.functionCall"),
        ({"contents": [HI, model({"functionResponse": {"name": "f"}})]}, "contents.1.parts.0.functionResponse"),
        ({"contents": [HI, model({})]}, "contents.1.parts.0.text"),
        ({"contents": [HI, model(READ)]}, "contents.1"),
        ({"contents": [HI, result("read", {})]}, "contents.1.parts.0.functionResponse.name"),
        ({"contents": [HI, model(READ), result("other", {})]}, "contents.2.parts.0.functionResponse.name"),
        ({"contents": [HI, model(READ), result("read", {}), result("read", {"a": 1})]}, "contents.3.parts.0.functionResponse.name"),
        ({"contents": [HI, model(READ), result("read", [])]}, "contents.2.parts.0.functionResponse.response"),
        ({"systemInstruction": "text"}, "systemInstruction"),
        ({"system_instruction": {"parts": [{"inlineData": {}}]}}, "system_instruction.parts.0.inlineData"),
        ({"cachedContent": "cachedContents/1"}, "cachedContent"),
        ({"generationConfig": {}, "generation_config": {}}, "generationConfig"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"min_p": 0.1}, "min_p"),
        ({"generationConfig": {"minP": 0.1}}, "generationConfig.minP"),
        ({"generationConfig": {"temperature": 3}}, "generationConfig.temperature"),
        ({"generationConfig": {"topK": 1.5}}, "generationConfig.topK"),
        ({"generation_config": {"max_output_tokens": 0}}, "generation_config.max_output_tokens"),
        ({"generationConfig": {"candidateCount": 0}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"candidateCount": 129}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"responseLogprobs": 1}}, "generationConfig.responseLogprobs"),
        ({"generationConfig": {"logprobs": 2}}, "generationConfig.logprobs"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "generationConfig.responseModalities"),
        ({"generationConfig": {"speechConfig": {}}}, "generationConfig.speechConfig"),
        ({"generationConfig": {"someNewKnob": 1}}, "generationConfig.someNewKnob"),
        ({"generationConfig": {"thinkingConfig": {"thinkingLevel": "HUGE"}}}, "generationConfig.thinkingConfig.thinkingLevel"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"responseSchema": {"type": "OBJECT"}}}, "generationConfig.responseSchema"),
        ({"generationConfig": {"responseJsonSchema": {}}}, "generationConfig.responseJsonSchema"),
        ({"tools": [{"googleSearch": {}}]}, "tools.0.googleSearch"),
        ({"tools": [{"code_execution": {}}]}, "tools.0.code_execution"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools.0.functionDeclarations.0.name"),
        (
            {"tools": [{"functionDeclarations": [{"name": "f", "behavior": "NON_BLOCKING"}]}]},
            "tools.0.functionDeclarations.0.behavior",
        ),
        (
            {"tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}, "parametersJsonSchema": {}}]}]},
            "tools.0.functionDeclarations.0.parameters",
        ),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig.functionCallingConfig.mode"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "toolConfig.functionCallingConfig.mode"),
        ({"toolConfig": {"retrievalConfig": {"languageCode": "de"}}}, "toolConfig.retrievalConfig"),
        (
            {"tools": DECLARED, "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}}},
            "toolConfig.functionCallingConfig.allowedFunctionNames",
        ),
        (
            {"tools": DECLARED, "toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["read"]}}},
            "toolConfig.functionCallingConfig.allowedFunctionNames",
        ),
    ],
)  # fmt: skip
def test_refusals_name_the_field_as_the_client_wrote_it(body: dict[str, Any], field: str) -> None:
    assert refused(body) == field


def test_sampling_knobs() -> None:
    request = config(
        temperature=1, topP=0.95, topK=64.0, seed=-1, presencePenalty=0.5, frequencyPenalty=-0.5, maxOutputTokens=7,
        stopSequences=["a", "b"], candidateCount=1, responseLogprobs=False, minTokens=2, repetitionPenalty=1.1,
        responseMimeType="text/plain", responseModalities=["TEXT"],
    )  # fmt: skip
    assert request.sampling == {
        "temperature": 1.0, "top_p": 0.95, "top_k": 64, "seed": 2**64 - 1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "min_tokens": 2, "repetition_penalty": 1.1,
    }  # fmt: skip
    assert (request.max_tokens, request.stop, request.output_format) == (7, ("a", "b"), None)
    assert request.unused_fields == ()


@pytest.mark.parametrize(
    ("thinking", "options", "display", "listed"),
    [
        ({}, {}, ThoughtDisplay.OMITTED, ()),
        ({"includeThoughts": True}, {"enable_thinking": True}, ThoughtDisplay.SHOWN, ()),
        ({"thinkingBudget": 0}, {"enable_thinking": False}, ThoughtDisplay.OMITTED, ()),
        ({"thinkingBudget": -1}, {"enable_thinking": True}, ThoughtDisplay.OMITTED, ("thinkingBudget",)),
        (
            {"thinkingLevel": "LOW"},
            {"enable_thinking": True, "reasoning_effort": "low"},
            ThoughtDisplay.OMITTED,
            (),
        ),
    ],
)
def test_thinking(
    thinking: dict[str, Any], options: dict[str, Any], display: ThoughtDisplay, listed: tuple[str]
) -> None:
    request = config(thinkingConfig=thinking)
    assert (request.template_options, request.reply_context) == (options, display)
    assert request.unused_fields == tuple(f"generationConfig.thinkingConfig.{name}" for name in listed)


def test_explicit_template_options_go_first() -> None:
    request = parse(
        generationConfig={"thinkingConfig": {"thinkingBudget": 0}},
        chat_template_kwargs={"enable_thinking": True, "x": 1},
    )
    assert request.template_options == {"enable_thinking": True, "x": 1}


@pytest.mark.parametrize(
    ("members", "schema", "field"),
    [
        ({}, None, "generationConfig.responseMimeType"),
        ({"responseJsonSchema": {"type": "object"}}, {"type": "object"}, "generationConfig.responseJsonSchema"),
        (
            {"responseSchema": {"type": "ARRAY", "items": {"type": "STRING"}}},
            {"type": "array", "items": {"type": "string"}},
            "generationConfig.responseSchema",
        ),
    ],
)
def test_json_output(members: dict[str, Any], schema: Any, field: str) -> None:
    assert config(responseMimeType="application/json", **members).output_format == OutputFormat(schema, field)


@pytest.mark.parametrize(
    ("calling", "choice"),
    [
        ({}, ToolChoice()),
        ({"mode": "MODE_UNSPECIFIED"}, ToolChoice()),
        ({"mode": "AUTO"}, ToolChoice()),
        ({"mode": "NONE"}, ToolChoice(ToolChoiceMode.NONE)),
        ({"mode": "ANY"}, ToolChoice(ToolChoiceMode.REQUIRED)),
        ({"mode": "ANY", "allowedFunctionNames": ["read"]}, ToolChoice(ToolChoiceMode.REQUIRED, ("read",))),
    ],
)
def test_function_calling_modes(calling: dict[str, Any], choice: ToolChoice) -> None:
    request = parse(tools=DECLARED, toolConfig={"functionCallingConfig": calling})
    assert request.tool_choice == choice
    assert [tool["function"]["name"] for tool in request.tools] == ["read", "write"]


@pytest.mark.parametrize(("allowed", "strict"), [([], ["read", "write"]), (["read"], ["read"])])
def test_validated_calls_have_to_follow_their_schema(allowed: list[str], strict: list[str]) -> None:
    calling = {"mode": "VALIDATED", "allowedFunctionNames": allowed}
    request = parse(tools=DECLARED, toolConfig={"functionCallingConfig": calling})
    assert request.tool_choice == ToolChoice(ToolChoiceMode.AUTO, tuple(allowed))
    assert request.strict_tools == dict.fromkeys(strict, "toolConfig.functionCallingConfig.mode")


def test_other_modes_demand_no_schema() -> None:
    assert parse(tools=DECLARED, toolConfig={"functionCallingConfig": {"mode": "ANY"}}).strict_tools == {}


def test_candidates_and_log_probs() -> None:
    assert (config().n, config().log_probs) == (1, False)
    several = config(candidateCount=3, responseLogprobs=True)
    assert (several.n, several.log_probs, several.unused_fields) == (3, True, ())


def test_a_schema_becomes_a_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "title": "T",
        "properties": {
            "b": {"type": "INTEGER", "nullable": True, "minimum": 1, "maximum": 9, "description": "d"},
            "a": {
                "type": "STRING",
                "enum": ["x"],
                "nullable": True,
                "min_length": "1",
                "maxLength": 5,
                "pattern": "x+",
            },
            "n": {"type": "NUMBER", "minimum": 0.5, "default": 1, "example": 2, "format": "double"},
            "l": {"type": "array", "items": {"type": "boolean"}, "minItems": "2", "maxItems": 3},
            "o": {"anyOf": [{"type": "NULL"}, {"type": "OBJECT", "additionalProperties": {"type": "STRING"}}]},
        },
        "required": ["a"],
        "propertyOrdering": ["a", "b"],
    }
    (tool,) = parse(tools=[{"functionDeclarations": [{"name": "f", "parameters": schema}]}]).tools
    parameters = tool["function"]["parameters"]
    assert parameters == {
        "type": "object",
        "title": "T",
        "properties": {
            "a": {"type": ["string", "null"], "enum": ["x", None], "minLength": 1, "maxLength": 5, "pattern": "x+"},
            "b": {"type": ["integer", "null"], "description": "d", "minimum": 1, "maximum": 9},
            "n": {"type": "number", "format": "double", "minimum": 0.5, "default": 1, "examples": [2]},
            "l": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
            "o": {"anyOf": [{"type": "null"}, {"type": "object", "additionalProperties": {"type": "string"}}]},
        },
        "required": ["a"],
    }
    assert list(parameters["properties"]) == ["a", "b", "n", "l", "o"]


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"type": "MAP"}, "type"),
        ({"type": "OBJECT", "properties": {"aB": {"type": "x"}}}, "properties.aB.type"),
        ({"type": "OBJECT", "properties": {"a": 1}}, "properties.a"),
        ({"items": {"minItems": "-1"}}, "items.minItems"),
        ({"minItems": "9" * 40}, "minItems"),
        ({"oneOf": []}, "oneOf"),
        ({"any_of": [{"enum": [1]}]}, "any_of.0.enum.0"),
    ],
)
def test_a_wrong_schema_is_named(schema: dict[str, Any], at: str) -> None:
    body = {"tools": [{"functionDeclarations": [{"name": "f", "parameters": schema}]}]}
    assert refused(body) == f"tools.0.functionDeclarations.0.parameters.{at}"


def test_a_json_schema_is_passed_on_and_a_missing_one_is_no_parameters() -> None:
    schema = {"type": "object", "properties": {"aB": {"oneOf": [{"const": 1}]}}}
    declarations = [{"name": "f", "description": "d", "parametersJsonSchema": schema}, {"name": "g"}]
    first, second = parse(tools=[{"functionDeclarations": declarations}]).tools
    assert first == {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}
    assert second["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"output": "plain"}, "plain"),
        ({"result": "plain"}, "plain"),
        ({"output": {"a": 1}}, '{"a":1}'),
        ({"error": "it broke"}, '{"error":"it broke"}'),
        ({"output": "x", "code": 1}, '{"output":"x","code":1}'),
        ({}, "{}"),
    ],
)
def test_what_the_model_reads_of_a_result(response: dict[str, Any], text: str) -> None:
    assert parse(HI, model(READ), result("read", response, "c1")).messages[-1] == {"role": "tool", "content": text}


def test_results_stand_in_the_order_of_their_calls() -> None:
    calls = model(READ, {"functionCall": {"id": "c2", "name": "read", "args": {"p": "b"}}})
    answers = [
        {"functionResponse": {"id": name, "name": "read", "response": {"output": name}}} for name in ("c2", "c1")
    ]
    request = parse(HI, calls, {"role": "user", "parts": [*answers, {"text": "and?"}]})
    assert [message["content"] for message in request.messages[2:]] == ["c1", "c2", "and?"]
    assert [taken.rule for taken in request.normalised] == ["tool-result-order"]


def test_results_without_ids_answer_the_calls_of_their_name_in_turn() -> None:
    calls = [
        {"functionCall": {"name": name, "args": {"p": p}}} for name, p in (("read", "a"), ("write", "b"), ("read", "c"))
    ]
    answers = [{"functionResponse": {"name": name, "response": {"output": text}}}
               for name, text in (("write", "2"), ("read", "1"), ("read", "3"))]  # fmt: skip
    request = parse(HI, model(*calls), {"role": "function", "parts": answers})
    assert [message["content"] for message in request.messages[2:]] == ["1", "2", "3"]


def test_a_result_whose_id_the_call_does_not_have_is_found_by_name() -> None:
    """Some clients put the tool's name before the id on one side alone."""
    request = parse(HI, model(READ), result("read", {"output": "r"}, "read__c1"))
    assert request.messages[-1]["content"] == "r"


def test_results_that_a_resumed_gemini_cli_sends_twice_count_once() -> None:
    twice = result("read", {"output": "r"}, "c1")
    request = parse(HI, model(READ), {"role": "user", "parts": twice["parts"] * 2})
    assert [message["content"] for message in request.messages[2:]] == ["r"]
    (taken,) = request.normalised
    assert (taken.rule, taken.field) == ("tool-result-repeat", "contents.2.parts.1.functionResponse")


def test_contents_of_the_model_in_a_row_are_one_message() -> None:
    thoughts = [model({"text": text, "thought": True}) for text in ("pl", "an")]
    texts = [model({"text": "I ", "thoughtSignature": "s"}), model({"text": "look"})]
    chunks = [model({"text": ""}), *thoughts, *texts, model(READ), model({"text": ""})]
    request = parse(HI, *chunks, result("read", {"output": "r"}, "c1"))
    assert request.messages[1] == {
        "role": "assistant", "content": "I look", "reasoning_content": "plan", "tool_calls": [call("read", p="a")],
    }  # fmt: skip
    assert request.handles[1] == ("s", "c1")


def test_a_trailing_content_of_the_model_begins_the_reply() -> None:
    request = parse(HI, model({"text": "Once "}), model({"text": "upon"}))
    assert (request.continues, request.messages[-1]["content"]) == (True, "Once upon")


def test_what_only_describes_is_listed() -> None:
    request = parse(
        safetySettings=[], labels={"team": "x"}, some_extension=1, generationConfig={"mediaResolution": "MEDIA_RESOLUTION_LOW"},
        tools=[{"functionDeclarations": [{"name": "f", "response": {"type": "STRING"}}, {"name": "g", "response": {}}]}],
    )  # fmt: skip
    assert request.unused_fields == (
        "safetySettings", "labels", "some_extension", "tools.functionDeclarations.response", "generationConfig.mediaResolution",
    )  # fmt: skip


def test_the_billing_header_of_a_system_prompt_is_taken_out() -> None:
    header = "x-anthropic-billing-header: cc_version=1;\n"
    request = parse(systemInstruction={"parts": [{"text": header + "Be brief."}]})
    assert request.messages[0]["content"] == "Be brief."
    (taken,) = request.normalised
    assert (taken.field, taken.original) == ("systemInstruction.parts.0.text", header)
