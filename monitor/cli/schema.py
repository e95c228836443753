"""`firsttoken schema`: the configuration's JSON Schema, for editors."""

from __future__ import annotations

import json

from monitor.cli import terminal
from monitor.config.reference import json_schema


def schema() -> None:
    """Print the JSON Schema of the configuration file; editors complete and check with it."""
    terminal.say(json.dumps(json_schema(), indent=2))
