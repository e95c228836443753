"""Alerts about targets and the roads to them: down, slow, burning, cold, limited; and the wider ones above."""

from __future__ import annotations

from monitor.rules.alert import Alert, Silences, listed, told
from monitor.rules.promql import LATEST, PAIR, PROCESS, SERIES, TARGET, VANTAGE, expression
from monitor.rules.recording import BURN_PAIRS, BurnPair
from monitor.rules.thresholds import Thresholds, duration

OF_TARGET = ("provider", "target", "model")
OF_PAIR = ("vantage", "country", *OF_TARGET)
OF_VANTAGE = ("vantage", "country")
OUTSIDE = "{{ $labels.provider }}"
ROAD = "{{ $labels.provider }} from {{ $labels.vantage }}"
PLACE = "vantage {{ $labels.vantage }}"
TARGET_NAMED = "{{ $labels.target }} ({{ $labels.provider }}, {{ $labels.model }})"
NARROW_DOWN = ("TargetDownFromVantage", "TargetDown", "ErrorBudgetBurn")
NARROW_SLOW = ("SlowFromVantage", "Slow")


def target_alerts(t: Thresholds) -> list[Alert]:
    """In the order of the runbook."""
    return [*_down(t), *_slow(t), *(_burn(t, pair) for pair in BURN_PAIRS), *_limits(t), *_certificates(t)]


def _down(t: Thresholds) -> list[Alert]:
    return [
        Alert(
            name="ProviderDown",
            expr=_of_provider(t, "target:firsttoken_target:down"),
            lasting=t.down_for,
            keep=t.down_keep,
            severity="critical",
            scope="provider",
            incident=OUTSIDE,
            labels=("provider",),
            summary="{{ $labels.provider }} does not answer: {{ $value }} of its targets fail ("
            + listed("target:firsttoken_target:down", ("provider",), "target")
            + "), each from most vantage points",
            runbook="Look at the provider's status page; move traffic to another provider if you can.",
            silences=(
                Silences(
                    names=(*NARROW_DOWN, *NARROW_SLOW, "ProviderSlow", "ColdStartStorm", "RateLimited"),
                    equal=("provider",),
                ),
            ),
        ),
        Alert(
            name="TargetDown",
            expr="target:firsttoken_target:down == 1",
            lasting=t.down_for,
            keep=t.target_down_keep,
            severity="critical",
            scope="target",
            incident=OUTSIDE,
            labels=OF_TARGET,
            summary=TARGET_NAMED
            + " does not answer: it fails from "
            + told("target:firsttoken_votes:down", ("target",), "humanize")
            + " of "
            + told("target:firsttoken_votes:cast", ("target",), "humanize")
            + " vantage points ("
            + listed("pair:firsttoken_target:down", ("target",), "vantage")
            + "), lately with "
            + _kinds("target"),
            runbook="Look at what it fails with, then at the provider's status page or the server's log.",
            silences=(Silences(names=("TargetDownFromVantage", "ErrorBudgetBurn", *NARROW_SLOW), equal=("target",)),),
        ),
        Alert(
            name="TargetDownFromVantage",
            expr="pair:firsttoken_target:down == 1 unless on (vantage) vantage:firsttoken_line:down == 1",
            lasting=t.down_from_vantage_for,
            severity="warning",
            scope="pair",
            incident=ROAD,
            labels=OF_PAIR,
            summary=TARGET_NAMED
            + " does not answer to {{ $labels.vantage }}, lately with "
            + _kinds("vantage", "target")
            + "; "
            + told("target:firsttoken_votes:down", ("target",), "humanize")
            + " of "
            + told("target:firsttoken_votes:cast", ("target",), "humanize")
            + " vantage points see it fail",
            runbook="Compare with other vantage points: it is the road, a block on this address, or this key's region.",
            silences=(Silences(names=("SlowFromVantage",), equal=("vantage", "target")),),
        ),
        Alert(
            name="LineDown",
            expr="vantage:firsttoken_line:down == 1",
            lasting=t.line_for,
            keep=t.down_keep,
            severity="critical",
            scope="vantage",
            incident=PLACE,
            labels=OF_VANTAGE,
            summary="The line of {{ $labels.vantage }} ({{ $labels.country }}) is down: none of its "
            + told("pair:firsttoken_target:down", ("vantage",), "humanize", around="count(%s)")
            + " targets can be reached from there, most attempts die before TLS is up",
            runbook="Look at the machine and its uplink (ping, DNS, its provider); the targets are not to blame.",
            dashboard="fleet",
            silences=(
                Silences(
                    names=(
                        "TargetDownFromVantage",
                        "SlowFromVantage",
                        "VantageSlow",
                        "NoDataFromVantage",
                        "DeliveryBehind",
                    ),
                    equal=("vantage",),
                ),
            ),
        ),
    ]


def _of_provider(t: Thresholds, state: str) -> str:
    """How many of a provider's targets are in a state, where that is enough of them."""
    return expression(
        f"""
        (sum by (provider) ({state}) >= {t.quorum:g})
        and on (provider) (sum by (provider) ({state}) / count by (provider) ({state}) >= {t.quorum_share:g})
        """
    )


