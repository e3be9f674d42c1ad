"""Requests for sessions of other workers, passed on to their owners; and what all workers have to answer together.

A handler that looks for a session which another worker owns raises ``OwnedElsewhere`` before it has answered anything. The request
then goes to the owner as it came, and its answer comes back piece by piece: a client that leaves closes the connection to the
owner, a reply that breaks off there breaks off here. A worker never builds a session that it does not own, and a request that was
passed on once is not passed on again.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from adapter import exposition
from adapter.errors import Unavailable
from adapter.http.state import COUNTED_ELSEWHERE, OF_A_PEER, STATE
from adapter.ownership import OwnedElsewhere, Ownership

FORWARDED = "x-rollserve-forwarded"
"""Set on what one worker asks of another, to the secret that the workers of this start share. Any other value is a client's own
invention, and counts for nothing. What is passed on keeps its access keys, and the owner judges them."""

PEER_TIMEOUT_S = 5.0
"""For what all workers answer together: one that hangs must not hold up the others."""

RETRY_AFTER_S = 1.0
"""A worker that ended is replaced within a second or two."""

_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
        "upgrade", "content-length", "date", "server",
    }
)  # fmt: skip
"""RFC 9110, 7.6.1; and what each server writes itself."""

_CREDENTIALS = frozenset({"authorization", "x-api-key", "x-goog-api-key"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Merging:
    """How the answers of all workers become one. ``missing`` stands for a worker that does not answer, as a 503."""

    merge: Callable[[Sequence[bytes]], bytes]
    missing: Callable[[int], bytes]
    complete: bool = True
    """Whether one worker's failure is everybody's."""


def merge_lists(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """``GET /v1/sessions`` of all workers."""
    return {"sessions": [session for answer in answers for session in answer.get("sessions", ())]}


def merge_engine(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """``GET /v1/engine`` of all workers: as the first sees it, with the generations of all."""
    live: Counter[tuple[str, str]] = Counter()
    for model, endpoint in _endpoints(answers):
        live[model, endpoint["address"]] += endpoint["live"]
    for model, endpoint in _endpoints(answers[:1]):
        endpoint["live"] = live[model, endpoint["address"]]
    paused = [answer for answer in answers if answer.get("paused")]
    return {**answers[0], "workers": len(answers), "paused_workers": len(paused)}


def _endpoints(answers: Iterable[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for answer in answers:
        for model in answer.get("models", ()):
            for endpoint in model["endpoints"]:
                yield model["model"], endpoint


def merge_ready(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """``GET /readyz`` of all workers: the first that is not ready speaks for all."""
    unready = [answer for answer in answers if answer.get("status") != "ready"]
    return {**(unready or answers)[0], "workers": len(answers), "ready": len(answers) - len(unready)}


def _json(merge: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> Merging:
    def silent(slot: int) -> bytes:
        return orjson.dumps({"status": "unavailable", "reason": f"worker {slot} does not answer"})

    return Merging(lambda bodies: orjson.dumps(merge([orjson.loads(body) for body in bodies])), silent)


MERGED: dict[str, Merging] = {
    "/v1/sessions": _json(merge_lists),
    "/readyz": _json(merge_ready),
    "/v1/engine": replace(_json(merge_engine), complete=False),
    "/metrics": Merging(exposition.merge, exposition.missing, complete=False),
}
"""Answers to GET requests that are made of every worker's."""


