"""From an attempt to a message: a real Prometheus, a real Alertmanager, one notification and one resolve a trouble."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.model import FailureKind
from monitor.timeline import Phase
from tests.integration.alerting import ALERTMANAGER, PROMETHEUS, Behaviour, Chain, series

pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None, reason="Debian package prometheus is not installed"),
    pytest.mark.skipif(ALERTMANAGER is None, reason="Debian package prometheus-alertmanager is not installed"),
    pytest.mark.timeout(400),
]

PLACES = ("lagos", "london", "virginia")
TARGETS = (("chat", "acme"), ("embed", "acme"), ("own", "self"))
WATCHED = [series(place, target, provider) for place in PLACES for target, provider in TARGETS]


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    """A chain in which every pair has a vote, and nobody has been told anything."""
    with Chain(tmp_path, WATCHED) as running:
        running.until(lambda: running.query("count(pair:firsttoken_target:down == 0) == 9"), "a vote of each pair")
        yield running


def test_a_regression_is_told_once_and_resolved_once(chain: Chain) -> None:
    """A target that got slower everywhere: one message about it, none for each place, one when it is over."""
    usual = "count(series:firsttoken_ttft_seconds:usual) == 9"
    chain.until(lambda: chain.query(usual), "history to compare with")
    assert chain.webhook.told() == []
    chain.behave(Behaviour(ttft_ms=1200), lambda one: one.target.name == "chat")
    chain.until(chain.webhook.told, "a notification")
    chain.until(lambda: chain.fires("FirstTokenSlowFromVantage"), "the narrower alerts, which are left out")
    chain.settle()
    assert chain.webhook.told() == [("firing", "acme", ["FirstTokenSlow"])]
    text = chain.webhook.posts[0]["alerts"][0]["annotations"]["summary"]
    assert "chat (acme, small) is slower than usual from 3 of 3 vantage points (lagos, london, virginia)" in text
    assert "1.2s" in text
    assert "400ms" in text
    (mail,) = chain.mailbox.mails
    assert mail["Subject"] == "Warning: acme"
    plain, html = (str(part.get_payload(decode=True), "utf-8") for part in mail.get_payload())
    assert text in plain
    assert "Runbook: docs/runbook.md#firsttokenslow" in plain
    assert 'href="http://localhost:3000/d/firsttoken-latency' in html
    ((slack,),) = (post["attachments"] for post in chain.webhook.slack)
    assert (slack["title"], slack["color"]) == ("Warning: acme", "warning")
    assert text in slack["text"]
    chain.recover()
    chain.until(lambda: len(chain.webhook.told()) > 1, "its end")
    chain.settle()
    assert chain.webhook.told()[1:] == [("resolved", "acme", ["FirstTokenSlow"])]
    assert [mail["Subject"] for mail in chain.mailbox.mails] == ["Warning: acme", "Resolved: acme"]
    assert "Over, after " in chain.webhook.slack[-1]["attachments"][0]["text"]


def test_a_dead_line_in_lagos_is_told_once_and_about_lagos(chain: Chain) -> None:
    """Nine series, three of which die on the line: one message, and no target is blamed."""
    dead = Behaviour(kind=FailureKind.CONNECT_TIMEOUT, phase=Phase.CONNECT)
    chain.behave(dead, lambda one: one.vantage.name == "lagos")
    chain.until(chain.webhook.told, "a notification")
    chain.settle()
    assert chain.webhook.told() == [("firing", "vantage lagos", ["FirstTokenLineDown"])]
    assert "The line of lagos (NG) is down" in chain.webhook.posts[0]["alerts"][0]["annotations"]["summary"]
    chain.recover()
    chain.until(lambda: len(chain.webhook.told()) > 1, "its end")
    chain.settle()
    assert chain.webhook.told()[1:] == [("resolved", "vantage lagos", ["FirstTokenLineDown"])]


def test_a_provider_that_is_down_is_told_once(chain: Chain) -> None:
    """Two targets, three places, six failing series: one message about the provider."""
    chain.behave(Behaviour(kind=FailureKind.SERVER_ERROR), lambda one: one.target.provider == "acme")
    chain.until(chain.webhook.told, "a notification")
    for narrower in ("FirstTokenTargetDown", "FirstTokenTargetDownFromVantage"):
        chain.until(lambda name=narrower: chain.fires(name), f"{narrower}, which is left out")
    chain.settle()
    assert chain.webhook.told() == [("firing", "acme", ["FirstTokenProviderDown"])]
    chain.recover()
    chain.until(lambda: len(chain.webhook.told()) > 1, "its end")
    chain.settle()
    ((status, incident, names),) = chain.webhook.told()[1:]
    assert (status, incident) == ("resolved", "acme")
    assert "FirstTokenProviderDown" in names  # beside targets: what was left out is told of once it is over
