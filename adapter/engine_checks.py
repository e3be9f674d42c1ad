"""Endpoints examined for people: is each fit to be served from, and do they agree."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adapter.doctor import Check
from engine.agreement import disagreement, in_common
from engine.client import ClientOptions
from engine.errors import EngineError
from engine.probe import Finding, probe
from engine.types import EngineInfo


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found at ``address``. ``fault`` says why it cannot be served from; None if it can."""

    address: str
    findings: tuple[Finding, ...]
    info: EngineInfo | None = None
    fault: str | None = None


async def examine(addresses: Sequence[str], options: ClientOptions | None = None) -> list[Examined]:
    """All at once, in order. One that disagrees with the first that is fit is not."""
    found = await asyncio.gather(*(_examine(address, options) for address in addresses))
    agreed = next((each.info for each in found if each.info is not None), None)
    return [_held_against(agreed, each) for each in found]


async def _examine(address: str, options: ClientOptions | None) -> Examined:
    findings: list[Finding] = []
    try:
        info = await probe(address, options=options, report=findings.append)
    except EngineError as error:
        return Examined(address, tuple(findings), fault=str(error))
    return Examined(address, tuple(findings), info)


def _held_against(agreed: EngineInfo | None, each: Examined) -> Examined:
    fault = each.fault
    if agreed is not None and each.info is not None:
        fault = disagreement(agreed, each.info)
    return dataclasses.replace(each, fault=fault)


def as_document(examined: Sequence[Examined]) -> dict[str, Any]:
    """JSON-ready: what those that are fit have in common, and each ``endpoint`` with its ``fault``."""
    fit = [each.info for each in examined if each.info is not None and each.fault is None]
    common = _plain(in_common(fit)) if fit else {}
    return {**common, "endpoints": [{"address": each.address, "fault": each.fault} for each in examined]}


def _plain(info: EngineInfo) -> dict[str, Any]:
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in dataclasses.asdict(info).items()
    }


def print_examined(console: Console, examined: Sequence[Examined]) -> None:
    """A table for each."""
    for each in examined:
        verdict = "is fit to be served from" if each.fault is None else "cannot be served from"
        table = Table(title=f"{escape(each.address)} {verdict}", show_header=False)
        for finding in each.findings:
            table.add_row(finding.subject, escape(finding.detail))
        if each.info is not None:
            table.add_row("weight version", str(each.info.weight_version))
            table.add_row("LoRA adapters", ", ".join(sorted(each.info.loras)) or "none")
        if each.fault is not None:
            table.add_row("fault", escape(each.fault))
        console.print(table)


def engine_check(each: Examined) -> Check:
    """For the doctor."""
    if each.fault is None and each.info is not None:
        info = each.info
        detail = (
            f"{info.model}, {info.max_seq_len} tokens, {info.log_prob_mode} log probs, weights {info.weight_version}"
        )
        return Check(f"engine {each.address}", True, detail)
    return Check(f"engine {each.address}", False, each.fault or "", f"rollserve check-engine --triton {each.address}")
