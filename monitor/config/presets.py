"""What a target leaves out and its provider's entry knows: dialect, base URL, body, where the key goes.

Whatever the file says itself wins. A URL's `{names}` are filled from `url_values`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monitor.config import kinds
from monitor.config.mistake import did_you_mean, listed, quoted
from monitor.config.notes import Notes
from monitor.config.reading import Entry
from monitor.config.shape import TargetKeys
from monitor.config.types import FrozenDict
from monitor.model import DialectName, Secret
from monitor.providers import PROVIDERS, Form


def completed(notes: Notes, entry: Entry[TargetKeys]) -> Entry[TargetKeys]:
    """The target with its provider's entry under it; notes what is missing still, or cannot be used."""
    written = entry.value
    form = _form(entry)
    bad = {name for name in ("dialect", "url") if name not in entry.lines and not entry.good("provider")}
    if "dialect" not in entry.lines and form is None and entry.good("provider"):
        allowed = f"{kinds.member(DialectName).allowed}; or a provider of `firsttoken providers`"
        notes.wrong(entry.line, f"{entry.path}.dialect", "nothing", allowed)
        bad.add("dialect")
    url = written.url if "url" in entry.lines or not entry.good("provider") else _url(notes, entry, form)
    if url is None:
        bad.add("url")
    _check_values(notes, entry, form)
    _check_aws(notes, entry, form)
    _check_key(notes, entry, form)
    value = replace(
        written,
        dialect=form.dialect if form else written.dialect,
        url=url or "",
        body=_body(notes, entry, form),
        auth_header=written.auth_header or (form.auth_header if form else None),
        cap_field=written.cap_field or (form.cap_field if form else None),
    )
    return replace(entry, value=value, bad=entry.bad | bad)


def _form(entry: Entry[TargetKeys]) -> Form | None:
    provider = PROVIDERS.get(entry.value.provider or "")
    if provider is None or not entry.good("provider", "dialect"):
        return None
    return provider.form(entry.value.dialect)


def _url(notes: Notes, entry: Entry[TargetKeys], form: Form | None) -> str | None:
    if form is None:
        known = entry.value.provider in PROVIDERS and entry.good("dialect")
        found = f"nothing, and no URL of {entry.value.provider} is known for this dialect" if known else "nothing"
        notes.wrong(entry.line, f"{entry.path}.url", found, kinds.URL.allowed)
        return None
    missing = [name for name in form.names if name not in entry.value.url_values]
    noted = any(mistake.key.startswith(f"{entry.path}.url_values.") for mistake in notes.mistakes)
    if missing and not noted:
        found = f"no value for {listed(missing)}" if entry.value.url_values else "nothing"
        notes.wrong(entry.at("url_values"), f"{entry.path}.url_values", found, f"values for {form.url}")
    if missing:
        return None
    return form.url.format_map(dict(entry.value.url_values))


def _check_values(notes: Notes, entry: Entry[TargetKeys], form: Form | None) -> None:
    for name in entry.value.url_values:
        path = f"{entry.path}.url_values.{name}"
        if "url" in entry.lines or form is None:
            notes.wrong(entry.at("url_values"), path, "a value for a URL that has no such part", "no url_values")
        elif name not in form.names:
            found = f"a part that {form.url} does not have{did_you_mean(name, form.names)}"
            notes.wrong(entry.at("url_values"), path, found, listed(form.names) if form.names else "no url_values")


def _check_aws(notes: Notes, entry: Entry[TargetKeys], form: Form | None) -> None:
    given = [name for name in entry.lines if name.startswith("aws_")]
    if not given:
        return
    dialect = form.dialect if form else entry.value.dialect
    line, path = entry.at(given[0]), f"{entry.path}.{given[0]}"
    if entry.good("dialect") and dialect is not DialectName.BEDROCK:
        notes.wrong(line, path, "AWS credentials for another dialect", "the dialect bedrock, or no aws_ keys")
    elif not {"aws_access_key_id", "aws_secret_access_key"} <= entry.lines.keys():
        notes.wrong(line, path, "only a part of the credentials", "aws_access_key_id and aws_secret_access_key")
    elif {"api_key", "api_key_file"} & entry.lines.keys():
        notes.wrong(line, path, "AWS credentials beside an api_key", "one of them")


def _check_key(notes: Notes, entry: Entry[TargetKeys], form: Form | None) -> None:
    """A hosted provider asks for a key; servers on this machine and addresses of one's own may do without."""
    if form is None or "url" in entry.lines or form.url.startswith("http://127.0.0.1"):
        return
    given = {"api_key", "api_key_file"} & entry.lines.keys() or any(name.startswith("aws_") for name in entry.lines)
    if not given and not _has_key_header(entry, form):
        found = f"nothing, though {entry.value.provider} asks for a key"
        notes.warn(entry.line, f"{entry.path}.api_key", found, "a key, best as ${NAME}")


def _has_key_header(entry: Entry[TargetKeys], form: Form) -> bool:
    own = (form.auth_header or "authorization").lower()
    return any(
        isinstance(value, Secret) or name.lower() in (own, "authorization", "x-api-key", "x-goog-api-key", "api-key")
        for name, value in entry.value.headers.items()
    )


def _body(notes: Notes, entry: Entry[TargetKeys], form: Form | None) -> FrozenDict[str, object]:
    below: Mapping[str, object] = form.body if form else {}
    if entry.value.reasoning == "off":
        if form is None or not form.reasoning_off:
            known = quoted(entry.value.provider) if entry.good("provider") else "this provider"
            found = f"off, for which no switch of {known} is known in this dialect"
            notes.wrong(entry.at("reasoning"), f"{entry.path}.reasoning", found, "the switch itself, in `body`")
        else:
            below = _over(below, form.reasoning_off)
    return _over(below, entry.value.body)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> FrozenDict[str, object]:
    """Objects merge, everything else above replaces what is below; null stays, as it removes the dialect's own key."""
    result: dict[str, object] = {name: _frozen(value) for name, value in below.items()}
    for name, value in above.items():
        under = result.get(name)
        both = isinstance(value, Mapping) and isinstance(under, Mapping)
        result[name] = _over(under, value) if both else _frozen(value)  # type: ignore[arg-type]  # both are mappings
    return FrozenDict(result)


def _frozen(value: object) -> object:
    return _over({}, value) if isinstance(value, Mapping) else value
