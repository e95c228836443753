"""Alerts about our own: agents, spools, the hub, budgets, and silence. For a hub and for one process alone."""

from __future__ import annotations

from monitor.rules.alert import Alert, Silences, listed, told
from monitor.rules.promql import ATTEMPT, INTERVAL, PAIR, PROCESS, SERIES, TOLD_BY_HUB, VANTAGE, events, expression
from monitor.rules.thresholds import HOUR, Thresholds, duration

PLACE = "vantage {{ $labels.vantage }}"
OF_VANTAGE = ("vantage", "country")
OF_PROCESS = ("instance", "job")
JOB = 'job=~"firsttoken.*"'
"""How the scrape jobs of First Token are called: prometheus.yml has `firsttoken`, `firsttoken-agents`."""
OWN_VANTAGES = (
    "count by (instance, job) (count by (instance, job, vantage) (last_over_time(firsttoken_series_info[1d])))"
)
"""Of how many vantage points a process told lately."""
HUBS = "group by (instance, job) (last_over_time(firsttoken_ingest_batches_total[1d]))"


def of_agent(what: str) -> str:
    """A gauge of the hub's about agents. It may miss a scrape, when the lease moves or the list is written."""
    return f"max by ({VANTAGE}) (last_over_time(firsttoken_agent_{what}[3m]))"


def fleet_alerts(t: Thresholds) -> list[Alert]:
    """In the order of the runbook."""
    return [*_silence(t), *_agents(t), *_spools(t), *_hub(t), _budget(t)]


def _silence(t: Thresholds) -> list[Alert]:
    seen = of_agent("last_seen_timestamp_seconds")
    # a process that measures for one place only, and keeps no other's: when it is away, that place is silent
    alone = f"({OWN_VANTAGES} == 1 unless on ({PROCESS}) {HUBS})"
    away = f"(up{{{JOB}}} == 0 and on ({PROCESS}) {alone})"
    last = "last_over_time(firsttoken_last_attempt_timestamp_seconds[1d])"
    limit = f"{t.vote_intervals:g} * {INTERVAL} + {t.vote_grace:g}"
    started = f"0 * firsttoken_interval_seconds + on ({PROCESS}) group_left () process_start_time_seconds"
    begun = f"time() - max by ({SERIES}) ({started})"
    left_out = events("firsttoken_missed_slots_total", 'reason=~"budget|paused|retry_after"', 2 * HOUR)
    return [
        Alert(
            name="NoData",
            expr="absent(firsttoken_last_attempt_timestamp_seconds)",
            lasting=t.absent_for,
            severity="critical",
            scope="everything",
            incident="no data",
            labels=(),
            summary="There is no measurement at all: no process that is scraped tells of any attempt",
            runbook="Look at Prometheus's targets page: is a hub or an agent scraped, and does one hold the lease?",
            dashboard="fleet",
        ),
        Alert(
            name="ProcessDown",
            expr=f"up{{{JOB}}} == 0 unless on ({PROCESS}) {alone}",
            lasting=t.scrape_for,
            severity="critical",
            scope="process",
            incident="process {{ $labels.instance }}",
            labels=OF_PROCESS,
            summary="{{ $labels.job }} at {{ $labels.instance }} cannot be scraped: nothing is known of what it keeps",
            runbook="Look at the process and its log, and at the way from Prometheus to it.",
            dashboard="fleet",
            silences=(Silences(names=("NoData",), equal=()),),
        ),
        Alert(
            name="AgentSilent",
            expr=expression(
                f"""
                time() - {seen} > {t.silent:g}
                or
                time() - max by ({VANTAGE}) ({last} and on ({PROCESS}) {away}) > {t.silent:g}
                """
            ),
            lasting=t.silent_for,
            keep=t.down_keep,
            severity="critical",
            scope="vantage",
            incident=PLACE,
            labels=OF_VANTAGE,
            summary="The agent of {{ $labels.vantage }} ({{ $labels.country }}) is silent: it was last heard of "
            "{{ $value | humanizeDuration }} ago",
            runbook="Power, line or process: ask for the machine; what it measures waits in its spool and comes later.",
            dashboard="fleet",
            silences=(
                Silences(
                    names=(
                        "LineDown",
                        "TargetDownFromVantage",
                        "SlowFromVantage",
                        "VantageSlow",
                        "NoDataFromVantage",
                        "AgentOutdated",
                        "AgentStarved",
                        "SpoolFilling",
                        "SpoolLosing",
                        "DeliveryBehind",
                        "BudgetSpent",
                    ),
                    equal=("vantage",),
                ),
                Silences(names=("NoData",), equal=()),
            ),
        ),
        Alert(
            name="NoDataFromVantage",
            expr=expression(
                f"""
                max by ({PAIR}) (
                (
                time() - {ATTEMPT} > {limit}
                or
                ({begun} > {limit} unless on ({SERIES}) {ATTEMPT})
                )
                unless on ({SERIES}) (
                sum by ({SERIES}) {left_out} > 0
                )
                )
                """
            ),
            lasting=t.no_data_for,
            severity="warning",
            scope="pair",
            incident=PLACE,
            labels=("vantage", "country", "provider", "target", "model"),
            summary="No data about {{ $labels.target }} ({{ $labels.provider }}, {{ $labels.model }}) from "
            "{{ $labels.vantage }} for {{ $value | humanizeDuration }}; planned is an attempt each "
            + told("firsttoken_interval_seconds", ("vantage", "target"), "humanizeDuration", around="min(%s)"),
            runbook="Look at Fleet: missed slots and their reasons, lag of the schedule, the agent's log.",
            dashboard="fleet",
        ),
    ]


