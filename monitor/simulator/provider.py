"""A simulated vendor behind one listener: who may ask, what is asked, and how the asked model behaves."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from monitor.clock import Clock
from monitor.model import DialectName
from monitor.simulator.answer import Answer, plan
from monitor.simulator.behaviour import Behaviour, Fault
from monitor.simulator.channel import Sent
from monitor.simulator.delivery import HOLD_SECONDS, Delivery
from monitor.simulator.dialects import WORDINGS
from monitor.simulator.exchange import Exchange
from monitor.simulator.heads import EVENT_STREAM, head
from monitor.simulator.machine import Machine, RefusedError
from monitor.simulator.pacer import NS, Pacer
from monitor.simulator.question import PATHS, BadQuestionError, Question, Request, question
from monitor.simulator.refusals import known_error, other_error
from monitor.simulator.sendlog import SendKind, SendLog

HTML_PAGE = "<!doctype html><html><head><title>Sign in</title></head><body><h1>Please sign in</h1></body></html>\n"
_PLAIN = Behaviour(server_timings=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What providers share: clock, pacer, log, and the behaviour of a model at this moment."""

    clock: Clock
    pacer: Pacer
    log: SendLog
    seed: int
    behaviour_now: Callable[[str, str], Behaviour | None]  # (listener, model); None: there is no such model
    models_now: Callable[[str], Mapping[str, Behaviour]]  # listener -> what it serves