def _slow(t: Thresholds) -> list[Alert]:
    window = duration(t.latency_window)
    pair = ("vantage", "target")
    times = '{{ $value | printf "%.1f" }} times its usual'
    return [
        Alert(
            name="ProviderSlow",
            expr=_of_provider(t, "target:firsttoken_target:slow"),
            lasting=t.latency_for,
            keep=t.latency_keep,
            severity="warning",
            scope="provider",
            incident=OUTSIDE,
            labels=("provider",),
            summary="{{ $labels.provider }} is slower than usual: {{ $value }} of its targets ("
            + listed("target:firsttoken_target:slow", ("provider",), "target")
            + "), each from most vantage points",
            runbook="Look at Geography: everywhere at once is the provider; look at its status page.",
            dashboard="geography",
            silences=(Silences(names=NARROW_SLOW, equal=("provider",)),),
        ),
        Alert(
            name="Slow",
            expr=expression(
                f"""
                max by ({TARGET}) (series:firsttoken_ttft_seconds:slowdown)
                and on ({TARGET}) target:firsttoken_target:slow == 1
                """
            ),
            lasting=t.latency_for,
            keep=t.target_latency_keep,
            severity="warning",
            scope="target",
            incident=OUTSIDE,
            labels=OF_TARGET,
            summary=TARGET_NAMED
            + " is slower than usual from "
            + told("target:firsttoken_slow_votes:slow", ("target",), "humanize")
            + " of "
            + told("target:firsttoken_slow_votes:cast", ("target",), "humanize")
            + " vantage points ("
            + listed("pair:firsttoken_ttft_seconds:slow", ("target",), "vantage")
            + "): its first token takes up to "
            + _of_worst("median", ("target",))
            + f" (median of {window}), {times} "
            + _of_worst("usual", ("target",)),
            runbook="Look at Latency and Cold starts: a queue, a sleeping model or a changed deployment.",
            dashboard="latency",
            silences=(Silences(names=("SlowFromVantage",), equal=("target",)),),
        ),
        Alert(
            name="SlowFromVantage",
            expr=expression(
                f"""
                max by ({PAIR}) (series:firsttoken_ttft_seconds:slowdown)
                and on ({PAIR}) pair:firsttoken_ttft_seconds:slow == 1
                """
            ),
            lasting=t.latency_from_vantage_for,
            keep=t.latency_from_vantage_keep,
            severity="warning",
            scope="pair",
            incident=ROAD,
            labels=OF_PAIR,
            summary=TARGET_NAMED + " is slower than usual from "
            "{{ $labels.vantage }}: its first token takes "
            + _of_worst("median", pair)
            + f" (median of {window}), {times} "
            + _of_worst("usual", pair),
            runbook="Look at Geography: which part of the way grew from this place, and for other targets, too?",
            dashboard="geography",
        ),
        Alert(
            name="VantageSlow",
            expr=_vantage_slow(t),
            lasting=t.latency_for,
            keep=t.latency_keep,
            severity="warning",
            scope="vantage",
            incident=PLACE,
            labels=OF_VANTAGE,
            summary="Everything is slow from {{ $labels.vantage }} ({{ $labels.country }}): {{ $value }} targets are "
            "slower than usual there ("
            + listed("pair:firsttoken_ttft_seconds:slow_here_alone", ("vantage",), "target")
            + ") and not in most other places",
            runbook="Look at the line and the machine of this place: round trips, loss, CPU.",
            dashboard="geography",
            silences=(Silences(names=("SlowFromVantage",), equal=("vantage",)),),
        ),
    ]


def _kinds(*labels: str) -> str:
    """What most attempts of a quarter of an hour failed with; a kind counts from its second failure on."""
    recent = "topk(2, sum by (kind) (increase(%s[15m])) > 0)"
    return listed("firsttoken_failures_total", labels, "kind", recent)


def _of_worst(what: str, labels: tuple[str, ...]) -> str:
    """Median or usual TTFT of that one of a pair's series which slowed down most."""
    worst = f"series:firsttoken_ttft_seconds:{what} and on (vantage, target, probe) topk(1, %s)"
    return told("series:firsttoken_ttft_seconds:slowdown", labels, "humanizeDuration", around=worst)


def _vantage_slow(t: Thresholds) -> str:
    alone = "pair:firsttoken_ttft_seconds:slow_here_alone"
    return expression(
        f"""
        count by ({VANTAGE}) ({alone} == 1) >= {t.vantage_targets:g}
        and on ({VANTAGE}) sum by ({VANTAGE}) ({alone}) / count by ({VANTAGE}) ({alone}) >= {t.vantage_share:g}
        and on ({VANTAGE}) count by ({VANTAGE}) (count by ({VANTAGE}, provider) ({alone} == 1)) >= 2
        """
    )