def _agents(t: Thresholds) -> list[Alert]:
    hour = "1h"
    doubted = (
        "max by (vantage, country) (sum by (vantage, country, reason) (increase(firsttoken_doubts_total{%s}[1h])))"
    )
    doubts = doubted % 'reason=~"cpu_throttled|cpu_steal|loop_lag"'
    made = f"(sum by ({VANTAGE}) (increase(firsttoken_attempts_total[{hour}])) > 0)"
    return [
        Alert(
            name="AgentOutdated",
            expr=f"{of_agent('up_to_date')} == 0",
            lasting=t.outdated_for,
            severity="warning",
            scope="vantage",
            incident=PLACE,
            labels=OF_VANTAGE,
            summary="The agent of {{ $labels.vantage }} ({{ $labels.country }}) is outdated: it runs version "
            + listed("firsttoken_agent_info", ("vantage",), "version", around="%s")
            + " with configuration "
            + listed("firsttoken_agent_info", ("vantage",), "config_digest", around="%s")
            + ", the hub has "
            + listed("firsttoken_build_info", (), "version", around="group by (version) (%s)")
            + " or a newer configuration",
            runbook="Upgrade the agent; if its version is right, its log says why it refuses the new configuration.",
            dashboard="fleet",
        ),
        Alert(
            name="ConfigurationRefused",
            expr="firsttoken_config_last_reload_successful == 0",
            lasting=t.refused_for,
            severity="warning",
            scope="process",
            incident="process {{ $labels.instance }}",
            labels=OF_PROCESS,
            summary="{{ $labels.instance }} refuses its configuration file and goes on with the one of "
            + told(
                "firsttoken_config_last_reload_success_timestamp_seconds",
                ("instance",),
                "humanizeTimestamp",
            ),
            runbook="Run `firsttoken validate` on the file: it names every mistake with its line.",
            dashboard="fleet",
        ),
        Alert(
            name="AgentStarved",
            expr=expression(
                f"""
                {of_agent("starved")} > {t.starved_share:g}
                or
                {doubts} / on ({VANTAGE}) {made} > {t.starved_share:g}
                """
            ),
            lasting=t.starved_for,
            severity="warning",
            scope="vantage",
            incident=PLACE,
            labels=OF_VANTAGE,
            summary="The machine of {{ $labels.vantage }} ({{ $labels.country }}) is too busy to measure: "
            "{{ $value | humanizePercentage }} of an hour's attempts met throttled or stolen CPU or a lagging loop "
            f"(allowed: {t.starved_share * 100:g}%)",
            runbook="Give the agent more CPU or fewer probes; its figures are kept out of the statistics meanwhile.",
            dashboard="fleet",
        ),
    ]


def _spools(t: Thresholds) -> list[Alert]:
    size, limit = of_agent("spool_size_bytes"), of_agent("spool_limit_bytes")
    lost = "increase(firsttoken_agent_spool_lost_attempts_total[1h])"
    waited = of_agent("oldest_unsent_seconds")
    return [
        Alert(
            name="SpoolFilling",
            expr=f"{size} / {limit} > {t.spool_share:g}",
            lasting=t.spool_for,
            severity="warning",
            scope="vantage",
            incident=PLACE,
            labels=OF_VANTAGE,
            summary="The spool of {{ $labels.vantage }} ({{ $labels.country }}) is "
            "{{ $value | humanizePercentage }} full: "
            + told("firsttoken_agent_spool_attempts", ("vantage",), "humanize")
            + " attempts wait, the oldest for "
            + told("firsttoken_agent_oldest_unsent_seconds", ("vantage",), "humanizeDuration"),
            runbook="Find out why nothing is delivered (hub, line, token); raise spool.max_bytes if it will take days.",
            dashboard="fleet",
            silences=(Silences(names=("DeliveryBehind",), equal=("vantage",)),),
        ),
        Alert(
            name="SpoolLosing",
            expr=expression(
                f"""
                sum by ({VANTAGE}) ({lost}) > 0
                or
                sum by ({PROCESS}) (increase(firsttoken_spool_lost_attempts_total[1h])) > 0
                unless on ({PROCESS}) {TOLD_BY_HUB}
                """
            ),
            lasting=t.evaluation,
            severity="critical",
            scope="vantage",
            incident="spool {{ or $labels.vantage $labels.instance }}",
            labels=(*OF_VANTAGE, *OF_PROCESS),
            summary="Measurements are lost: the spool of {{ or $labels.vantage $labels.instance }} gave up "
            '{{ $value | printf "%.0f" }} attempts in an hour, because it is full or they are too old',
            runbook="Make room: a larger spool.max_bytes or disk; then see that delivery works again.",
            dashboard="fleet",
            silences=(Silences(names=("SpoolFilling", "DeliveryBehind"), equal=("vantage", "instance")),),
        ),
        Alert(
            name="DeliveryBehind",
            expr=expression(
                f"""
                {waited} > {t.unsent:g}
                or
                max by ({PROCESS}) (firsttoken_spool_oldest_age_seconds) > {t.unsent:g}
                unless on ({PROCESS}) {TOLD_BY_HUB}
                """
            ),
            lasting=t.spool_for,
            severity="warning",
            scope="vantage",
            incident="spool {{ or $labels.vantage $labels.instance }}",
            labels=(*OF_VANTAGE, *OF_PROCESS),
            summary="Results of {{ or $labels.vantage $labels.instance }} do not arrive: the oldest waits for "
            f"{{{{ $value | humanizeDuration }}}} (allowed: {duration(t.unsent)})",
            runbook="Look at the delivery errors in the agent's log, then at the hub and its database.",
            dashboard="fleet",
        ),
    ]


