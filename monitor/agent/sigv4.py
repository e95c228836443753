"""AWS Signature Version 4 for one POST or GET, in place of botocore, which is 25 MB on an agent.

Judged by botocore itself in a test (`tests/integration/test_sigv4_judge.py`). Only what Bedrock needs: headers, a body
in one piece, a path that is encoded once more, a clock that is handed in. The clock may be off by five minutes at most;
beyond that AWS answers 403.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlsplit

from monitor.model import AwsCredentials, Secret, Target

_ALGORITHM = "AWS4-HMAC-SHA256"
_HOST_REGION = re.compile(r"(?:^|\.)bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs requests of one target. The headers that it gives replace an `authorization` that was there."""

    credentials: AwsCredentials
    region: str
    service: str

    def __call__(self, method: str, url: str, body: bytes, at: datetime) -> Mapping[str, str | Secret]:
        """The headers that prove who asks, for exactly this request at this instant (aware)."""
        stamp = at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(body).hexdigest()
        signed = {"host": _host(url), "x-amz-content-sha256": digest, "x-amz-date": stamp}
        if self.credentials.session_token is not None:
            signed["x-amz-security-token"] = self.credentials.session_token.reveal()
        names = ";".join(sorted(signed))
        scope = f"{stamp[:8]}/{self.region}/{self.service}/aws4_request"
        asked = _canonical(method, url, signed, names, digest)
        text = "\n".join((_ALGORITHM, stamp, scope, hashlib.sha256(asked.encode()).hexdigest()))
        signature = hmac.new(self._key(stamp[:8]), text.encode(), hashlib.sha256).hexdigest()
        who = f"Credential={self.credentials.access_key_id.reveal()}/{scope}"
        headers: dict[str, str | Secret] = {name: value for name, value in signed.items() if name != "host"}
        if self.credentials.session_token is not None:
            headers["x-amz-security-token"] = self.credentials.session_token
        headers["authorization"] = Secret(f"{_ALGORITHM} {who}, SignedHeaders={names}, Signature={signature}")
        return headers

    def _key(self, day: str) -> bytes:
        key = f"AWS4{self.credentials.secret_access_key.reveal()}".encode()
        for part in (day, self.region, self.service, "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key


def signer(target: Target, service: str) -> Signer | None:
    """The signer of a target with AWS credentials, None for another. The region is the host's unless it is given."""
    if target.aws is None:
        return None
    found = _HOST_REGION.search(urlsplit(target.url).hostname or "")
    region = target.aws.region or (found[1] if found else "us-east-1")
    return Signer(target.aws, region, service)


def _host(url: str) -> str:
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    return host if parts.port in (None, usual) else f"{host}:{parts.port}"


def _canonical(method: str, url: str, signed: Mapping[str, str], names: str, digest: str) -> str:
    parts = urlsplit(url)
    pairs = sorted((quote(k, safe="~"), quote(v, safe="~")) for k, v in parse_qsl(parts.query, keep_blank_values=True))
    query = "&".join(f"{name}={value}" for name, value in pairs)
    headers = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    return "\n".join((method, quote(_without_dots(parts.path), safe="/~"), query, headers, names, digest))


def _without_dots(path: str) -> str:
    """The path as AWS signs it (all but S3): no empty segments, and "." and ".." followed, as httpx sends them."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    return "/" + "/".join(kept) + ("/" if kept and path.endswith("/") else "")
