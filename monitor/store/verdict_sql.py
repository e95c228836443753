"""The statements of `verdicts`: each finds what it needs by an index range for each attempt asked about."""

from __future__ import annotations

from sqlalchemy import TextClause, text

_KEY = "vantage_id, series_id, scheduled_at, try"
_KEYS = (
    "json_to_recordset(CAST(:keys AS json)) "
    "AS k(vantage_id bigint, series_id bigint, scheduled_at timestamptz, try smallint)"
)
_SAME = (
    "{0}.vantage_id = k.vantage_id AND {0}.series_id = k.series_id "
    "AND {0}.scheduled_at = k.scheduled_at AND {0}.try = k.try"
)
_ENDED = "a.started_at + make_interval(secs => coalesce(a.end_ns, a.gave_up_ns, 0) / 1e9)"

ASK = text(
    f"INSERT INTO unjudged ({_KEY}, due_at) SELECT {_KEY}, :due FROM {_KEYS} ORDER BY {_KEY} ON CONFLICT ({_KEY}) "
    "DO NOTHING"
)


def _claim(where: str) -> TextClause:
    return text(
        f"DELETE FROM unjudged u USING (SELECT {_KEY} FROM unjudged WHERE due_at <= :now AND {where} "
        "ORDER BY scheduled_at, series_id, try LIMIT :limit FOR UPDATE SKIP LOCKED) k "
        f"WHERE {_SAME.format('u')} RETURNING u.vantage_id, u.series_id, u.scheduled_at, u.try"
    )


CLAIM_FRESH = _claim("scheduled_at >= :fresh")
CLAIM_BACKLOG = _claim("scheduled_at < :fresh")
CLAIM_TWINS = text(
    f"DELETE FROM unjudged u USING (SELECT q.vantage_id, q.series_id, q.scheduled_at, q.try FROM unjudged q "
    f"JOIN {_KEYS} ON {_SAME.format('q')} FOR UPDATE OF q SKIP LOCKED) k "
    f"WHERE {_SAME.format('u')} RETURNING u.vantage_id, u.series_id, u.scheduled_at, u.try"
)

SUCCESSORS = text(
    f"SELECT y.vantage_id AS of_vantage, y.series_id AS of_series, y.scheduled_at AS of_slot, y.try AS of_try, "
    f"{_ENDED.replace('a.', 'y.')} AS ended, n.vantage_id, n.series_id, n.scheduled_at, n.try, n.started_at "
    f"FROM {_KEYS} JOIN attempts y ON {_SAME.format('y')} "
    "JOIN series s ON s.vantage_id = y.vantage_id AND s.series_id = y.series_id "
    "JOIN series sibling ON sibling.target_id = s.target_id "
    "CROSS JOIN LATERAL ("  # of those that have a verdict; the others wait for theirs anyway
    "  SELECT v.vantage_id, v.series_id, v.scheduled_at, v.try, v.started_at FROM verdicts v"
    "  WHERE v.vantage_id = sibling.vantage_id AND v.series_id = sibling.series_id"
    "  AND v.scheduled_at > y.started_at - CAST(:slack AS interval)"
    "  AND v.scheduled_at < y.started_at + CAST(:look_back AS interval)"
    "  AND v.started_at > y.started_at AND v.version = :version"
    "  ORDER BY v.scheduled_at, v.try LIMIT :limit"
    ") n WHERE y.scheduled_at BETWEEN :first AND :last AND y.send_start_ns IS NOT NULL"
)
EVIDENCE = text(
    f"SELECT x.*, s.vantage, s.target, s.probe, busy.until AS busy_until, old.settled AS was_settled "
    f"FROM {_KEYS} JOIN attempts x ON {_SAME.format('x')} "
    "JOIN series s ON s.vantage_id = x.vantage_id AND s.series_id = x.series_id "
    f"LEFT JOIN verdicts old ON {_SAME.format('old')} AND old.version = :version "
    "LEFT JOIN LATERAL ("
    "  SELECT max(last.ended) AS until FROM series sibling CROSS JOIN LATERAL ("
    f"   SELECT {_ENDED} AS ended FROM attempts a"
    "    WHERE a.vantage_id = sibling.vantage_id AND a.series_id = sibling.series_id"
    "    AND a.scheduled_at > x.started_at - CAST(:look_back AS interval) AND a.scheduled_at <= x.started_at"
    "    AND a.started_at < x.started_at AND a.send_start_ns IS NOT NULL"
    "    ORDER BY a.scheduled_at DESC, a.try DESC LIMIT 1"
    "  ) last WHERE sibling.target_id = s.target_id"
    ") busy ON true "
    "WHERE x.scheduled_at BETWEEN :first AND :last AND x.outcome <> 'missed' ORDER BY x.started_at, x.try"
)