def _hub(t: Thresholds) -> list[Alert]:
    window = duration(t.ingest_window)
    failed = f'sum(increase(firsttoken_ingest_batches_total{{result="failed"}}[{window}]))'
    away = ("AgentSilent", "NoDataFromVantage", "DeliveryBehind", "SpoolFilling")
    return [
        Alert(
            name="IngestFailing",
            expr=expression(
                f"""
                {failed} > {t.ingest_count - 0.5:g}
                and {failed} / sum(increase(firsttoken_ingest_batches_total[{window}])) > {t.ingest_share:g}
                """
            ),
            lasting=t.ingest_for,
            severity="critical",
            scope="everything",
            incident="hub",
            labels=(),
            summary='The hub cannot keep what agents send: {{ $value | printf "%.0f" }} batches failed in '
            + window
            + " of "
            + told("firsttoken_ingest_batches_total", (), 'printf "%.0f"', around=f"sum(increase(%s[{window}]))"),
            runbook="Look at the hub's log and at Postgres (disk, connections); agents keep everything meanwhile.",
            dashboard="fleet",
            silences=(Silences(names=away, equal=()),),
        ),
        Alert(
            name="StoreAway",
            expr="firsttoken_store_up == 0",
            lasting=t.ingest_for,
            severity="critical",
            scope="process",
            incident="hub",
            labels=OF_PROCESS,
            summary="{{ $labels.instance }} cannot reach its Postgres: "
            + told("firsttoken_spool_attempts", ("instance",), "humanize")
            + " attempts wait in its spool",
            runbook="Look at Postgres (up, disk, connections, password); nothing is lost while the spool has room.",
            dashboard="fleet",
            silences=(Silences(names=away, equal=()), Silences(names=("IngestFailing",), equal=())),
        ),
        Alert(
            name="ClonedAgent",
            expr=expression(
                f"""
                sum by (vantage) (increase(firsttoken_ingest_attempts_total{{result="conflict"}}[1h])) > 0
                or
                sum by ({PROCESS}) (increase(firsttoken_conflicting_attempts_total[1h])) > 0
                unless on ({PROCESS}) {TOLD_BY_HUB}
                """
            ),
            lasting=t.evaluation,
            severity="warning",
            scope="vantage",
            incident="clone {{ or $labels.vantage $labels.instance }}",
            labels=("vantage", *OF_PROCESS),
            summary="Two agents measure as {{ or $labels.vantage $labels.instance }}: "
            '{{ $value | printf "%.0f" }} slots of an hour came twice with different results',
            runbook="Find the second machine with this vantage point's name or token (a copied image?), and stop it.",
            dashboard="fleet",
        ),
    ]


def _budget(t: Thresholds) -> Alert:
    missed = events("firsttoken_missed_slots_total", 'reason="budget"', t.budget_window)
    return Alert(
        name="BudgetSpent",
        expr=expression(f"sum by ({VANTAGE}) {missed} > 0"),
        lasting=t.evaluation,
        severity="warning",
        scope="vantage",
        incident="budget {{ $labels.vantage }}",
        labels=OF_VANTAGE,
        summary="The daily budget of {{ $labels.vantage }} ({{ $labels.country }}) is spent: "
        f'{{{{ $value | printf "%.0f" }}}} slots of the last {duration(t.budget_window)} were not measured for it ('
        + listed(
            "firsttoken_missed_slots_total",
            ("reason", "vantage"),
            "target",
            "count by (target) (%s)",
            {"reason": "budget"},
        )
        + "); it begins anew at midnight UTC",
        runbook="Raise the cap in `budget`, or probe less often; see the page's spend by target.",
        dashboard="fleet",
    )
