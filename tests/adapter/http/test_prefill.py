"""Requests that end with the beginning of their reply: the prompt ends with it, and only what is new comes back."""

from __future__ import annotations

import asyncio

import pytest

from engine.types import FinishReason
from tests.adapter.http.test_keep import END, ask, finish, open_session, user
from tests.support.engine import Answer, FakeEngine
from tests.support.sse import data_objects
from tests.support.wait import until

OPENED = "<|im_start|>assistant\n"


def said(text):
    return {"role": "assistant", "content": text}


def prompt(engine, number):
    return engine.requests[number].prompt_ids.tolist()


def trained(answer):
    rows = answer["samples"]
    assert answer["ledger"]["sampled"] == answer["ledger"]["trained"]
    return [
        [token for token, mask in zip(row["tokens"][-row["response_length"] :], row["loss_mask"], strict=True) if mask]
        for row in rows
    ]


async def test_the_reply_goes_on_from_the_clients_words(serve, encode) -> None:
    rest, answer = [*encode(" world"), END], [*encode("bye"), END]
    engine = FakeEngine([Answer([rest]), Answer([answer])])
    async with serve(engine) as server:
        await open_session(server)
        reply, how = await ask(server, [user("greet"), said("Hello")])
        assert prompt(engine, 0)[-4:] == encode(OPENED + "Hello")
        assert [block["text"] for block in reply["content"]] == [" world"]
        assert reply["usage"]["input_tokens"] == len(prompt(engine, 0))
        _, how = await ask(server, [user("greet"), said("Hello world"), user("and now")])
        assert how == "exact"
        assert prompt(engine, 1)[: len(prompt(engine, 0)) + len(rest)] == [*prompt(engine, 0), *rest]
        assert trained(await finish(server)) == [[*rest, *answer]]


async def test_a_reply_that_ran_out_of_tokens_goes_on_from_its_own_ids(serve, encode) -> None:
    # "Hel", "lo" is how it was sampled; the text alone encodes to one token.
    cut, rest = [*encode("Hel"), *encode("lo")], [*encode(" world"), END]
    assert len(encode("Hello")) == 1
    engine = FakeEngine([Answer([cut], reason=FinishReason.LENGTH), Answer([rest])])
    async with serve(engine) as server:
        await open_session(server)
        reply, _ = await ask(server, [user("greet")])
        assert reply["stop_reason"] == "max_tokens"
        _, how = await ask(server, [user("greet"), said("Hello")])
        assert how == "exact"
        assert prompt(engine, 1) == [*prompt(engine, 0), *cut]
        assert trained(await finish(server)) == [[*cut, *rest]]


async def test_a_reply_whose_client_left_goes_on_from_what_it_was_given(serve, encode) -> None:
    given, more, rest = encode("I have"), encode(" four"), [*encode(" three"), END]
    hold = asyncio.Event()
    engine = FakeEngine([Answer([given, more], hold=hold, hold_before=1), Answer([rest])])
    async with serve(engine) as server:
        await open_session(server)
        body = {"messages": [user("count")], "stream": True}
        async with server.http.post("/s/s/v1/messages", json=body) as response:
            while b"have" not in await response.content.readline():
                pass
        await until(lambda: engine.closed == 1)
        reply, how = await ask(server, [user("count"), said("I have")])
        assert how == "interrupted"
        assert prompt(engine, 1) == [*prompt(engine, 0), *given]
        assert reply["content"][0]["text"] == " three"
        assert trained(await finish(server)) == [[*given, *rest]]


@pytest.mark.parametrize("begun", ["Look:\n", "Look:\n<too"])
async def test_what_the_parser_holds_of_the_beginning_does_not_come_again(serve, encode, begun) -> None:
    """A newline may belong to a tool call and half of a tag to a tag: the parser lets go of them later."""
    engine = FakeEngine([Answer([encode("that"), encode(" is all"), [END]])])
    async with serve(engine, tool_parser="hermes") as server:
        body = {"messages": [user("x"), said(begun)], "stream": True}
        async with server.http.post("/v1/messages", json=body) as response:
            events = data_objects(await response.read())
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == "that is all"


async def test_a_beginning_inside_the_reasoning_goes_on_there(serve, encode) -> None:
    cut, rest = encode("<think>\nlet me"), [*encode(" see\n</think>\n\ndone"), END]
    engine = FakeEngine([Answer([cut], reason=FinishReason.LENGTH), Answer([rest])])
    async with serve(engine, reasoning_parser="think") as server:
        await open_session(server)
        first, _ = await ask(server, [user("x")])
        reply, _ = await ask(server, [user("x"), {"role": "assistant", "content": first["content"]}])
        assert [(block["type"], block.get("thinking", block.get("text"))) for block in reply["content"]] == [
            ("thinking", " see"),
            ("text", "done"),
        ]


async def test_a_beginning_that_calls_tools_is_refused(serve) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    async with serve(FakeEngine()) as server:
        body = {"messages": [user("x"), {"role": "assistant", "content": [call]}]}
        async with server.http.post("/v1/messages", json=body) as response:
            error = (await response.json())["error"]
            assert (response.status, error["type"]) == (400, "invalid_request_error")
            assert "messages" in error["message"]


async def test_count_tokens_counts_the_beginning(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode(" world"), END]])])
    async with serve(engine) as server:
        await open_session(server)
        body = {"messages": [user("greet"), said("Hello")]}
        async with server.http.post("/v1/messages/count_tokens", json=body) as response:
            counted = (await response.json())["input_tokens"]
        await ask(server, body["messages"])
        assert counted == len(prompt(engine, 0))
