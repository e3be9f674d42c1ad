"""The trainer's side: open, list, look at, finish and drop sessions."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from adapter.http.bodies import read_json_object
from adapter.http.state import STATE
from adapter.jsontext import dump_json
from adapter.session_bodies import FinishRequest, SessionSettings, requested_sid
from adapter.sessions import Session
from adapter.trajectory import Export


async def open_session(request: web.Request) -> web.StreamResponse:
    """``POST /v1/sessions``: 201 with the session's name, the base URLs for clients, and its key where access keys are on."""
    body = await read_json_object(request, optional=True)
    state = request.app[STATE]
    settings = SessionSettings.parse(body)
    sid = requested_sid(body) or state.sessions.new_name()
    key = state.access.mint(sid)
    session = state.sessions.open(sid, settings, None if key is None else key.fingerprint)
    await state.sessions.recorder.settled()
    base_url = f"{state.own_url or f'{request.scheme}://{request.host}'}/s/{session.sid}"
    opened = {"sid": session.sid, "base_url": base_url, "openai_base_url": f"{base_url}/v1"}
    return _json(opened if key is None else {**opened, "session_key": key.text}, status=201)


async def list_sessions(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions``: all live sessions, without their messages; of those that are in the journal only, the names."""
    sessions = request.app[STATE].sessions
    stored = [{"sid": sid, "state": "stored"} for sid in sessions.stored()]
    return _json({"sessions": [*(_summary(session) for session in sessions.live()), *stored]})


async def show_session(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions/SID``: the session's tree as paths from root to leaf."""
    session = request.app[STATE].sessions.find(request.match_info["sid"])
    return _json({**_summary(session), "paths": session.trajectory.paths()})


async def explain_session(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions/SID/explain``: how each turn's history was recognised, and what its prompt is made of."""
    state = request.app[STATE]
    session = state.sessions.find(request.match_info["sid"])
    models = state.services.models

    def readable(turn: dict[str, Any]) -> dict[str, Any]:
        split = turn.get("divergence")
        if split is None:
            return turn
        texts = {side: models.decode(turn["head"]["model"], split[side]) for side in ("before", "known", "sent")}
        return {**turn, "divergence": {**split, "text": texts}}

    turns = [readable(turn.to_dict()) for turn in session.trajectory.explain()]
    return _json({"sid": session.sid, "policy": session.trajectory.policy, "turns": turns})


async def preview_samples(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions/SID/samples``: what ``finish`` would give now, or gave. Changes nothing."""
    answer = request.app[STATE].sessions.preview(request.match_info["sid"], _render_export)
    return web.Response(body=answer, content_type="application/json")


async def finish_session(request: web.Request) -> web.StreamResponse:
    """``POST /v1/sessions/SID/finish``: the session's samples and their ledger; the session is over."""
    body = await read_json_object(request, optional=True)
    finish = FinishRequest.parse(body)
    answer = await request.app[STATE].sessions.finish(request.match_info["sid"], finish, _render_export)
    return web.Response(body=answer, content_type="application/json")


async def drop_session(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/sessions/SID``: forget it, without samples."""
    await request.app[STATE].sessions.drop(request.match_info["sid"])
    return web.Response(status=204)


def _render_export(session: Session, export: Export) -> bytes:
    return dump_json(
        {
            "sid": session.sid,
            "turn_count": session.trajectory.turn_count,
            "samples": [sample.to_dict() for sample in export.samples],
            "ledger": export.ledger.to_dict(),
        }
    )


def _summary(session: Session) -> dict[str, Any]:
    turns = session.trajectory.turn_count
    return {
        "sid": session.sid,
        "state": session.state,
        "policy": session.trajectory.policy,
        "has_session": turns > 0,
        "turn_count": turns,
        "in_flight": len(session.in_flight),
        "created_at": session.created_at,
        "metadata": dict(session.settings.metadata),
        "sampling": {
            "default": dict(session.settings.sampling.default),
            "pinned": dict(session.settings.sampling.pinned),
        },
    }


def _json(document: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=dump_json(document), content_type="application/json")
