"""One agent's session: turn after turn until its plan is over, with sub-agents, disconnects, retries and compaction on the way."""

from __future__ import annotations

import time
import zlib

from loadtest.caller import Caller, Failed, Left
from loadtest.judge import Seen
from loadtest.shapes import Draws, Happening, Step
from loadtest.speech import Conversation

LINE = "src/module_{n}.py:{n}: def handler_{n}(request, *, retries={n}): return dispatch(request, timeout=2.5)\n"
LINE_TOKENS = 45
"""Of the demo model's tokenizer, about."""
LEAVE_AFTER = 3
"""Pieces of output that a client sees before it goes away."""
AGAIN_S = 0.01
"""Until it asks again."""


def text_of(tokens: int, number: int) -> str:
    """About ``tokens`` tokens; another text for each ``number``."""
    lines = max(1, tokens // LINE_TOKENS)
    return "".join(LINE.format(n=number * 1000 + place) for place in range(lines))


def ask_for(tokens: int) -> str:
    """What the scripted model reads its reply's length from; other models see a plain demand."""
    return f"Answer in about size-{tokens} tokens."


class AgentSession:
    """``opens`` says that the server has sessions, which are opened, spoken to under their own URL, and finished."""

    def __init__(self, sid: str, speaks: type[Conversation], caller: Caller, draws: Draws, *, opens: bool) -> None:
        self._sid, self._speaks, self._caller, self._draws, self._opens = sid, speaks, caller, draws, opens
        self._left = draws.turns()
        self._seen: list[Seen] = []
        self._texts = 0
        self._opened, self._finished = False, False
        self._context = draws.context_tokens()
        self._step = draws.step()
        self._restart()

    @property
    def over(self) -> bool:
        return self._left <= 0

    @property
    def gap_s(self) -> float:
        """Before the next turn."""
        return self._step.gap_s

    def turn(self) -> None:
        """Raises: Failed."""
        if self._opens and not self._opened:
            self._caller.control("open", "/v1/sessions", {"sid": self._sid})
            self._opened = True
            self._caller.recording.unfinished(self._sid, [])  # so that it is missed if the end does not come
        step = self._step
        if step.happening is Happening.SUB_AGENT:
            self._sub_agent()
        self._ask(step)
        self._left -= 1
        self._step = self._draws.step()
        if self._tokens > self._context:
            self._compact()

    def give_up(self) -> None:
        """After a turn that failed the session only has to be finished."""
        self._left = 0

    def finish(self) -> None:
        """Export the session, once; its turns count as lost if that fails."""
        if not self._opened or self._finished:
            return
        self._finished = True
        try:
            export = self._caller.control("finish", f"/v1/sessions/{self._sid}/finish", {"reward": 1.0})
            self._caller.recording.finished(self._sid, export, self._seen)
        except Failed:
            self._caller.recording.unfinished(self._sid, self._seen)

    def _restart(self, kept: str = "") -> None:
        """A conversation from its opening; ``kept`` is what an earlier one left."""
        opening = self._draws.opening_tokens()
        self._main = self._speaks(self._text(opening))
        self._tokens, self._before, self._kept = opening, None, kept

    def _ask(self, step: Step) -> None:
        self._say(self._main, self._kept, step)
        self._kept = ""
        self._before = self._complete(self._main, step.happening, self._before)
        self._tokens += step.new_tokens + self._main.output_tokens

    def _compact(self) -> None:
        """As agents do: a summary is asked for as one more turn, and a new conversation starts with it."""
        summary = self._draws.step()
        self._main.say(f"Summarise all of this for another agent. {ask_for(summary.output_tokens)}")
        self._complete(self._main, Happening.NOTHING, self._before)
        self._restart(f"Summary of the work so far: {self._text(summary.output_tokens)}")

    def _sub_agent(self) -> None:
        conversation = self._speaks(self._text(self._draws.opening_tokens() // 4))
        before = None
        for _ in range(self._draws.sub_agent_turns()):
            step = self._draws.step()
            self._say(conversation, "", step)
            before = self._complete(conversation, Happening.NOTHING, before)

    def _say(self, conversation: Conversation, kept: str, step: Step) -> None:
        conversation.say(f"{kept}{self._text(step.new_tokens)}{ask_for(step.output_tokens)}")

    def _complete(self, conversation: Conversation, happening: Happening, before: int | None) -> int:
        """Get the reply, whatever happens on the way, and take it into the history; gives its turn."""
        prefix, again = f"/s/{self._sid}" if self._opens else "", False
        leave_after = LEAVE_AFTER if happening is Happening.DISCONNECT else None
        try:
            turn = self._caller.reply(conversation, prefix, leave_after=leave_after)
            again = happening is Happening.RETRY
        except Left:
            again = True
        if again:
            if happening is Happening.RETRY:
                # It may be sampled again, beside this one; then both are trained.
                self._seen.append(Seen(turn, before, conversation.said()))
            time.sleep(AGAIN_S)
            turn = self._caller.reply(conversation, prefix, retry=1)
        conversation.keep()
        self._seen.append(Seen(turn, before, conversation.said()))
        return turn

    def _text(self, tokens: int) -> str:
        self._texts += 1
        return text_of(tokens, self._texts + 100 * (zlib.crc32(self._sid.encode()) % 1000))
