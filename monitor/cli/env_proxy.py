"""Says in words that proxies of the environment are not used: many programs would, so their absence surprises."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from monitor.model import Series

VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


def ignored(series: Iterable[Series], environ: Mapping[str, str] = os.environ) -> str | None:
    """One sentence when the environment names a proxy and some of `series` goes without one, else None.

    The proxy's address is not repeated: it may hold a password.
    """
    found = [name for upper in VARIABLES for name in (upper, upper.lower()) if environ.get(name, "").strip()]
    direct = sorted({each.vantage.name for each in series if each.vantage.proxy is None})
    if not found or not direct:
        return None
    names = " and ".join(dict.fromkeys(found))
    return (
        f"{names} of the environment {'is' if len(found) == 1 else 'are'} not used, on purpose: a measurement must not"
        f" depend on a shell's environment. To probe through a proxy, set vantages.{direct[0]}.proxy: http://host:port"
        " in the configuration (firsttoken probe --url: --proxy)"
    )
