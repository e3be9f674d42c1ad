"""History policy ``keep`` over HTTP: stored ids and a rendered suffix, whatever the client made of the history."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.engine import Answer, FakeEngine
from tests.support.wait import until

MESSAGES = "/v1/messages"
END = 151645
TOOL = {
    "name": "look",
    "input_schema": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string"}}},
}
CALL = '<think>\nlet me see\n</think>\n\nI look.\n<tool_call>\n{"name": "look", "arguments": {"b": "x",  "a": 1.0}}\n</tool_call>'


async def ask(server, messages, sid="s", **more):
    async with server.http.post(f"/s/{sid}{MESSAGES}", json={"messages": messages, **more}) as response:
        assert response.status == 200, await response.text()
        return await response.json(), response.headers["x-rollserve-match"]


async def open_session(server, sid="s", **more):
    async with server.http.post("/v1/sessions", json={"sid": sid, **more}) as response:
        assert response.status == 201


async def finish(server, sid="s"):
    async with server.http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}) as response:
        assert response.status == 200
        return await response.json()


def user(text):
    return {"role": "user", "content": text}


def continues(engine, second, first, output):
    prompt = [*engine.requests[first].prompt_ids.tolist(), *output]
    return engine.requests[second].prompt_ids.tolist()[: len(prompt)] == prompt


async def test_a_client_that_drops_thinking_and_rewrites_arguments_stays_in_one_row(serve, encode) -> None:
    first, second = [*encode(CALL), END], [*encode("done"), END]
    engine = FakeEngine([Answer([first]), Answer([second])])
    async with serve(engine, tool_parser="hermes", reasoning_parser="think") as server:
        await open_session(server)
        reply, how = await ask(server, [user("go")], tools=[TOOL])
        assert how == "new"
        thinking, text, use = reply["content"]
        assert (thinking["type"], text["text"]) == ("thinking", "I look.")
        mangled = [{"type": "text", "text": " I look. "}, {**use, "input": {"a": 1, "b": "x"}}]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "found"}
        history = [user("go"), {"role": "assistant", "content": mangled}, {"role": "user", "content": [result]}]
        _, how = await ask(server, history, tools=[TOOL])
        assert how == "handle"
        assert continues(engine, 1, 0, first)
        answer = await finish(server)
    (sample,) = answer["samples"]
    trained = [
        token
        for token, mask in zip(sample["tokens"][-sample["response_length"] :], sample["loss_mask"], strict=True)
        if mask
    ]
    assert trained == first + second
    assert answer["ledger"]["dropped"] == {}


async def test_a_truncated_reply_gets_its_closer_as_scaffold(serve, encode) -> None:
    first = encode("cut off in the mid")
    engine = FakeEngine([Answer([first]), Answer([[*encode("ok"), END]])])
    async with serve(engine) as server:
        await open_session(server)
        reply, _ = await ask(server, [user("go")])
        _, how = await ask(server, [user("go"), {"role": "assistant", "content": reply["content"]}, user("on")])
        assert how == "exact"
        assert continues(engine, 1, 0, [*first, END])
        answer = await finish(server)
    (sample,) = answer["samples"]
    assert sum(sample["loss_mask"]) == len(first) + len(encode("ok")) + 1


async def test_a_real_edit_is_a_branch(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode("black"), END]]), Answer([[*encode("ok"), END]])])
    async with serve(engine) as server:
        await open_session(server)
        await ask(server, [user("go")])
        _, how = await ask(server, [user("go"), {"role": "assistant", "content": "white"}, user("on")])
        assert how == "fork:edit"
        assert len((await finish(server))["samples"]) == 2


async def test_other_tools_are_a_new_head_with_the_known_ids_behind_it(serve, encode) -> None:
    first = [*encode("hello"), END]
    engine = FakeEngine([Answer([first]), Answer([[*encode("ok"), END]])])
    async with serve(engine) as server:
        await open_session(server)
        reply, _ = await ask(server, [user("go")])
        history = [user("go"), {"role": "assistant", "content": reply["content"]}, user("on")]
        _, how = await ask(server, history, tools=[TOOL])
        assert how == "fork:tools"
        prompt = engine.requests[1].prompt_ids.tolist()
        at = next(index for index in range(len(prompt)) if prompt[index : index + len(first)] == first)
        assert at > engine.requests[0].prompt_ids.size
        answer = await finish(server)
    assert answer["ledger"]["dropped"] == {}
    assert [sum(sample["loss_mask"]) for sample in answer["samples"]] == [len(first), len(encode("ok")) + 1]


async def test_what_was_replayed_of_a_cut_reply_becomes_its_turn(serve, encode) -> None:
    told, untold = encode("One. Two."), encode(" Three.")
    engine = FakeEngine([Answer([told, untold], hold=asyncio.Event(), hold_before=1), Answer([[*encode("ok"), END]])])
    async with serve(engine, tool_parser="xml") as server:
        await open_session(server)
        async with server.http.post(f"/s/s{MESSAGES}", json={"messages": [user("go")], "stream": True}) as response:
            seen = b""
            while b"Two" not in seen:
                seen += await response.content.readany()
        await until(lambda: engine.closed == 1)
        session = server.state.sessions.find("s")
        await until(lambda: not session.in_flight)
        assert session.trajectory.turn_count == 0
        history = [user("go"), {"role": "assistant", "content": "One. Two."}, user("You were cut off. Resume.")]
        _, how = await ask(server, history)
        assert how == "interrupted"
        assert continues(engine, 1, 0, told)
        answer = await finish(server)
    assert answer["turn_count"] == 2
    (sample,) = answer["samples"]
    assert sum(sample["loss_mask"]) == len(told) + len(encode("ok")) + 1


async def test_what_nobody_replayed_of_a_cut_reply_is_counted_as_dropped(serve, encode) -> None:
    engine = FakeEngine(
        [Answer([encode("lost"), encode(" x")], hold=asyncio.Event(), hold_before=1), Answer([[*encode("ok"), END]])]
    )
    async with serve(engine, tool_parser="xml") as server:
        await open_session(server)
        async with server.http.post(f"/s/s{MESSAGES}", json={"messages": [user("go")], "stream": True}) as response:
            seen = b""
            while b"lost" not in seen:
                seen += await response.content.readany()
        await until(lambda: engine.closed == 1)
        await ask(server, [user("go")])
        answer = await finish(server)
    assert answer["turn_count"] == 1
    assert answer["ledger"]["dropped"] == {"interrupted": len(encode("lost"))}


async def test_handles_of_another_session_mean_nothing(serve, encode) -> None:
    reply_ids = [*encode(CALL), END]
    engine = FakeEngine([Answer([reply_ids]), Answer([[*encode("ok"), END]])])
    async with serve(engine, tool_parser="hermes", reasoning_parser="think") as server:
        await open_session(server, "one")
        await open_session(server, "two")
        reply, _ = await ask(server, [user("go")], "one", tools=[TOOL])
        use = reply["content"][-1]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "found"}
        history = [user("go"), {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        _, how = await ask(server, history, "two", tools=[TOOL])
        assert how == "new"
        assert not continues(engine, 1, 0, reply_ids)


@pytest.mark.parametrize(("policy", "same"), [("keep", True), ("template", False)])
async def test_the_policy_is_the_sessions(serve, encode, policy, same) -> None:
    """``hel`` and ``lo`` are not how the tokenizer writes ``hello``."""
    odd = [*encode("hel"), *encode("lo"), END]
    engine = FakeEngine([Answer([odd]), Answer([[*encode("ok"), END]])])
    async with serve(engine) as server:
        await open_session(server, policy=policy)
        reply, _ = await ask(server, [user("go")])
        await ask(server, [user("go"), {"role": "assistant", "content": reply["content"]}, user("on")])
        assert continues(engine, 1, 0, odd) is same
        async with server.http.get("/v1/sessions/s/explain") as response:
            explained = await response.json()
    assert explained["policy"] == policy
    second = explained["turns"][1]
    if same:
        assert (second["reason"], second["divergence"]) == ("exact", None)
        assert second["tokens"]["reused"] == engine.requests[0].prompt_ids.size + len(odd)
    else:
        assert second["reason"] == "fork:template"
        assert second["divergence"]["text"]["known"].startswith("hel")
        assert second["tokens"]["reused"] == second["divergence"]["position"] == engine.requests[0].prompt_ids.size


async def test_a_billing_header_is_kept_in_the_record_but_not_in_the_prompt(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode("ok"), END]])])
    header = "x-anthropic-billing-header: cc_version=2.1.332.abc; cc_entrypoint=cli;"
    async with serve(engine) as server:
        await open_session(server)
        system = [{"type": "text", "text": header}, {"type": "text", "text": "Be brief."}]
        await ask(server, [user("go")], system=system)
        assert encode("cc_entrypoint")[0] not in engine.requests[0].prompt_ids
        async with server.http.get("/v1/sessions/s/explain") as response:
            (turn,) = (await response.json())["turns"]
    assert [entry["original"] for entry in turn["normalised"]] == [header]


async def test_count_tokens_counts_what_the_session_would_send(serve, encode) -> None:
    odd = [*encode("hel"), *encode("lo"), END]
    engine = FakeEngine([Answer([odd]), Answer([[*encode("ok"), END]])])
    async with serve(engine) as server:
        await open_session(server)
        reply, _ = await ask(server, [user("go")])
        history = [user("go"), {"role": "assistant", "content": reply["content"]}, user("on")]
        async with server.http.post("/s/s/v1/messages/count_tokens", json={"messages": history}) as response:
            counted = (await response.json())["input_tokens"]
        second, _ = await ask(server, history)
    assert second["usage"]["input_tokens"] == counted == engine.requests[1].prompt_ids.size


async def test_bad_policy_names_the_field(serve) -> None:
    async with serve(FakeEngine()) as server:
        async with server.http.post("/v1/sessions", json={"policy": "forget"}) as response:
            assert response.status == 400
            assert (await response.json())["error"]["field"] == "policy"


async def test_leaving_the_model_out_is_the_served_model(serve, encode) -> None:
    first = [*encode("hello"), END]
    engine = FakeEngine([Answer([first]), Answer([[*encode("ok"), END]])])
    async with serve(engine) as server:
        await open_session(server)
        reply, _ = await ask(server, [user("go")])
        history = [user("go"), {"role": "assistant", "content": reply["content"]}, user("on")]
        _, how = await ask(server, history, model="slime-actor")
        assert how == "exact"
        assert continues(engine, 1, 0, first)
