"""The wire protocols of streaming APIs: one file a dialect, and this table of all of them."""

from __future__ import annotations

from monitor.agent.dialects.anthropic import Anthropic
from monitor.agent.dialects.bedrock import Bedrock
from monitor.agent.dialects.cohere import Cohere
from monitor.agent.dialects.contract import Decoder, Dialect, RequestParts
from monitor.agent.dialects.gemini import Gemini
from monitor.agent.dialects.ollama import Ollama
from monitor.agent.dialects.openai_chat import OpenAIChat
from monitor.agent.dialects.openai_responses import OpenAIResponses
from monitor.agent.dialects.timings import header_timings
from monitor.model import DialectName

__all__ = ["DIALECTS", "Decoder", "Dialect", "RequestParts", "header_timings"]

DIALECTS: dict[DialectName, Dialect] = {
    DialectName.OPENAI_CHAT: OpenAIChat(),
    DialectName.OPENAI_RESPONSES: OpenAIResponses(),
    DialectName.ANTHROPIC: Anthropic(),
    DialectName.GEMINI: Gemini(),
    DialectName.OLLAMA: Ollama(),
    DialectName.BEDROCK: Bedrock(),
    DialectName.COHERE: Cohere(),
}
