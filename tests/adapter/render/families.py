"""The chat templates under test, each with the tokenizer it belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from adapter.render.prompt import Renderer
from tests.support.assets import demo_model_dir, template_file, tokenizer_dir


@dataclass(frozen=True, slots=True)
class Family:
    """A model family as a test sees it."""

    tokenizer: str
    """Of ``tests.support.assets``, or ``demo``."""
    template: str | None = None
    """One of our own, in place of the package's."""
    end_tokens: tuple[str, ...] = ()
    tools: bool = True
    """The template renders tool calls and their results."""
    drops_thinking: bool = False

    def load(self) -> Renderer:
        directory = demo_model_dir() if self.tokenizer == "demo" else tokenizer_dir(self.tokenizer)
        return Renderer.load(directory, template_file(self.template) if self.template else None, self.end_tokens)


FAMILIES = {
    "qwen2_5": Family("qwen2_5"),
    "qwen3": Family("qwen3", drops_thinking=True),
    "llama3_1": Family("llama3_1"),
    "gemma3": Family("gemma3", tools=False),
    "gptoss": Family("gptoss", "gptoss", ("<|return|>", "<|call|>"), drops_thinking=True),
    "deepseek_v3": Family("deepseek_v3", tools=False),
    "deepseek_v3_tools": Family("deepseek_v3", "deepseek_v3_tools"),
    "demo": Family("demo"),
}
WITH_TOOLS = [name for name, family in FAMILIES.items() if family.tools]
