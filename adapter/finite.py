"""A number on the command line: finite, which click's own types do not ask for, and nothing that is compared with NaN is found."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """``click.FloatRange`` without NaN and the infinities."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not finite.", param, ctx)
        return found
