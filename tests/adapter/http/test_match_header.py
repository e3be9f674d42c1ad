"""``x-rollserve-match`` says before the turn is recorded what the record says of it afterwards, under either policy."""

from __future__ import annotations

import pytest

from tests.adapter.http.test_keep import END, ask, open_session, user
from tests.support.engine import Answer, FakeEngine


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("policy", "reasons"),
    [
        ("keep", ["new", "exact", "exact", "fork:edit", "new"]),
        ("template", ["new", "exact", "fork:template", "new", "new"]),
    ],
)
async def test_the_header_is_the_records_reason(serve, encode, policy: str, reasons: list[str]) -> None:
    # "Hel", "lo" is how it was sampled; the template renders one token.
    split = [*encode("Hel"), *encode("lo"), END]
    engine = FakeEngine([Answer([ids]) for ids in ([*encode("one"), END], split, *[[*encode("fine"), END]] * 3)])
    history = [user("a"), said("one"), user("b"), said("Hello"), user("c")]
    requests = [history[:1], history[:3], history, [user("a"), said("another"), user("b")], [user("other")]]
    async with serve(engine) as server:
        await open_session(server, policy=policy)
        headers = [(await ask(server, messages))[1] for messages in requests]
        async with server.http.get("/v1/sessions/s/explain") as response:
            recorded = [turn["reason"] for turn in (await response.json())["turns"]]
    assert headers == recorded == reasons
