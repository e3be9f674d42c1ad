"""The families of tool-call formats by name: one entry per family, and what it does is in one file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from adapter.parsing.base import UnknownParser
from adapter.parsing.tools.deepseek import DEEPSEEK
from adapter.parsing.tools.dsml import DEEPSEEK_DSML
from adapter.parsing.tools.family import ToolFamily, WholeReplyFamily
from adapter.parsing.tools.gemma import FUNCTION_GEMMA, GEMMA4
from adapter.parsing.tools.glm import GLM
from adapter.parsing.tools.harmony import HARMONY
from adapter.parsing.tools.hermes import HERMES
from adapter.parsing.tools.kimi import KIMI
from adapter.parsing.tools.llama import LLAMA
from adapter.parsing.tools.minimax import MINIMAX
from adapter.parsing.tools.mistral import MISTRAL
from adapter.parsing.tools.xml import XML, XML_FALLBACK

TOOL_FAMILIES: Mapping[str, ToolFamily | WholeReplyFamily] = MappingProxyType(
    {
        "none": XML_FALLBACK,
        "xml": XML,
        "hermes": HERMES,
        "qwen3_coder": XML,  # this and the next are the names that SGLang and slime use
        "qwen25": HERMES,
        "deepseek_v3": DEEPSEEK,
        "deepseek_v31": DEEPSEEK,
        "deepseek_v32": DEEPSEEK_DSML,
        "glm45": GLM,
        "glm47": GLM,
        "gpt_oss": HARMONY,
        "kimi_k2": KIMI,
        "llama": LLAMA,
        "llama3_json": LLAMA,  # this and the next two are the names that vLLM and SGLang use
        "llama4_pythonic": LLAMA,
        "pythonic": LLAMA,
        "gemma3": LLAMA,
        "function_gemma": FUNCTION_GEMMA,
        "gemma4": GEMMA4,
        "minimax_m2": MINIMAX,
        "mistral": MISTRAL,
    }
)


def require_tool_family(name: str) -> ToolFamily | WholeReplyFamily:
    """Raises: UnknownParser."""
    if name not in TOOL_FAMILIES:
        raise UnknownParser("tool", name, TOOL_FAMILIES)
    return TOOL_FAMILIES[name]
