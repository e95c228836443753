"""Pieces of PromQL that several rules need: label lists, counters that appear late, windows."""

from __future__ import annotations

from monitor.rules.thresholds import duration

SERIES = "vantage, country, provider, target, model, probe"
PAIR = "vantage, country, provider, target, model"
"""One target from one vantage point."""
TARGET = "provider, target, model"
VANTAGE = "vantage, country"
PROCESS = "instance, job"

TOLD_BY_HUB = (
    "(firsttoken_series_info and on (vantage) last_over_time(firsttoken_agent_last_seen_timestamp_seconds[1d]))"
)
"""Processes that are agents of a hub, scraped beside it: the hub tells of their spools already."""

ATTEMPT = "series:firsttoken_last_attempt:timestamp_seconds"
SUCCESS = "series:firsttoken_last_success:timestamp_seconds"
INTERVAL = "series:firsttoken_interval:seconds"
_AT = "firsttoken_last_attempt_timestamp_seconds"
LATEST = f"({_AT} == on ({SERIES}) group_left () max by ({SERIES}) ({_AT}))"
"""Of several copies that took in results of a series, the one that has the last word."""
FAILING = "series:firsttoken_attempt:failing"
DOWN = "pair:firsttoken_target:down"
LINE_DOWN = "vantage:firsttoken_line:down"


def expression(text: str) -> str:
    """A query with each line indented by the brackets that are open there; empty lines are dropped."""
    lines: list[str] = []
    depth = 0
    for line in filter(None, map(str.strip, text.splitlines())):
        closed = len(line) - len(line.lstrip(")"))
        lines.append("  " * max(0, depth - closed) + line)
        depth += line.count("(") - line.count(")")
    return "\n".join(lines)


def nested(text: str) -> str:
    """A piece of a query on lines of its own inside brackets."""
    return f"(\n{text}\n)"


def events(metric: str, matchers: str, window: float) -> str:
    """How often something was counted in a window, where the counter appears with its first event.

    `increase` sees nothing of a counter's first value. So a counter that was not there a window ago counts whole, if
    its process was: the attempts of the same series, which exist from the start, prove that. A Prometheus or a process
    that has just come up thus never mistakes a whole life's count for news.
    """
    span = duration(window)
    old = f'firsttoken_attempts_total{{outcome="success"}} offset {span}'
    return nested(
        f"""
        (({metric}{{{matchers}}} unless {metric}{{{matchers}}} offset {span})
          and on (vantage, target, probe, {PROCESS}) {old})
        or increase({metric}{{{matchers}}}[{span}])
        """
    )
