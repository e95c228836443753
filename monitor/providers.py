"""Ready-made providers: one entry each, so that a configuration names the provider and need not know its API.

An entry's forms are the protocols that it speaks, the usual one first. Configuration fills what a target leaves out
from the form of its dialect; whatever the file says itself wins. `evidence` says how a form is known to work: from
recorded answers that our tests decode, from a real server in our tests, or from documentation alone.

To add a provider, add its entry to `PROVIDERS` and run `python -m monitor.cli.providers docs/providers.md`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from monitor.model import DialectName

_D = DialectName


class Evidence(StrEnum):
    """How a form is known to work."""

    RECORDING = "recording"  # recorded answers of this provider are decoded by the tests
    SERVER = "server"  # the tests ask a real server
    DOCUMENTATION = "documentation"  # read only; please report what you find


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One protocol of a provider. `url` is the base as the vendor's SDK takes it, with `{names}` to be filled in."""

    dialect: DialectName
    url: str
    evidence: Evidence
    proof: str  # what the evidence is, or what is not known
    auth_header: str | None = None  # None: the dialect's own; "authorization": as bearer
    cap_field: str | None = None  # name of the output cap in chat completions; None: max_tokens
    body: Mapping[str, object] = field(default_factory=dict)  # merged over the dialect's body, under the target's own
    reasoning_off: Mapping[str, object] = field(default_factory=dict)  # the same for `reasoning: off`; {}: no switch

    @property
    def names(self) -> tuple[str, ...]:
        """What has to be filled into the URL, each once, in its order."""
        return tuple(dict.fromkeys(re.findall(r"\{(\w+)\}", self.url)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    title: str
    forms: tuple[Form, ...]
    note: str = ""

    def form(self, dialect: DialectName | None = None) -> Form | None:
        """The form of a dialect; the usual one without a dialect; None where the provider does not speak it."""
        if dialect is None:
            return self.forms[0]
        return next((form for form in self.forms if form.dialect is dialect), None)


def _chat(url: str, evidence: Evidence, proof: str, *, off: Mapping[str, object] | None = None, **keys: str) -> Form:
    return Form(
        dialect=_D.OPENAI_CHAT,
        url=url,
        evidence=evidence,
        proof=proof,
        reasoning_off=off or {},
        cap_field=keys.get("cap"),
        auth_header=keys.get("auth"),
    )


_RECORDING, _SERVER, _DOCUMENTATION = Evidence.RECORDING, Evidence.SERVER, Evidence.DOCUMENTATION
_NEWER_CAP = "max_completion_tokens"
_NO_EFFORT = {"reasoning_effort": "none"}
_NO_RESPONSES_EFFORT = {"reasoning": {"effort": "none"}}
_NO_THINKING = {"thinking": {"type": "disabled"}}
_NO_GEMINI_THINKING = {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}
_NO_TEMPLATE_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}

PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider(
        title="OpenAI",
        note="Models that do not reason, and those that always do, refuse `reasoning: off`.",
        forms=(
            _chat("https://api.openai.com/v1", _RECORDING, "30 streams", cap=_NEWER_CAP, off=_NO_EFFORT),
            Form(
                dialect=_D.OPENAI_RESPONSES,
                url="https://api.openai.com/v1",
                evidence=_RECORDING,
                proof="31 streams",
                reasoning_off=_NO_RESPONSES_EFFORT,
            ),
        ),
    ),
    "azure": Provider(
        title="Azure OpenAI (v1)",
        note="`model` is the name of the deployment.",
        forms=(
            _chat(
                "https://{resource}.openai.azure.com/openai/v1",
                _DOCUMENTATION,
                "address; answers as of azure-classic",
                cap=_NEWER_CAP,
                auth="api-key",
                off=_NO_EFFORT,
            ),
            Form(
                dialect=_D.OPENAI_RESPONSES,
                url="https://{resource}.openai.azure.com/openai/v1",
                evidence=_RECORDING,
                proof="1 stream (services.ai.azure.com)",
                auth_header="api-key",
                reasoning_off=_NO_RESPONSES_EFFORT,
            ),
        ),
    ),
    "azure-classic": Provider(
        title="Azure OpenAI (deployments)",
        note="Older API versions refuse `stream_options`: set it to null in `body`.",
        forms=(
            _chat(
                "https://{resource}.openai.azure.com/openai/deployments/{deployment}?api-version={api_version}",
                _RECORDING,
                "6 streams",
                cap=_NEWER_CAP,
                auth="api-key",
                off=_NO_EFFORT,
            ),
        ),
    ),
    "azure-foundry": Provider(
        title="Azure AI Foundry models",
        forms=(
            _chat(
                "https://{resource}.services.ai.azure.com/models?api-version=2024-05-01-preview",
                _RECORDING,
                "6 streams",
                auth="api-key",
            ),
        ),
    ),
    "anthropic": Provider(
        title="Anthropic",
        forms=(
            Form(
                dialect=_D.ANTHROPIC,
                url="https://api.anthropic.com",
                evidence=_RECORDING,
                proof="30 streams",
                reasoning_off=_NO_THINKING,
            ),
        ),
    ),
    "gemini": Provider(
        title="Gemini API",
        note="`reasoning: off` suits Gemini 2.5 Flash; Pro models always think, and 3.x take a `thinkingLevel`.",
        forms=(
            Form(
                dialect=_D.GEMINI,
                url="https://generativelanguage.googleapis.com",
                evidence=_RECORDING,
                proof="33 streams",
                reasoning_off=_NO_GEMINI_THINKING,
            ),
        ),
    ),
    "vertex": Provider(
        title="Vertex AI (Gemini)",
        note="The key is an OAuth access token, which lives an hour: best a header from a file that is renewed.",
        forms=(
            Form(
                dialect=_D.GEMINI,
                url="https://{location}-aiplatform.googleapis.com/v1/projects/{project}/locations/{location}/publishers/google",
                evidence=_RECORDING,
                proof="16 streams",
                auth_header="authorization",
                reasoning_off=_NO_GEMINI_THINKING,
            ),
        ),
    ),
    "vertex-claude": Provider(
        title="Vertex AI (Claude)",
        note="`model` with its date, such as claude-sonnet-4@20250514; the key is an OAuth access token.",
        forms=(
            Form(
                dialect=_D.ANTHROPIC,
                url="https://{location}-aiplatform.googleapis.com/v1/projects/{project}/locations/{location}/publishers/anthropic",
                evidence=_DOCUMENTATION,
                proof="request; answers as of anthropic",
                auth_header="authorization",
                reasoning_off=_NO_THINKING,
            ),
        ),
    ),
    "bedrock": Provider(
        title="Amazon Bedrock",
        note="`api_key` is a Bedrock API key; with the `aws_` keys instead, requests are signed. A URL that ends in "
        "/invoke-with-response-stream asks by InvokeModel, which alone tells the server's own time to first token.",
        forms=(
            Form(
                dialect=_D.BEDROCK,
                url="https://bedrock-runtime.{region}.amazonaws.com",
                evidence=_RECORDING,
                proof="38 Converse and 30 InvokeModel streams; signature judged by botocore",
            ),
        ),
    ),
    "bedrock-mantle": Provider(
        title="Amazon Bedrock (OpenAI shape)",
        forms=(
            Form(
                dialect=_D.OPENAI_RESPONSES,
                url="https://bedrock-mantle.{region}.api.aws/openai/v1",
                evidence=_RECORDING,
                proof="4 streams",
            ),
        ),
    ),
    "ollama": Provider(
        title="Ollama",
        note="`body: {keep_alive: 0}` makes every probe a cold start.",
        forms=(
            Form(
                dialect=_D.OLLAMA,
                url="http://127.0.0.1:11434",
                evidence=_DOCUMENTATION,
                proof="server's source",
                reasoning_off={"think": False},
            ),
            _chat("http://127.0.0.1:11434/v1", _RECORDING, "18 streams", off=_NO_EFFORT),
        ),
    ),
    "vllm": Provider(
        title="vLLM",
        forms=(_chat("http://127.0.0.1:8000/v1", _DOCUMENTATION, "server's source", off=_NO_TEMPLATE_THINKING),),
    ),
    "sglang": Provider(
        title="SGLang",
        forms=(_chat("http://127.0.0.1:30000/v1", _DOCUMENTATION, "server's source", off=_NO_TEMPLATE_THINKING),),
    ),
    "tgi": Provider(
        title="Text Generation Inference",
        forms=(_chat("http://127.0.0.1:8080/v1", _DOCUMENTATION, "server's source"),),
    ),
    "huggingface": Provider(
        title="Hugging Face Inference Endpoints",
        note="`host` is that of the endpoint, such as abc.eu-west-1.aws.endpoints.huggingface.cloud. The header "
        "`X-Scale-Up-Timeout: 600` makes the proxy hold a request while a replica starts, instead of a 503.",
        forms=(_chat("https://{host}/v1", _DOCUMENTATION, "address; cold 503s from its guide"),),
    ),
    "hf-router": Provider(
        title="Hugging Face router",
        forms=(_chat("https://router.huggingface.co/v1", _RECORDING, "1 stream (Novita)"),),
    ),
    "groq": Provider(
        title="Groq",
        note="`reasoning: off` suits Qwen; gpt-oss always reasons.",
        forms=(_chat("https://api.groq.com/openai/v1", _RECORDING, "6 streams", cap=_NEWER_CAP, off=_NO_EFFORT),),
    ),
    "cerebras": Provider(
        title="Cerebras",
        note="The token budget is charged by the cap: keep it small. gpt-oss always reasons.",
        forms=(_chat("https://api.cerebras.ai/v1", _DOCUMENTATION, "its SDK's types", cap=_NEWER_CAP, off=_NO_EFFORT),),
    ),
    "together": Provider(
        title="Together",
        forms=(_chat("https://api.together.xyz/v1", _DOCUMENTATION, "API reference"),),
    ),
    "fireworks": Provider(
        title="Fireworks",
        forms=(_chat("https://api.fireworks.ai/inference/v1", _DOCUMENTATION, "API reference", off=_NO_EFFORT),),
    ),
    "deepseek": Provider(
        title="DeepSeek",
        note="Thinking is on by default.",
        forms=(
            _chat("https://api.deepseek.com", _RECORDING, "13 streams", off=_NO_THINKING),
            Form(dialect=_D.OPENAI_RESPONSES, url="https://api.deepseek.com", evidence=_RECORDING, proof="4 streams"),
            Form(
                dialect=_D.ANTHROPIC,
                url="https://api.deepseek.com/anthropic",
                evidence=_DOCUMENTATION,
                proof="API reference",
            ),
        ),
    ),
    "openrouter": Provider(
        title="OpenRouter",
        note="Fix the upstream in `body`, or the target moves: `{provider: {order: [x], allow_fallbacks: false}}`.",
        forms=(
            _chat(
                "https://openrouter.ai/api/v1",
                _RECORDING,
                "21 streams",
                off={"reasoning": {"enabled": False}},
            ),
            Form(
                dialect=_D.OPENAI_RESPONSES, url="https://openrouter.ai/api/v1", evidence=_RECORDING, proof="6 streams"
            ),
        ),
    ),
    "mistral": Provider(
        title="Mistral",
        note="Only adjustable models take `reasoning: off`; Magistral always reasons.",
        forms=(_chat("https://api.mistral.ai/v1", _RECORDING, "14 streams", off=_NO_EFFORT),),
    ),
    "xai": Provider(
        title="xAI",
        note="Chat completions are called deprecated. The newest models may not let reasoning be turned off.",
        forms=(
            Form(
                dialect=_D.OPENAI_RESPONSES,
                url="https://api.x.ai/v1",
                evidence=_RECORDING,
                proof="10 streams",
                reasoning_off=_NO_RESPONSES_EFFORT,
            ),
            _chat("https://api.x.ai/v1", _DOCUMENTATION, "API reference; the shape is in the tests", cap=_NEWER_CAP),
        ),
    ),
    "cohere": Provider(
        title="Cohere",
        forms=(
            Form(
                dialect=_D.COHERE,
                url="https://api.cohere.com",
                evidence=_RECORDING,
                proof="11 streams",
                reasoning_off=_NO_THINKING,
            ),
        ),
    ),
    "perplexity": Provider(
        title="Perplexity",
        note="It answers from a search: its times are those of the search too.",
        forms=(_chat("https://api.perplexity.ai", _RECORDING, "1 stream"),),
    ),
    "llama-cpp": Provider(
        title="llama.cpp",
        forms=(
            _chat(
                "http://127.0.0.1:8080/v1",
                _SERVER,
                "the demo's model server and its recordings",
                off=_NO_TEMPLATE_THINKING,
            ),
            Form(
                dialect=_D.OPENAI_RESPONSES,
                url="http://127.0.0.1:8080/v1",
                evidence=_SERVER,
                proof="recordings of the demo's model server",
            ),
            Form(
                dialect=_D.ANTHROPIC,
                url="http://127.0.0.1:8080",
                evidence=_SERVER,
                proof="recordings of the demo's model server",
            ),
        ),
    ),
    "litellm": Provider(
        title="LiteLLM proxy",
        note="`model` is the name in the proxy's own list.",
        forms=(
            _chat("http://127.0.0.1:4000/v1", _DOCUMENTATION, "its documentation", off=_NO_EFFORT),
            Form(
                dialect=_D.ANTHROPIC,
                url="http://127.0.0.1:4000",
                evidence=_DOCUMENTATION,
                proof="its documentation",
                auth_header="authorization",
            ),
        ),
    ),
}
"""Provider name, as a target's `provider` has it -> what is known of it."""
