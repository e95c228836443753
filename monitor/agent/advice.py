"""What to do about each failure kind: one sentence, shown beside the failure and in docs/failures.md."""

from __future__ import annotations

from collections.abc import Mapping

from monitor.model import FailureKind

K = FailureKind

ADVICE: Mapping[FailureKind, str] = {
    K.DNS: "Check the host name in `url`, then the resolver of this machine (`getent hosts NAME`).",
    K.REFUSED: "Nothing listens on that port: check host and port in `url` and whether the server runs.",
    K.UNREACHABLE: "There is no route: check this machine's network, its firewall and the chosen address family.",
    K.CONNECT_TIMEOUT: "No answer in time: check firewalls on the way, or raise `connect_timeout`.",
    K.TLS: "The TLS handshake failed: check that the port speaks TLS and that the issuer is trusted (`ca_file`).",
    K.TLS_EXPIRED: "The server's certificate has expired: its owner must renew it (or check this machine's clock).",
    K.TLS_SELF_SIGNED: "The certificate is signed by nobody this machine trusts: name its CA in `ca_file`.",
    K.TLS_WRONG_NAME: "The certificate is for another name: check the host in `url`, or the provider's set-up.",
    K.PROXY: "The proxy of this vantage point refused or broke: check its address and whether it allows CONNECT.",
    K.UNAUTHORIZED: "The key was not accepted: check the variable or file it comes from, and whose key it is.",
    K.FORBIDDEN: "The key is valid but may not do this: check its permissions, the project and the country.",
    K.NOT_FOUND: "The address is unknown there: check `url` (base URL as the vendor's SDK takes it) and `dialect`.",
    K.MODEL_GONE: "No such model there, or not for this key: check `model`, and whether `dialect` and `url` fit.",
    K.BAD_REQUEST: "The provider rejects the request: read its message, and adapt the target's `body`.",
    K.RATE_LIMITED: "We ask too often for this key's limits: probe less often, or ask for a higher limit.",
    K.QUOTA_EXHAUSTED: "The account's money or quota is used up: top it up or raise its limit.",
    K.OVERLOADED: "The provider has no capacity now: nothing to do here but wait, or use another region or provider.",
    K.LOADING: "The model is being loaded (a cold start): wait, or keep it warm with more frequent requests.",
    K.SERVER_ERROR: "The provider failed: look at its status page, and give it the request id.",
    K.REDIRECT: "The address has moved: put the new one in `url`; probes follow no redirects.",
    K.NOT_A_STREAM: "No stream came: check `url` and `dialect`, and whether a gateway in between can stream.",
    K.PROTOCOL_ERROR: "What came is not the protocol that was expected: check `dialect`, `http_version` and gateways.",
    K.STREAM_ERROR: "The provider failed after it had answered 200: read its message; clients must check for this too.",
    K.TRUNCATED: "The answer stopped without its end: a gateway or the server cut it; clients see an incomplete text.",
    K.DISCONNECTED: "The connection broke: check the path (loss, idle timeouts of proxies), then the provider.",
    K.EMPTY_ANSWER: "The model answered with nothing: try the prompt by hand; it may need another `body` or model.",
    K.REASONING_ONLY: "Reasoning used up the budget: raise `max_output_tokens`, or turn reasoning down in `body`.",
    K.FILTERED: "The answer was filtered or refused: use a more harmless prompt.",
    K.STALLED: "The stream fell silent: the model hangs or the path lost the connection; compare vantage points.",
    K.FIRST_TOKEN_DEADLINE: "No token came in time: a long queue or a cold start; raise `first_token_deadline` to see.",
    K.TOTAL_DEADLINE: "The answer took longer than `deadline`: compare with its history, or raise it.",
    K.TOO_LARGE: "The server sent more than any sane answer needs: check what stands behind `url`.",
    K.CHECK_FAILED: "The answer came whole but is not what the probe wants: see which check, and read it by hand.",
    K.INTERNAL: "A defect or a limit of this monitor, not of the target: see its log, and please report it.",
}
"""Complete over the enum; a test holds it."""
