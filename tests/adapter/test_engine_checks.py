"""check-engine and the doctor on several endpoints: each is told of, and one that does not fit the others is a fault."""

from __future__ import annotations

import io

from rich.console import Console

from adapter.engine_checks import Examined, as_document, engine_check, examine, print_examined
from engine.client import ClientOptions
from tests.engine.fake_triton import Described, fake_triton, serving_all

NOBODY = "127.0.0.1:1"
SHORT = ClientOptions(connect_timeout_s=0.5)


async def examined(*descriptions: Described) -> list[Examined]:
    """Servers of these descriptions, and one address at which there is none."""
    if not descriptions:
        return await examine([NOBODY], SHORT)
    async with (
        fake_triton(serving_all(), descriptions[0]) as one,
        fake_triton(serving_all(), descriptions[-1]) as other,
    ):
        return await examine([one, other, NOBODY], SHORT)


async def test_each_endpoint_is_told_of() -> None:
    small = Described(parameters={**Described().parameters, "max_seq_len": "100"})
    found = await examined(Described(), small)
    assert [each.fault is None for each in found] == [True, True, False]
    document = as_document(found)
    assert (document["max_seq_len"], document["vocab_size"], document["guides"]) == (100, 1000, [])
    assert [each["address"] for each in document["endpoints"]] == [each.address for each in found]
    assert "no Triton server answers at 127.0.0.1:1" in document["endpoints"][2]["fault"]
    assert [engine_check(each).ok for each in found] == [True, True, False]
    assert engine_check(found[2]).fix == "rollserve check-engine --triton 127.0.0.1:1"


async def test_one_that_disagrees_with_the_first_is_a_fault() -> None:
    other = Described(parameters={**Described().parameters, "vocab_size": "999"})
    found = await examined(Described(), other)
    assert found[0].fault is None
    assert "its vocabulary is 999, not 1000" in (found[1].fault or "")
    console = Console(file=io.StringIO(), width=200)
    print_examined(console, found)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{found[0].address} is fit to be served from" in text
    assert f"{found[1].address} cannot be served from" in text
    assert "vocabulary is 999" in text


async def test_where_none_is_there_nothing_is_in_common() -> None:
    document = as_document(await examined())
    assert list(document) == ["endpoints"]
