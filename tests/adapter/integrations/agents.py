"""Agents for tests: a program of the standard library, run as ``python -m tests.adapter.integrations.agents KIND [TEXT]``.

anthropic, openai   two turns with what the environment says, then exit
fail                one turn, a line on standard error, exit status 3
hang                leaves a child in the background, ignores SIGTERM, never ends; writes both pids to the file TEXT
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

Message = dict[str, Any]


def post(url: str, body: Message) -> Message:
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        answer: Message = json.load(response)
    return answer


def anthropic_turn(history: list[Message]) -> Message:
    body = {"max_tokens": 50, "messages": history, "temperature": 0.1}
    answer = post(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body)
    return {"role": "assistant", "content": answer["content"]}


def openai_turn(history: list[Message]) -> Message:
    answer = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"messages": history})
    message: Message = answer["choices"][0]["message"]
    return message


def main(kind: str, text: str) -> int:
    history: list[Message] = [{"role": "user", "content": text or sys.stdin.read()}]
    if kind == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        Path(text).write_text(f"{os.getpid()} {child.pid}")
        signal.pause()
    turn = openai_turn if kind == "openai" else anthropic_turn
    history.append(turn(history))
    if kind == "fail":
        print("no luck: ü", file=sys.stderr)
        return 3
    history += [{"role": "user", "content": "go on"}]
    turn(history)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