class Provider:
    """Answers the requests of one listener."""

    def __init__(
        self,
        name: str,
        around: Surroundings,
        *,
        api_key: str | None = None,
        echo_key: bool = False,
        control_seconds: float = 0.0,
    ) -> None:
        self._name, self._around = name, around
        self._api_key, self._echo_key = api_key, echo_key
        self._control_seconds = control_seconds
        self._machines: dict[str, Machine] = {}
        self._random: dict[str, random.Random] = {}
        self._served = 0

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request. The client's going away ends it quietly."""
        request = exchange.request
        received_ns = self._now_ns()
        self._served += 1
        self._around.log.add(request.id, SendKind.REQUEST, None, received_ns, received_ns, len(request.body))
        visit = _Visit(self, exchange, received_ns)
        try:
            await self._route(visit, request)
        except OSError:
            exchange.abort()

    async def _route(self, visit: _Visit, request: Request) -> None:
        if self._api_key is not None and request.key != self._api_key:
            await visit.refuse(401, self._wrong_key(request), code="invalid_api_key")
        elif request.path == "/v1/models" or request.path.startswith("/v1/models/"):
            await self._control(visit, request)
        elif request.path not in PATHS:
            await visit.refuse(404, f"Invalid URL ({request.method} {request.path})")
        elif request.method != "POST":
            await visit.refuse(405, f"Not allowed to {request.method} on {request.path}")
        else:
            await self._complete(visit, request)

    async def _complete(self, visit: _Visit, request: Request) -> None:
        try:
            asked = question(request)
        except BadQuestionError as bad:
            await visit.refuse(400, str(bad))
            return
        behaviour = self._around.behaviour_now(self._name, asked.model)
        if behaviour is None:
            await visit.refuse(404, _no_model(asked), code="model_not_found")
            return
        chance = self._chance(asked.model)
        if behaviour.fault_share < 1 and chance.random() >= behaviour.fault_share:
            behaviour = replace(behaviour, fault=None, status=200)
        await self._behave(visit, asked, behaviour, chance)

    async def _behave(self, visit: _Visit, asked: Question, behaviour: Behaviour, chance: random.Random) -> None:
        visit.behaviour = behaviour
        if behaviour.fault is Fault.SILENCE:
            await asyncio.sleep(HOLD_SECONDS)
        elif behaviour.status != 200:
            await asyncio.sleep(behaviour.headers_seconds or 0)
            await visit.refuse(behaviour.status, "The simulator was told to answer so.", body=behaviour.body)
        elif behaviour.fault is Fault.HTML_PAGE or behaviour.body is not None:
            await visit.reply(200, "text/html; charset=utf-8", behaviour.body or HTML_PAGE)
        elif behaviour.fault is Fault.KEEP_ALIVES:
            await visit.delivery().comments_for_ever()
        else:
            await self._serve(visit, asked, behaviour, chance)

    async def _serve(self, visit: _Visit, asked: Question, behaviour: Behaviour, chance: random.Random) -> None:
        stream = asked.stream and behaviour.fault is not Fault.WHOLE_JSON
        delivery = visit.delivery()
        async with delivery.commenting():
            try:
                async with self._machine(asked.model).admitted(behaviour):
                    await self._generate(visit, delivery if stream else None, asked, chance)
            except RefusedError as refused:
                await visit.turn_away(refused, delivery if delivery.begun else None, asked)

    async def _generate(self, visit: _Visit, delivery: Delivery | None, asked: Question, chance: random.Random) -> None:
        behaviour, begun_ns = visit.behaviour, self._now_ns()
        first_ns = begun_ns + round(first_token_seconds(behaviour, asked.input_tokens, chance) * NS)
        headers = behaviour.headers_seconds
        headers_ns = first_ns if headers is None else min(first_ns, begun_ns + round(headers * NS))
        answer = visit.answer(asked, begun_ns, first_ns)
        if delivery is not None:
            await delivery.play(answer, headers_ns, first_ns)
            return
        await self._around.pacer.until(first_ns + round(answer.tokens / behaviour.tokens_per_second * NS))
        await visit.reply(200, "application/json", json.dumps(WORDINGS[asked.dialect].whole(answer)))

    async def _control(self, visit: _Visit, request: Request) -> None:
        """The model list, or one model: no GPU involved."""
        await asyncio.sleep(self._control_seconds)
        served = list(self._around.models_now(self._name))
        if request.path == "/v1/models":
            await visit.reply(200, "application/json", json.dumps(_model_list(served, request.dialect)))
            return
        name = request.path.removeprefix("/v1/models/")
        if self._around.behaviour_now(self._name, name) is None:
            await visit.refuse(404, f"The model '{name}' does not exist", code="model_not_found")
        else:
            await visit.reply(200, "application/json", json.dumps(_model_entry(name, request.dialect)))

    def _wrong_key(self, request: Request) -> str:
        if request.dialect is DialectName.ANTHROPIC and not self._echo_key:
            return "invalid x-api-key"
        if request.key is None:
            return "You didn't provide an API key."
        shown = request.key if self._echo_key else f"{request.key[:3]}{'*' * 8}{request.key[-4:]}"
        return f"Incorrect API key provided: {shown}. You can find your API key in your account settings."

    def _machine(self, model: str) -> Machine:
        return self._machines.setdefault(model, Machine(self._around.pacer))

    def _chance(self, model: str) -> random.Random:
        return self._random.setdefault(model, random.Random(f"{self._around.seed}/{self._name}/{model}"))

    def _now_ns(self) -> int:
        return self._around.clock.monotonic_ns()

    def watch_over(self, models: Mapping[str, Behaviour]) -> None:
        """Let the machines of `models` exist from now on, so that their idleness counts from the start."""
        for model in models:
            self._machine(model)


