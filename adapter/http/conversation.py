"""What a session has said, and stopping what it says.

GET  /v1/sessions/SID/history     the conversation of its main line, as it is saved
POST /v1/sessions/SID/interrupt   its running turns are stopped
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from adapter.errors import Interrupted
from adapter.http.session_name import SID
from adapter.http.state import STATE
from adapter.jsontext import dump_json
from adapter.sessions import Session
from adapter.trajectory.mainline import main_line
from adapter.types import Message


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get(f"/v1/sessions/{SID}/history", history)
    router.add_post(f"/v1/sessions/{SID}/interrupt", interrupt)


async def history(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions/SID/history``: neutral messages; ``turn_index`` where the message is a turn of this session.

    One snapshot: nothing is recorded while it is taken.
    """
    session = request.app[STATE].sessions.find(request.match_info["sid"])
    nodes = main_line(session.trajectory.chains())
    messages = [
        {**node.message, **({} if node.turn_index is None else {"turn_index": node.turn_index})}
        for node in nodes
        if node.message is not None
    ]
    answer = {"sid": session.sid, "turn_count": session.trajectory.turn_count, "messages": messages}
    return web.Response(body=dump_json(answer), content_type="application/json")


async def interrupt(request: web.Request) -> web.StreamResponse:
    """``POST /v1/sessions/SID/interrupt``: how many turns were stopped.

    The engine has been told when this answers. Clients are given an error, never the end of a reply; what was sampled is kept
    aside, as of any reply that was cut off.
    """
    session = request.app[STATE].sessions.find(request.match_info["sid"])
    error = Interrupted("the turn was stopped: its session was interrupted")
    stopped = await asyncio.gather(*(reply.interrupt(error) for reply in session.replies.running()))
    return web.Response(
        body=dump_json({"sid": session.sid, "interrupted": sum(stopped)}), content_type="application/json"
    )


def saved_messages(session: Session) -> tuple[Message, ...]:
    """The messages of the session's main line."""
    return tuple(node.message for node in main_line(session.trajectory.chains()) if node.message is not None)
