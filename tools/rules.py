"""Writes what `make rules` promises: the rule file, promtool's cases, and the tables of docs/alerts.md.

With `--check` it only says what differs (exit code 1). The labels and texts of alerts in the cases come from promtool
itself; which alerts fire, and when, never does: where promtool disagrees with tests/rules/cases.py, nothing is written.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "rules")]

import cases  # noqa: E402  # found through the line above

from monitor.cli.rules import table  # noqa: E402
from monitor.rules import PREFIX, Links, Thresholds, every_alert, rule_file  # noqa: E402
from monitor.rules.alertmanager import HEAD as ALERTMANAGER_HEAD  # noqa: E402
from monitor.rules.alertmanager import Pace, configuration  # noqa: E402
from monitor.rules.groups import HEAD, to_yaml  # noqa: E402
from monitor.rules.receivers import from_environment  # noqa: E402

RULES = ROOT / "deploy" / "prometheus" / "firsttoken.rules.yml"
CASES = ROOT / "tests" / "rules"
PAGE = ROOT / "docs" / "alerts.md"
CASES_HEAD = "# Made by `make rules` from cases.py: what is seen, and what fires when. promtool test rules FILE\n"
GOT = re.compile(r"alertname: (\w+), time: ([^,]+),.*?got:\[(.*?)\]\n", re.DOTALL)
ALERT = re.compile(r"Labels:\{(.*?)\}\s*Annotations:\{(.*?)\}(?=\s*(?:,?\s*\n?\s*\d+:|$))", re.DOTALL)
PAIR = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Disagreement(Exception):
    """promtool sees other alerts than the cases say."""


def test_file(of: list[cases.Case], found: Mapping[tuple[int, str, str], list[dict[str, Any]]]) -> str:
    """promtool's file for some cases, with the alerts that were found filled in."""
    tests = [
        {
            "name": case.name,
            "interval": case.interval,
            "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
            "alert_rule_test": [
                {
                    "eval_time": f"{check.minute}m",
                    "alertname": PREFIX + check.alert,
                    "exp_alerts": found.get((number, check.alert, f"{check.minute}m"), []),
                }
                for check in case.checks
            ],
        }
        for number, case in enumerate(of)
    ]
    groups = [group["name"] for group in rule_file(Thresholds(), Links())["groups"]]
    head = {
        "rule_files": ["../../deploy/prometheus/firsttoken.rules.yml"],
        "evaluation_interval": of[0].interval,
        "group_eval_order": groups,
    }
    return CASES_HEAD + to_yaml({**head, "tests": tests})


def kept(path: Path, of: list[cases.Case]) -> str:
    """The file with the alerts that it holds already, where they are those that shall fire. Raises Disagreement."""
    held = yaml.safe_load(path.read_text(encoding="utf-8"))["tests"] if path.exists() else []
    found: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    for number, (case, test) in enumerate(zip(of, held, strict=False)):
        for check, told in zip(case.checks, test["alert_rule_test"], strict=False):
            if not agree(check.firing, told["exp_alerts"]):
                raise Disagreement(
                    f"{path.name}: {case.name}: {check.alert} at {check.minute}m is not what the cases say"
                )
            found[number, check.alert, f"{check.minute}m"] = told["exp_alerts"]
    return test_file(of, found)


def filled(of: list[cases.Case]) -> str:
    """The file with what promtool says of the alerts that shall fire. Raises Disagreement."""
    found: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    wrong = []
    for number, case in enumerate(of):
        got = ask_promtool(test_file([case], {}))
        for check in case.checks:
            when = f"{check.minute}m"
            alerts = got.get((PREFIX + check.alert, seconds(when)), [])
            if not agree(check.firing, alerts):
                seen = json.dumps([one["exp_labels"] for one in alerts])
                wrong.append(f"{case.name}: {check.alert} at {when}: wanted {list(check.firing)}, got {seen}")
            found[number, check.alert, when] = alerts
    if wrong:
        raise Disagreement("\n".join(wrong))
    return test_file(of, found)


def agree(wanted: tuple[Mapping[str, str], ...], got: list[dict[str, Any]]) -> bool:
    """Whether each wanted alert was found once, and nothing else."""
    added = {"severity", "scope", "incident", "window"}
    bare = [{k: v for k, v in one["exp_labels"].items() if k not in added - set().union(*wanted)} for one in got]
    return sorted(map(sorted, (one.items() for one in bare))) == sorted(
        map(sorted, (dict(one).items() for one in wanted))
    )


def ask_promtool(text: str) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """(alert's name, seconds) -> alerts that fire there although the file expects none."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "asked.yml"
        file.write_text(text.replace("../../deploy", str(ROOT / "deploy")), encoding="utf-8")
        done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    out = done.stdout + done.stderr
    if done.returncode and "got:" not in out:
        raise Disagreement(out[-3000:])
    return {(name, seconds(when)): alerts(listed) for name, when, listed in GOT.findall(out)}


def alerts(listed: str) -> list[dict[str, Any]]:
    """promtool's list of alerts as entries of its own files."""
    return [
        {
            "exp_labels": {k: json.loads(f'"{v}"') for k, v in PAIR.findall(labels) if k != "alertname"},
            "exp_annotations": {k: json.loads(f'"{v}"') for k, v in PAIR.findall(texts)},
        }
        for labels, texts in ALERT.findall(listed)
    ]


def seconds(when: str) -> int:
    """`1d3h5m` -> seconds."""
    units = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([wdhms])", when))


def wanted() -> dict[Path, str]:
    """File -> its text as it shall be, of those that need no promtool."""
    nobody = configuration(every_alert(Thresholds()), from_environment({}), "/etc/alertmanager/firsttoken.tmpl", Pace())
    texts = {
        RULES: HEAD + to_yaml(rule_file(Thresholds(), Links())),
        ROOT / "deploy" / "alertmanager" / "alertmanager.yml": ALERTMANAGER_HEAD + to_yaml(nobody),
    }
    if PAGE.exists():
        page = PAGE.read_text(encoding="utf-8")
        texts[PAGE] = re.sub(r"\| threshold \|.*?(?=\n\n|\Z)", lambda _: table(Thresholds()), page, flags=re.DOTALL)
    return texts


def main() -> int:
    """Write or check; returns the exit code."""
    check = "--check" in sys.argv[1:]
    for path, text in wanted().items():  # promtool reads the rules from their file
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            if check:
                sys.stdout.write(f"{path.relative_to(ROOT)} is not what the sources give: make rules\n")
                return 1
            path.write_text(text, encoding="utf-8")
    texts, wrong = wanted(), []
    for name, make in cases.FILES.items():
        try:
            path = CASES / f"{name}.yml"
            texts[path] = kept(path, make()) if check else filled(make())
        except Disagreement as error:
            wrong.append(str(error))
    if wrong:
        sys.stderr.write("\n".join(wrong) + "\n")
        return 1
    different = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in different:
        if check:
            sys.stdout.write(f"{path.relative_to(ROOT)} is not what the sources give: make rules\n")
        else:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if check and different else 0


if __name__ == "__main__":
    sys.exit(main())
