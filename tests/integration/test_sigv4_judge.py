"""botocore judges our signature: the same request at the same instant gets the same Authorization header."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from monitor.agent.sigv4 import Signer
from monitor.model import AwsCredentials, Secret

AT = datetime(2026, 1, 31, 23, 59, 58, tzinfo=UTC)
HOSTS = ("bedrock-runtime.us-east-1.amazonaws.com", "127.0.0.1:8080", "[::1]:9000", "host.example:443")


def signed_by_botocore(method: str, url: str, body: bytes, token: str | None) -> dict[str, str]:
    auth = pytest.importorskip("botocore.auth", reason="the judges extra is not installed")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    class At(auth.SigV4Auth):  # type: ignore[misc,name-defined]  # botocore reads the clock itself
        def add_auth(self, request: AWSRequest) -> None:
            request.context["timestamp"] = AT.strftime("%Y%m%dT%H%M%SZ")
            self._modify_request_before_signing(request)
            canonical = self.canonical_request(request)
            self._inject_signature_to_request(request, self.signature(self.string_to_sign(request, canonical), request))

    digest = __import__("hashlib").sha256(body).hexdigest()
    request = AWSRequest(method, url, {"X-Amz-Content-SHA256": digest}, body)
    At(Credentials("AKID", "secret/key+", token), "bedrock", "eu-west-1").add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@given(
    host=st.sampled_from(HOSTS),
    model=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=40),
    query=st.sampled_from(["", "?b=2&a=1", "?a=x%20y&a=%2F&empty="]),
    body=st.binary(max_size=50),
    method=st.sampled_from(["POST", "GET"]),
    token=st.none() | st.just("session+token/="),
)
@example(host=HOSTS[0], model=".", query="", body=b"", method="POST", token=None)
@example(host=HOSTS[0], model="..", query="", body=b"", method="POST", token=None)
@settings(max_examples=100, deadline=None)
def test_we_sign_as_botocore_does(
    host: str, model: str, query: str, body: bytes, method: str, token: str | None
) -> None:
    """Paths that are encoded twice, ports, queries, bodies, session tokens: one signature."""
    url = f"https://{host}/model/{quote(model, safe='')}/converse-stream{query}"
    expected = signed_by_botocore(method, url, body, token)
    credentials = AwsCredentials(
        access_key_id=Secret("AKID"),
        secret_access_key=Secret("secret/key+"),
        session_token=None if token is None else Secret(token),
    )
    ours = Signer(credentials, "eu-west-1", "bedrock")(method, url, body, AT)
    authorization = ours["authorization"]
    assert isinstance(authorization, Secret)
    assert authorization.reveal() == expected["authorization"]
    assert ours["x-amz-date"] == expected["x-amz-date"]
