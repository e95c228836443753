"""Neutral endpoints that a vantage point looks at beside its targets, and what one look saw.

A witness costs nothing and has nothing to do with any provider: when it cannot be reached either, it is the line. Hides
how an endpoint is spelled. Looks happen in `agent/witness.py`, `detect/line.py` says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from monitor.model import HARMLESS_DOUBTS, Doubt, Failure
from monitor.timeline import Phase


class Reach(StrEnum):
    """How far a look goes."""

    DNS = "dns"  # the name is asked for, nothing else
    TCP = "tcp"  # and a connection is opened
    TLS = "tls"  # and secured


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One neutral endpoint."""

    name: str
    reach: Reach
    host: str  # a name or an address
    port: int | None = None  # None: `Reach.DNS`
    vantages: tuple[str, ...] = ()  # that look at it; empty: all

    @property
    def address(self) -> str:
        """As the configuration spells it: `tls://1.1.1.1:443`, `dns://example.com`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.reach}://{host}" + (f":{self.port}" if self.port is not None else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One look at one endpoint. Identified by vantage point, endpoint and instant."""

    vantage: str
    endpoint: str  # its name
    address: str  # as `Endpoint.address` says it: what was looked at under that name
    started_at: datetime
    seconds: Mapping[Phase, float] = field(default_factory=dict)  # of `resolve`, `connect`, `tls`: those that it passed
    failure: Failure | None = None  # None: it was reached
    validity: tuple[Doubt, ...] = ()

    @property
    def up(self) -> bool:
        """Whether the endpoint was reached."""
        return self.failure is None

    @property
    def valid(self) -> bool:
        """Whether it tells of the line, and not of this machine's own trouble."""
        return all(doubt in HARMLESS_DOUBTS for doubt in self.validity)

    @property
    def lasted(self) -> float:
        """Seconds of all phases that it passed."""
        return sum(self.seconds.values())


DEFAULT_ENDPOINTS = (
    Endpoint(name="cloudflare", reach=Reach.TLS, host="1.1.1.1", port=443),  # by address: needs no name server
    Endpoint(name="quad9", reach=Reach.TLS, host="9.9.9.9", port=443),
    Endpoint(name="google", reach=Reach.TLS, host="dns.google", port=443),
    Endpoint(name="debian", reach=Reach.TCP, host="www.debian.org", port=443),  # a few machines, not one near everybody
    Endpoint(name="resolver", reach=Reach.DNS, host="example.com"),
)
"""Operators of these serve the public at large; a connection a minute without a request is lost in the noise there.

The first three answer from a machine near to wherever one asks, and so tell of the line into the net; the fourth tells
of the way across it, the last of the machine's own name server, whose answers may come from its memory.
"""