SAMPLE = {
    "server_part_seconds": "server_part",
    "accounted_seconds": "accounted",
    "load_seconds": "load",
    "connect_seconds": "connect",
    "tls_seconds": "tls",
    "token_seconds": "token_time",
}
HISTORY = text(
    f"SELECT k.vantage_id, k.series_id, k.scheduled_at AS of_slot, k.try AS of_try, h.* FROM {_KEYS} "
    f"JOIN attempts x ON {_SAME.format('x')} CROSS JOIN LATERAL ("
    f"  SELECT v.scheduled_at, v.try, v.version, {', '.join(f'v.{name}' for name in SAMPLE)} FROM verdicts v"
    "  WHERE v.vantage_id = k.vantage_id AND v.series_id = k.series_id AND v.scheduled_at < k.scheduled_at"
    "  AND v.scheduled_at > k.scheduled_at - CAST(:look_back AS interval) AND v.version <= :version"
    "  AND v.kind = 'warm' AND v.server_part_seconds IS NOT NULL AND v.probe_version = x.probe_version"
    "  ORDER BY v.scheduled_at DESC, v.try DESC, v.version DESC LIMIT :limit"
    ") h WHERE x.scheduled_at BETWEEN :first AND :last"
)

_FACTS = (
    "started_at, settled, kind, reasons, idle_before_seconds, penalty_seconds, probe_version, ttft_seconds, "
    + ", ".join(SAMPLE)
)
_CHANGED = "(v.settled, v.kind, v.reasons, v.idle_before_seconds, v.penalty_seconds)"
WRITE = text(
    f"INSERT INTO verdicts AS v ({_KEY}, version, judged_at, {_FACTS}) "
    f"SELECT {_KEY}, version, judged_at, {_FACTS} "
    f"FROM json_populate_recordset(NULL::verdicts, CAST(:rows AS json)) ORDER BY {_KEY} "
    f"ON CONFLICT ({_KEY}, version) DO UPDATE SET judged_at = excluded.judged_at, "
    + ", ".join(f"{name} = excluded.{name}" for name in _FACTS.split(", "))
    + f" WHERE {_CHANGED} IS DISTINCT FROM {_CHANGED.replace('v.', 'excluded.')}"
)
_OF_SERIES = "JOIN series s ON s.vantage_id = v.vantage_id AND s.series_id = v.series_id"
LATEST = text(
    "SELECT v.*, s.vantage, s.target, s.probe FROM series s CROSS JOIN LATERAL ("
    "  SELECT * FROM verdicts v WHERE v.vantage_id = s.vantage_id AND v.series_id = s.series_id"
    "  AND v.scheduled_at >= :since AND v.version = :version ORDER BY v.scheduled_at DESC LIMIT :limit"
    ") v"
)
SINCE = text(
    f"SELECT v.*, s.vantage, s.target, s.probe FROM verdicts v {_OF_SERIES} "
    "WHERE v.judged_at >= :since AND v.version = :version ORDER BY v.judged_at DESC LIMIT :limit"
)
ASK_AGAIN = text(
    f"INSERT INTO unjudged ({_KEY}, due_at) SELECT a.vantage_id, a.series_id, a.scheduled_at, a.try, :now "
    "FROM attempts a WHERE a.scheduled_at >= :since AND a.scheduled_at < :until AND a.outcome <> 'missed' "
    "AND NOT EXISTS (SELECT FROM verdicts v WHERE v.vantage_id = a.vantage_id AND v.series_id = a.series_id "
    "AND v.scheduled_at = a.scheduled_at AND v.try = a.try AND v.version = :version) "
    f"ON CONFLICT ({_KEY}) DO NOTHING"
)