def _burn(t: Thresholds, pair: BurnPair) -> Alert:
    long, short = duration(pair.long), duration(pair.short)
    burn = "target:firsttoken_error_budget:burn"
    known = (
        f"last_over_time(target:firsttoken_attempts:rate[{duration(pair.long / 4)}] offset {duration(pair.long / 2)})"
    )
    slower = "|".join(duration(one.long) for one in BURN_PAIRS if one.long > pair.long)
    return Alert(
        name="ErrorBudgetBurn",
        window=long,
        expr=expression(
            f"""
            {burn}{{window="{long}"}} >= {pair.factor:g}
            and on ({TARGET}) {burn}{{window="{short}"}} >= {pair.factor:g}
            and on ({TARGET}) target:firsttoken_attempts:failed{{window="{long}"}} > {t.burn_failures - 0.5:g}
            and on ({TARGET}) {known}
            """
        ),
        lasting=2 * t.evaluation,
        severity=pair.severity,
        scope="target",
        incident=OUTSIDE,
        labels=OF_TARGET,
        summary=TARGET_NAMED
        + " fails too often for its objective of "
        + f"{t.objective * 100:g} %: in {long} it used up its error budget "
        + '{{ $value | printf "%.1f" }} times too fast ('
        + told("target:firsttoken_attempts:failed", ("window", "target"), 'printf "%.0f"', {"window": long})
        + f" failures), in {short} "
        + told(burn, ("window", "target"), 'printf "%.1f"', {"window": short})
        + " times",
        runbook="Look at what fails (Overview) and from where (Incidents); decide whether clients have to be moved.",
        dashboard="incidents",
        silences=(Silences(names=("ErrorBudgetBurn",), equal=("target",), windows=slower),) if slower else (),
    )


def _limits(t: Thresholds) -> list[Alert]:
    window, hour = duration(t.limited_window), duration(t.cold_window)
    limited = f'sum by ({TARGET}) (increase(firsttoken_failures_total{{kind="rate_limited"}}[{window}]))'
    made = f"sum by ({TARGET}) (increase(firsttoken_attempts_total[{window}]))"
    cold = "target:firsttoken_cold_starts"
    return [
        Alert(
            name="ColdStartStorm",
            expr=expression(
                f"""
                {cold}:share >= {t.cold_share:g}
                and on ({TARGET}) {cold}:count > {t.cold_count - 0.5:g}
                unless on ({TARGET}) ({cold}:share < {t.cold_ratio:g} * {cold}:share_before)
                """
            ),
            lasting=2 * t.evaluation,
            severity="warning",
            scope="target",
            incident=OUTSIDE,
            labels=OF_TARGET,
            summary=TARGET_NAMED
            + " is cold again and again: in "
            + f"{hour} {{{{ $value | humanizePercentage }}}} of the verdicts say that the model had to be loaded first "
            + "(on the day before: "
            + told(f"{cold}:share_before", ("target",), "humanizePercentage")
            + ")",
            runbook="Look at Cold starts: the idleness after which it sleeps, and whether replicas come and go.",
            dashboard="cold-starts",
        ),
        Alert(
            name="RateLimited",
            expr=expression(
                f"""
                ({limited} > {t.limited_count - 0.5:g})
                and on ({TARGET}) ({limited} / ({made} > 0) >= {t.limited_share:g})
                """
            ),
            lasting=2 * t.evaluation,
            severity="warning",
            scope="target",
            incident="{{ $labels.provider }} limits",
            labels=OF_TARGET,
            summary=TARGET_NAMED + " answers our probes with 429: "
            f'{{{{ $value | printf "%.0f" }}}} times in {window}, of '
            + told("firsttoken_attempts_total", ("target",), 'printf "%.0f"', around=f"sum(increase(%s[{window}]))")
            + " attempts; what it limits is this key, so nothing is said about others",
            runbook="Probe less often (interval, limits of the provider) or ask for a higher limit of this key.",
            silences=(Silences(names=("ErrorBudgetBurn",), equal=("target",)),),
        ),
    ]


def _certificates(t: Thresholds) -> list[Alert]:
    return [_certificate(t.certificate_critical, "critical"), _certificate(t.certificate_warning, "warning", last=True)]


def _certificate(within: float, severity: str, *, last: bool = False) -> Alert:
    shown = f"firsttoken_certificate_expiry_timestamp_seconds and on ({SERIES}, {PROCESS}) {LATEST}"
    left = f"min by ({TARGET}) ({shown}) - time()"
    return Alert(
        name="CertificateExpiring",
        window=duration(within),
        expr=f"{left} < {within:g}",
        lasting=300,
        severity=severity,
        scope="target",
        incident="{{ $labels.provider }} certificate",
        labels=OF_TARGET,
        summary="The certificate of " + TARGET_NAMED + " {{ if lt $value 0.0 }}has expired{{ else }}expires in "
        f"{{{{ $value | humanizeDuration }}}}{{{{ end }}}} (looked for: less than {duration(within)})",
        runbook="Tell whoever owns the endpoint to renew it; once it has expired, every client fails with tls_expired.",
        dashboard="fleet",
        silences=() if last else (Silences(names=("CertificateExpiring",), equal=("target",), windows=".+"),),
    )
