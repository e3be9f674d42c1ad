"""A request with tools, served though the chat template has no known format of calls, is told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapter.config import Config
from adapter.render.prompt import Renderer
from adapter.turn import NO_TOOL_FORMAT
from tests.support.assets import tokenizer_dir
from tests.support.engine import Answer, FakeEngine
from tests.support.server import serving

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    template: Path = tmp_path_factory.mktemp("template") / "plain.jinja"
    template.write_text(PLAIN)
    return Renderer.load(tokenizer_dir("qwen2_5"), template)


@pytest.mark.parametrize(
    ("tools", "tool_parser", "warning"),
    [([TOOL], "auto", NO_TOOL_FORMAT), ([TOOL], "hermes", None), ([], "auto", None)],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_only_tools_without_a_format_are_warned_of(
    plain: Renderer, tools: list[Any], tool_parser: str, warning: str | None, stream: bool
) -> None:
    engine = FakeEngine([Answer([[9707, 151645]])])
    async with serving(engine, plain, Config(tool_parser=tool_parser)) as server:
        body = CHAT | {"stream": stream} | ({"tools": tools} if tools else {})
        async with server.http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 200
            assert response.headers.get("x-rollserve-warning") == warning
            await response.read()


async def test_a_known_template_warns_of_nothing(qwen: Renderer) -> None:
    async with serving(FakeEngine([Answer([[9707, 151645]])]), qwen) as server:
        async with server.http.post("/v1/chat/completions", json=CHAT | {"tools": [TOOL]}) as response:
            assert response.status == 200
            assert "x-rollserve-warning" not in response.headers