@dataclass(slots=True)
class Forwarding:
    """``urls``: where each slot's worker listens for itself. ``secret`` is what workers know one another by."""

    ownership: Ownership
    urls: Sequence[str]
    secret: str = field(repr=False)
    _http: aiohttp.ClientSession | None = field(default=None, init=False)

    def extend(self, app: web.Application) -> None:
        app.middlewares.append(self.middleware())
        app.on_startup.append(self.start)
        app.on_cleanup.append(self.stop)

    async def start(self, app: web.Application) -> None:
        # No limit on connections, and none on time: a reply may take as long as it takes.
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=PEER_TIMEOUT_S),
            auto_decompress=False,
        )

    async def stop(self, app: web.Application) -> None:
        if self._http is not None:
            await self._http.close()

    def middleware(self) -> Any:
        """Around every handler, inside what makes bodies of errors."""

        @web.middleware
        async def forward(request: web.Request, handler: Handler) -> web.StreamResponse:
            merging = MERGED.get(request.path) if request.method == "GET" else None
            if self._is_of_a_peer(request):
                request[OF_A_PEER] = True
                request[COUNTED_ELSEWHERE] = merging is not None
                return await self._own(request, handler)
            try:
                return await (handler(request) if merging is None else self._merged(request, handler, merging))
            except OwnedElsewhere as elsewhere:
                return await self._passed_on(request, elsewhere.slot)

        return forward

    def _is_of_a_peer(self, request: web.Request) -> bool:
        given = request.headers.get(FORWARDED, "")
        return hmac.compare_digest(given.encode(errors="backslashreplace"), self.secret.encode())

    async def _own(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except OwnedElsewhere as elsewhere:
            raise Unavailable(
                "the workers disagree about who owns this session", retry_after=RETRY_AFTER_S
            ) from elsewhere

    async def _passed_on(self, request: web.Request, slot: int) -> web.StreamResponse:
        """Raises: Unavailable, if the owner cannot be reached."""
        assert self._http is not None
        own = _HOP_BY_HOP | {FORWARDED}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in own}
        headers[FORWARDED] = self.secret
        url = self.urls[slot] + str(request.rel_url)
        try:
            async with self._http.request(
                request.method, url, data=await request.read(), headers=headers, allow_redirects=False
            ) as upstream:
                request[COUNTED_ELSEWHERE] = True
                request.app[STATE].services.watching.metrics.passed_on.inc()
                return await _relayed(request, upstream)
        except aiohttp.ClientConnectionError as error:
            raise Unavailable(f"worker {slot} is being replaced", retry_after=RETRY_AFTER_S) from error

    async def _merged(self, request: web.Request, handler: Handler, merging: Merging) -> web.StreamResponse:
        own = await handler(request)
        peers = [slot for slot in range(len(self.urls)) if slot != self.ownership.slot]
        answers = await asyncio.gather(*(self._asked(slot, request, merging) for slot in peers))
        assert isinstance(own, web.Response)
        assert isinstance(own.body, bytes)
        status = max([own.status, *(status for status, _ in answers)]) if merging.complete else own.status
        body = merging.merge([own.body, *(answer for _, answer in answers)])
        return web.Response(status=status, body=body, headers={"Content-Type": own.headers["Content-Type"]})

    async def _asked(self, slot: int, request: web.Request, merging: Merging) -> tuple[int, bytes]:
        assert self._http is not None
        timeout = aiohttp.ClientTimeout(total=PEER_TIMEOUT_S)
        headers = {name: value for name, value in request.headers.items() if name.lower() in _CREDENTIALS}
        try:
            url = self.urls[slot] + str(request.rel_url)
            async with self._http.get(url, headers={**headers, FORWARDED: self.secret}, timeout=timeout) as response:
                body = await response.read()
                return response.status, body if merging.complete or response.ok else merging.missing(slot)
        except (aiohttp.ClientError, TimeoutError):
            return 503, merging.missing(slot)


async def _relayed(request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP_BY_HOP}
    response = web.StreamResponse(status=upstream.status, headers=headers)
    if upstream.content_length is not None:
        response.content_length = upstream.content_length
    try:
        await response.prepare(request)
        async for piece in upstream.content.iter_any():
            await response.write(piece)
    except aiohttp.ClientError:
        # It broke off at the owner. What was begun must not look complete here either.
        response.force_close()
        if request.transport is not None:
            request.transport.close()
        return response
    await response.write_eof()
    return response
