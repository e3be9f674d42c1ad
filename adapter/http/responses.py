"""OpenAI Responses over HTTP: what the protocol keeps on the server.

POST   /v1/responses                    ``previous_response_id`` and item references are filled in here, then it is a turn
POST   /v1/responses/input_tokens       the exact length of the prompt that a response would have
GET    /v1/responses/ID                 the response object; with ``?stream=true`` its events behind ``starting_after``, and on
DELETE /v1/responses/ID
POST   /v1/responses/ID/cancel          of a response with ``background``
GET    /v1/responses/ID/input_items
GET    /v1/responses                    426: a client that tries a websocket falls back to POST at once

Responses are found in their own session only, which a request names as any other does; where it names none, the id of the
response does (``openai_responses_reply.new_response_id``), whichever worker is asked. ``store: false`` keeps none.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from adapter.errors import AdapterError, BadRequest, Gone, Interrupted, NotFound
from adapter.http.bodies import read_json_object
from adapter.http.failures import Handler, MethodNotAllowed
from adapter.http.incoming import Incoming
from adapter.http.session_name import REFERRED_SESSION, known_session, load_named
from adapter.http.state import PROTOCOL, STATE
from adapter.http.stream import EventStream
from adapter.http.turns import Asked, answer, ask
from adapter.items import Item
from adapter.preparing import count_prompt_tokens
from adapter.protocols.openai_responses import OpenAIResponses
from adapter.protocols.openai_responses_reply import response_without_output, session_of_response
from adapter.protocols.openai_responses_request import LOG_PROBS, ResponsesContext
from adapter.reply import ReplyState
from adapter.responses import Conversation, ResponseStore, StoredResponse

RESPONSES = OpenAIResponses()

PAGE = 20
MAX_PAGE = 100
"""Input items in one answer: the official default and limit."""


_INTEGER = re.compile(r"-?[0-9]{1,10}")


class UpgradeRequired(AdapterError):
    status = 426


def add_routes(router: web.UrlDispatcher, prefix: str) -> None:
    path = f"{prefix}/v1/responses"
    router.add_post(path, _spoken(create))
    router.add_post(f"{path}/input_tokens", _spoken(count_input_tokens))
    router.add_get(path, _spoken(refuse_websocket), allow_head=False)
    router.add_get(f"{path}/{{id}}", _spoken(show), allow_head=False)
    router.add_delete(f"{path}/{{id}}", _spoken(delete))
    router.add_post(f"{path}/{{id}}/cancel", _spoken(cancel))
    router.add_get(f"{path}/{{id}}/input_items", _spoken(list_input_items), allow_head=False)


def _spoken(handler: Handler) -> Handler:
    """``handler``, with its errors in this protocol's shape."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[PROTOCOL] = RESPONSES
        return await handler(request)

    return handle


async def create(request: web.Request) -> web.StreamResponse:
    body = await read_json_object(request)
    conversation = (await _store(request, body)).completed(body)
    background, stored = body.get("background") is True, body.get("store") is not False
    if background and not stored:
        raise BadRequest("has to be true for a response in the background", field="store")
    incoming = Incoming(conversation.body, RESPONSES.parse_request(conversation.body))
    asked = ask(request, RESPONSES, incoming, background=background)
    if stored and asked.maker is not None:
        _keep(asked, conversation)
    if background and not asked.chat.stream:
        return await _started(asked)
    return await answer(request, asked.reply, stream=asked.chat.stream)


async def count_input_tokens(request: web.Request) -> web.StreamResponse:
    """Opens no session."""
    body = await read_json_object(request)
    conversation = (await _store(request, body)).completed(body)
    state = request.app[STATE]
    session = known_session(request, state.sessions, RESPONSES, body)
    count = await count_prompt_tokens(state.services, session, RESPONSES.parse_request(conversation.body))
    return _json(orjson.dumps({"object": "response.input_tokens", "input_tokens": count}))


def _keep(asked: Asked, conversation: Conversation) -> None:
    """Store the response that ``asked`` has just started."""
    maker = asked.maker
    assert maker is not None
    context = ResponsesContext.of(asked.chat)
    describe = partial(
        response_without_output, context, reply_id=maker.reply_id, model=maker.model, created=maker.created
    )
    asked.session.responses.add(
        maker.reply_id,
        conversation,
        asked.reply,
        describe,
        streamed=asked.chat.stream,
        record=asked.session.record_ended,
    )


