"""Requests to others than brokers: to the addresses of options alone, without proxies."""

from __future__ import annotations

import urllib.request
from typing import Any


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """One that points elsewhere is not followed: the address is that of an option."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """By urllib: None makes an HTTPError of it."""
        return


def direct_opener(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """Opens an address itself: no redirect, no proxy."""
    return urllib.request.build_opener(_NoRedirect(), urllib.request.ProxyHandler({}), *handlers)
