"""All SQL: the record of attempts in Postgres, its rollups, its retention, its queries, and the embedded server."""