async def _started(asked: Asked) -> web.Response:
    """A response that goes on in the background, once all is checked that can be refused. Raises: AdapterError."""
    reply = asked.reply
    with reply.observer() as reader:
        while reply.state is ReplyState.PREPARING:
            await reader.more()
    if reply.error is not None:
        raise reply.error
    reply.body = None  # It has been answered: the same request again is another response.
    response = asked.session.responses.get(reply.wire_id or "")
    assert response is not None
    return _json(response.current_body(), reply.headers)


async def show(request: web.Request) -> web.StreamResponse:
    response = await _found(request)
    if LOG_PROBS in request.query.getall("include", []) + request.query.getall("include[]", []):
        raise BadRequest(f"{LOG_PROBS} is not kept", field="include")
    if _word(request, "stream", ("false", "true")) != "true":
        if "starting_after" in request.query:
            raise BadRequest("needs stream=true", field="starting_after")
        return _json(response.current_body())
    if not response.streamed:
        raise BadRequest("only a response that was created with stream=true can be streamed", field="stream")
    reply = response.reply
    start = _integer(request, "starting_after", -1, -1) + 1
    if reply is None:
        raise Gone("the events of this response are no longer kept")
    if start < reply.events.first:
        raise Gone(f"events before number {reply.events.first} of this response are no longer kept")
    with reply.observer(start) as reader:
        return await EventStream(request, reply, reader, request.app[STATE].services.config).run()


async def delete(request: web.Request) -> web.StreamResponse:
    response_id, response = request.match_info["id"], await _found(request)
    session = known_session(request, request.app[STATE].sessions, RESPONSES, {})
    assert session is not None
    session.delete_response(response_id)
    if response.background and response.reply is not None:
        await response.reply.interrupt(Interrupted("the response was deleted"))
    await session.recorder.settled()
    return _json(orjson.dumps({"id": response_id, "object": "response", "deleted": True}))


async def cancel(request: web.Request) -> web.StreamResponse:
    """One that has ended stays as it is."""
    response = await _found(request)
    if not response.background:
        raise BadRequest("only a response that was created with background=true can be cancelled")
    if response.reply is not None:
        await response.reply.interrupt(Interrupted("the response was cancelled"))
    return _json(response.current_body())


async def list_input_items(request: web.Request) -> web.StreamResponse:
    """Pages of the whole input, what came from earlier responses included; the newest first."""
    items = [_listed(index, item) for index, item in enumerate((await _found(request)).input_items())]
    if _word(request, "order", ("desc", "asc")) == "desc":
        items.reverse()
    after = request.query.get("after")
    if after is not None:
        places = [index for index, item in enumerate(items) if item["id"] == after]
        if not places:
            raise BadRequest("no input item of this response has this id", field="after")
        items = items[places[0] + 1 :]
    limit = _integer(request, "limit", PAGE, 1, MAX_PAGE)
    page = items[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return _json(orjson.dumps({"object": "list", "data": page, "has_more": len(items) > limit, **ends}))


async def refuse_websocket(request: web.Request) -> web.StreamResponse:
    if request.headers.get("Upgrade", "").lower() == "websocket":
        raise UpgradeRequired("this server takes POST /v1/responses only, not websockets")
    raise MethodNotAllowed(f"{request.path} does not take {request.method}")


def _listed(index: int, item: Item) -> dict[str, Any]:
    """An item as the official API lists it: every one has a type and an id."""
    return {"type": "message", **item, "id": item.get("id") or f"item_{index}"}


async def _store(request: web.Request, body: dict[str, Any]) -> ResponseStore:
    """That of the session which the request is of. Raises: NotFound and Gone, for a session in the URL or of the key."""
    response_id = request.match_info.get("id", body.get("previous_response_id"))
    referred = session_of_response(response_id) if isinstance(response_id, str) else None
    if referred is not None:
        request[REFERRED_SESSION] = referred
    await load_named(request, RESPONSES, body)
    session = known_session(request, request.app[STATE].sessions, RESPONSES, body)
    return ResponseStore() if session is None else session.responses


async def _found(request: web.Request) -> StoredResponse:
    response_id = request.match_info["id"]
    response = (await _store(request, {})).get(response_id)
    if response is None:
        raise NotFound(f"Response with id '{response_id}' not found.")
    return response


def _word(request: web.Request, name: str, words: tuple[str, ...]) -> str:
    """One of ``words``, the first if it is left out."""
    word = request.query.get(name, words[0])
    if word not in words:
        raise BadRequest(f"must be {' or '.join(words)}", field=name)
    return word


def _integer(request: web.Request, name: str, default: int, low: int, high: int = 2**31) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if _INTEGER.fullmatch(text) is None or not low <= int(text) <= high:
        raise BadRequest(f"must be an integer in [{low}, {high}]", field=name)
    return int(text)


def _json(body: bytes, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, content_type="application/json", headers=headers)
