"""Verdicts and findings: pure functions over attempts. They read no clock, no database and no configuration file."""
