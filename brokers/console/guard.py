"""What holds for every request: which hosts are answered, how large a form may be, and strict headers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetlog.brokers.console.asking import PageError

FORM_BYTES_MAX: Final = 2 * 1024 * 1024
FIELDS_MAX: Final = 200

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, a browser's own forms come from the origin "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def host_of(authority: str) -> str:
    """The host in ``host:port``, in lower case and without brackets; empty if it is malformed."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").lower()
    except ValueError:
        return ""


class Guard:
    """Refuses hosts that are not the console's own names (another name that points at loopback is a rebinding attack),
    and requests that another site began."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if not scope["path"].startswith("/static/"):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        refusal = self._refusal(scope["method"], headers)
        if refusal is not None:
            await PlainTextResponse(refusal, 403)(scope, receive, send_strict)
            return
        await self._app(scope, receive, send_strict)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        authority = headers.get("host", "")
        if host_of(authority) not in self._hosts:
            return "this console is not known by that name; start it with --host-name NAME\n"
        if method in {"GET", "HEAD"}:
            return None
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != authority.lower():
            return "a form of another site\n"
        if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            return "a form of another site\n"
        return None


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, the last one of each name; raises PageError if it is too large or no form."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise PageError(415, "send a form: application/x-www-form-urlencoded")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES_MAX:
                raise PageError(413, f"a form may have {FORM_BYTES_MAX} bytes at most")
    except ClientDisconnect:  # or was too slow; nobody reads this
        raise PageError(400, "the form did not arrive whole") from None
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict"))
    except ValueError:
        raise PageError(400, "the form cannot be read") from None
