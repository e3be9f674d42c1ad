"""A cheaper tokenizer (``adapter.render.fast``) for the models of a server that stays, loaded and examined in a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from adapter.logs import event
from adapter.render.encoding import Encoder

logger = logging.getLogger("rollserve.encoding")

SPEED_UP_AFTER_S = 10.0
"""A server that is gone before that is not worth some seconds of CPU time for each model."""


@contextmanager
def speeding_up(encoders: Mapping[str, Encoder], after_s: float = SPEED_UP_AFTER_S) -> Iterator[None]:
    """Have ``encoders``, by their model's name, change over to a cheaper tokenizer once it is loaded and gives the same ids.

    That takes seconds, in a thread; it begins ``after_s`` from now. To be entered before anybody is served. Belongs to the running
    event loop.
    """
    for encoder in encoders.values():
        encoder.describe()
    over = threading.Event()

    def change_over() -> None:
        for model, encoder in encoders.items():
            if over.is_set():
                return
            refused = encoder.speed_up()
            event(logger, logging.INFO, "encoding", model=model, fast=refused is None, why=refused)

    thread = threading.Thread(target=change_over, name="speed-up")
    timer = asyncio.get_running_loop().call_later(after_s, thread.start)
    try:
        yield
    finally:
        over.set()
        timer.cancel()
