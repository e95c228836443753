"""Fail when a test was skipped for a reason that is not on the list: a skip nobody expects is a promise not kept.

    python3 .ci/check_skips.py JUNIT.xml ALLOWED.txt

The list has one line for each allowed skip: a regular expression for its message, ` # `, and why it is allowed.
Prints nothing when all is well, so that pytest's closing line stays the last.
"""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree


def allowed(path: Path) -> list[re.Pattern[str]]:
    """The expressions of the list; each has to carry its reason."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    unreasoned = [line for line in lines if " # " not in line]
    if unreasoned:
        sys.exit(f"{path}: no reason (after ' # ') for: {unreasoned[0]}")
    return [re.compile(line.partition(" # ")[0].strip()) for line in lines]


def skips(path: Path) -> list[tuple[str, str]]:
    """(test, message) of each skipped test of a run."""
    cases = ElementTree.parse(path).iter("testcase")
    return [
        (f"{case.get('classname')}::{case.get('name')}", skip.get("message") or "")
        for case in cases
        for skip in case.findall("skipped")
        if skip.get("type") != "pytest.xfail"
    ]


def main(junit: str, listed: str) -> None:
    expected = allowed(Path(listed))
    for test, message in (found := skips(Path(junit))):
        if not any(pattern.search(message) for pattern in expected):
            print(f"Unexpected skip: {test}: {message}")
    if any(not any(pattern.search(message) for pattern in expected) for _, message in found):
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:3])