class _Visit:
    """One request being answered: the ways to end it."""

    def __init__(self, provider: Provider, exchange: Exchange, received_ns: int) -> None:
        self.behaviour = _PLAIN
        self._provider, self._exchange, self._received_ns = provider, exchange, received_ns

    def delivery(self) -> Delivery:
        """A stream that is about to begin; its head is made when it goes out."""
        around = self._provider._around
        return Delivery(self._exchange, self.behaviour, around.pacer, around.log, lambda: self._head(200, EVENT_STREAM))

    def answer(self, asked: Question, begun_ns: int, first_ns: int) -> Answer:
        """The plan of the answer; its timings are those of the grid, as a server's own clock would report them."""
        around = self._provider._around

        def timings() -> dict[str, Any] | None:
            return _timings(asked, answer, first_ns - begun_ns, around.clock.monotonic_ns() - first_ns)

        name = self._exchange.request.id.removeprefix("req_")
        created = around.clock.wall_ns() // NS
        reported = timings if self.behaviour.body_timings else lambda: None
        answer = plan(self.behaviour, asked, id=name, created=created, timings=reported)
        return answer

    async def refuse(self, status: int, text: str, *, code: str | None = None, body: str | None = None) -> None:
        """Answer with the vendor's JSON error of that status, or with `body` as it is."""
        request = self._exchange.request
        if body is None:
            error = other_error(request.dialect, status, text, request.id, code)
            await self.reply(status, "application/json", json.dumps(error))
        else:
            await self.reply(status, "text/plain; charset=utf-8", body)

    async def turn_away(self, refused: RefusedError, begun: Delivery | None, asked: Question) -> None:
        """The machine refused: the vendor's error, inside the stream when that has begun."""
        request = self._exchange.request
        status, error = known_error(request.dialect, refused.kind, request.id)
        if begun is not None:
            now = self._provider._now_ns()
            await begun.play_error(error, self.answer(asked, now, now))
            return
        retry = str(max(1, math.ceil(refused.retry_after_seconds)))
        await self.reply(status, "application/json", json.dumps(error), [("retry-after", retry)])

    async def reply(
        self, status: int, content_type: str, text: str, extra: list[tuple[str, str]] | None = None
    ) -> None:
        """A whole answer in one write."""
        data = text.encode()
        plain = replace(self.behaviour, gzip=False)
        made = self._head(status, content_type, plain)
        made.headers.extend([*(extra or []), ("content-length", str(len(data)))])
        sent = await self._exchange.send(head=made, data=data, end=True)
        self._note(SendKind.HEADERS, sent, 0)
        self._note(SendKind.BODY, sent, len(data))

    def _head(self, status: int, content_type: str, behaviour: Behaviour | None = None) -> Any:
        around = self._provider._around
        now_ns = around.clock.monotonic_ns()
        return head(
            self._exchange.request,
            behaviour or self.behaviour,
            status=status,
            content_type=content_type,
            served=self._provider._served,
            now=around.clock.now(),
            took_ms=(now_ns - self._received_ns) // 1_000_000,
        )

    def _note(self, kind: SendKind, sent: Sent, size: int) -> None:
        self._provider._around.log.add(self._exchange.request.id, kind, None, *sent, size)


def first_token_seconds(behaviour: Behaviour, input_tokens: int, chance: random.Random) -> float:
    """One draw of the time from admission to the first token."""
    seconds = behaviour.ttft_seconds
    if behaviour.ttft_sigma:
        seconds *= math.exp(chance.gauss(0, behaviour.ttft_sigma))
    if behaviour.ttft_jitter_seconds:
        seconds += chance.uniform(-behaviour.ttft_jitter_seconds, behaviour.ttft_jitter_seconds)
    return max(0.0, seconds) + behaviour.prefill_seconds_per_token * input_tokens


def _timings(asked: Question, answer: Answer, prompt_ns: int, predicted_ns: int) -> dict[str, Any]:
    """llama.cpp's `timings`."""
    made = answer.tokens
    return {
        "cache_n": 0,
        "prompt_n": asked.input_tokens,
        "prompt_ms": round(prompt_ns / 1e6, 3),
        "prompt_per_token_ms": round(prompt_ns / 1e6 / max(1, asked.input_tokens), 3),
        "predicted_n": made,
        "predicted_ms": round(predicted_ns / 1e6, 3),
        "predicted_per_token_ms": round(predicted_ns / 1e6 / max(1, made), 3),
    }


def _no_model(asked: Question) -> str:
    if asked.dialect is DialectName.ANTHROPIC:
        return f"model: {asked.model}"
    return f"The model `{asked.model}` does not exist or you do not have access to it."


def _model_list(names: list[str], dialect: DialectName) -> dict[str, Any]:
    entries = [_model_entry(name, dialect) for name in names]
    if dialect is DialectName.ANTHROPIC:
        first, last = (names[0], names[-1]) if names else (None, None)
        return {"data": entries, "has_more": False, "first_id": first, "last_id": last}
    return {"object": "list", "data": entries}


def _model_entry(name: str, dialect: DialectName) -> dict[str, Any]:
    if dialect is DialectName.ANTHROPIC:
        return {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": 1767225600, "owned_by": "simulator"}
