"""The console as an ASGI application: routes, pages in HTML and JSON, login."""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import anyio
import anyio.to_thread
import click
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.cli.options import host_of
from fleetlog.brokers.cli.output import CliError, bytes_text, count_text, iso, json_escaped
from fleetlog.brokers.cli.schema_values import SchemaRegistry
from fleetlog.brokers.console import charts, client_pages, group_pages, message_pages, pages, schema_pages
from fleetlog.brokers.console.asking import Asking, PageError, PageFunction
from fleetlog.brokers.console.changes import SCHEMAS, filled, password_user, performed, plan_change, previewed
from fleetlog.brokers.console.clients import FleetClients, UserLogin
from fleetlog.brokers.console.collector import FigureCollector
from fleetlog.brokers.console.json_views import TreeNodes, json_preview, json_tree
from fleetlog.brokers.console.logins import BrowserSession, BrowserSessions, LoginTurns, TooManyLogins
from fleetlog.brokers.console.masking import Masks
from fleetlog.brokers.console.memory import SpareMemory, trim_function
from fleetlog.brokers.console.oidc import CALLBACK, LOGIN_S, OidcLogin, TokenLogin
from fleetlog.brokers.console.same_answers import remember_same_answers
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER

logger = logging.getLogger(__name__)

FORM_BYTES_MAX: Final = 2 * 1024 * 1024
FIELDS_MAX: Final = 300
INVALID_CREDENTIALS: Final = "invalid credentials"
"""Part of what a broker says to a wrong password, as Kafka does."""
USER_SHOWN: Final = 200
"""Characters of a refused user's name that are filled in again."""

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


class Guard:
    """Refuses hosts that are not the console's own names (another name that points at loopback is a rebinding attack),
    and requests that another site began."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], root: str) -> None:
        self._app, self._root = app, root
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"].removeprefix(self._root)

        async def send_strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if not path.startswith("/static/"):
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


HERE: Final = Path(__file__).parent
COOKIE: Final = "fleetlog_console"
"""The beginning of its name: a host's ports share cookies, and each fleet's console has its own."""
LOGIN_COOKIE: Final = "fleetlog_console_login"
FLEETS: Final = "/fleets"
"""Below it are the pages of other fleets than the one at the root."""
_ADDRESS: Final = r'(?<= )(?:href|action|formaction|hx-get|data-tail)="(?=/(?!static/|/))(?!{whole})'
_STATIC: Final = re.compile('(?<= )(?:href|src)="(?=/static/)')
"""Before an address of a page, or of a file. What a page quotes has no such quotes: they are escaped."""
_EXACT: Final = re.compile(r'(<textarea\b.*?</textarea>|<[^>"]*(?:"[^"]*"[^>"]*)*>)', re.DOTALL)
"""What is sent back or followed as it stands: fields, and the attributes of all elements."""
_READ: Final = re.compile(r'(?:(?<= title=)|(?<=label=))"[^"]*"')
"""Attributes that are for reading."""
_OBEYED: Final = re.compile(r"[^\x20-\x7e\n\t]")
HTMX: Final = "hx-request"
AUTOMATIC: Final = "fleetlog-automatic"
"""Headers of the requests that a page makes by itself: its parts that renew themselves, and the live tail."""
SWEEP_S: Final = 60.0
REFUSALS: Final = {404: "there is no such page", 405: "this address is not for that method"}
"""Where no page says more."""
THREADS: Final = 16
"""Pages that are answered at the same time; the others wait."""
NAVIGATION: Final = (
    ("/", "Fleet"),
    ("/topics", "Topics"),
    ("/partitions", "Partitions"),
    ("/groups", "Groups"),
    ("/schemas", "Schemas"),
    ("/transactions", "Transactions"),
    ("/connections", "Connections"),
    ("/security", "Security"),
    ("/controller", "Controller"),
    ("/doctor", "Doctor"),
)

PAGES: Final[tuple[tuple[str, str, PageFunction], ...]] = (
    ("/", "fleet.html", pages.fleet_page),
    ("/brokers/{name}", "broker.html", pages.broker_page),
    ("/brokers/{name}/setting", "setting.html", pages.broker_setting_page),
    ("/partitions", "partitions.html", pages.partitions_page),
    ("/controller", "controller.html", pages.controller_page),
    ("/doctor", "doctor.html", pages.doctor_page),
    ("/topics", "topics.html", pages.topics_page),
    ("/topics/{name}", "topic.html", pages.topic_page),
    ("/topics/{name}/setting", "setting.html", pages.topic_setting_page),
    ("/topics/{name}/messages", "messages.html", message_pages.messages_page),
    ("/topics/{name}/write", "write.html", message_pages.write_page),
    ("/topics/{name}/clients", "clients.html", client_pages.clients_page),
    ("/topics/{name}/analysis", "analysis.html", pages.analysis_page),
    ("/topics/{name}/bucket", "bucket.html", pages.bucket_page),
    ("/topics/{name}/record", "record.html", message_pages.record_page),
    ("/find", "find.html", pages.find_page),
    ("/topics/{name}/letters", "letters.html", group_pages.letters_page),
    ("/groups", "groups.html", group_pages.groups_page),
    ("/group", "group.html", group_pages.group_page),
    ("/group/setting", "setting.html", group_pages.group_setting_page),
    ("/schemas", "schemas.html", schema_pages.schemas_page),
    ("/schema", "schema.html", schema_pages.schema_page),
    ("/refused", "refused.html", schema_pages.refused_page),
    ("/transactions", "transactions.html", pages.transactions_page),
    ("/connections", "connections.html", pages.connections_page),
    ("/security", "security.html", pages.security_page),
)
"""Address, template and function of each page that only reads."""

_Value = TypeVar("_Value")


class FleetLink(NamedTuple):
    """A fleet's name, and the address of its pages."""

    name: str
    url: str
    is_this: bool


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """How the console of a fleet is started. ``login`` names the mechanism of its users' logins; None: no login.

    ``root`` is the path of the whole console, as a proxy leads to it, or empty; ``below`` is where the pages of this
    fleet are: the root, or ``/fleets/NAME`` below it.

    ``registry_as_user``: pages of schemas ask the registry with the login of each user.

    ``figures`` is how the console itself asks the brokers, for its charts; None: it has none.
    """

    target: Target
    hosts: frozenset[str]
    login: str | None = None
    secure_cookie: bool = False
    registry: SchemaRegistry | None = None
    oidc: OidcLogin | None = None
    masks: Masks = field(default_factory=Masks)
    figures: Target | None = None
    figures_directory: Path | None = None
    fleets: tuple[FleetLink, ...] = ()
    below: str = ""
    root: str = ""
    registry_as_user: bool = False

    @property
    def closed(self) -> str:
        """Why there are no pages of schemas; empty: there are."""
        if self.registry is None:
            return "Subjects and versions are shown by a console that was started with --schema-registry URL."
        if self.login is not None and not self.registry_as_user:
            return (
                "This console asks the registry with a login of its own, and would show everybody all schemas: "
                "fleetlog schemas asks with yours. With --schema-registry-as-user the console does so, too."
            )
        return ""


def visible_page(html: str) -> str:
    """The page with what a browser would obey, turn round or not show in its text as an escape of JSON's.

    Names of groups, members, transactions and users are what clients choose. Fields and addresses stay exact.
    """
    if html.replace("\n", "").replace("\t", "").isprintable():
        return html
    pieces = _EXACT.split(html)
    pieces[::2] = map(_visible, pieces[::2])
    pieces[1::2] = map(_visible_tag, pieces[1::2])
    return "".join(pieces)


def _visible_tag(tag: str) -> str:
    return tag if tag.startswith("<textarea") else _READ.sub(lambda text: _visible(text[0]), tag)


def _visible(text: str) -> str:
    return _OBEYED.sub(lambda at: at[0] if at[0].isprintable() else json.dumps(at[0])[1:-1], text)


class _Twin(JSONResponse):
    """JSON that shows in a browser what it would obey."""

    def render(self, content: Any) -> bytes:
        return json_escaped(json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))).encode()


class LoginNeeded(Exception):
    """The page is for users that are logged in."""


class Console:
    """The state of one fleet's console, which is its sessions and clients, and what answers requests.

    Pages and their functions name addresses as at the root; what leaves has the path of the fleet before them.
    """

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.below = settings.below
        self._others = f"{settings.root}{FLEETS}/"
        whole = "|".join(re.escape(one) for one in (self._others, f"{self.below}/" if self.below else "//"))
        self._address = re.compile(_ADDRESS.format(whole=whole))
        self.cookie = f"{COOKIE}_{zlib.crc32(f'{settings.below} {settings.target.bootstrap}'.strip().encode()):08x}"
        self.sessions = BrowserSessions()
        self.clients = FleetClients(settings.target, self.sessions.logged_in)
        self.memory = SpareMemory(trim_function())
        self.collector = (
            FigureCollector(settings.figures, settings.figures_directory) if settings.figures is not None else None
        )
        self._threads = anyio.CapacityLimiter(THREADS)
        self._logins = LoginTurns()
        self._templates = Environment(
            loader=PackageLoader("fleetlog.brokers.console"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= {
            "bytes": _bytes_filter, "count_text": count_text, "iso": _iso_filter,
            "q": lambda text: quote(str(text), ""),
        }  # fmt: skip
        self._templates.globals |= {"json_tree": json_tree, "json_preview": json_preview, "tree_nodes": TreeNodes}
        self._templates.globals |= {
            "drawn": charts.drawn, "drawn_small": charts.drawn_small, "replicas_cell": charts.replicas_cell,
            "figure": charts.figure_text, "address": _with_params,
        }  # fmt: skip
        self._templates.globals |= {"share_bar": pages.share_bar, "bars": pages.bars, "navigation": NAVIGATION}
        self._templates.globals |= {"fleets": settings.fleets}

    async def sweep(self) -> None:
        """Each minute, end the sessions whose time is over, and close what nothing uses."""
        while True:
            await anyio.sleep(SWEEP_S)
            self.sessions.forget_ended()
            try:
                await anyio.to_thread.run_sync(self.clients.sweep)
            except Exception:  # whatever a connection says when it is closed, the console goes on
                logger.exception("cannot close idle connections to the brokers")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What goes on beside the pages."""
        if self.collector is not None:
            self.collector.start()
        async with anyio.create_task_group() as group:
            group.start_soon(self.sweep)
            group.start_soon(self.memory.run)
            yield
            group.cancel_scope.cancel()
        self.clients.close()
        if self.collector is not None:
            await anyio.to_thread.run_sync(self.collector.stop)

    def routes(self) -> list[BaseRoute]:
        """What it answers."""
        return [
            *(Route(path, self.page(template, page)) for path, template, page in PAGES),
            Route("/topics/{name}/export", self.export),
            Route("/change/{kind}", self.change, methods=["POST"]),
            Route("/login/oidc", self.login_elsewhere),
            Route(CALLBACK, self.login_returned),
            Route("/login", self.login, methods=["GET", "POST"]),
            Route("/logout", self.logout, methods=["POST"]),
        ]

    def refusals(self) -> dict[Any, Any]:
        """What answers in place of an exception."""
        return dict.fromkeys((LoginNeeded, PageError, HTTPException), self.refuse)

    def sent_to(self, path: str) -> RedirectResponse:
        """To another page of this fleet; the path is one as at the root, or a whole one."""
        return RedirectResponse(self._whole(path), 303)

    def _whole(self, path: str) -> str:
        whole = path.startswith(self._others) or (self.below and path.startswith(f"{self.below}/"))
        return path if whole else self.below + path

    # ---- pages -----------------------------------------------------------------------------------------------------

    async def run(self, work: Callable[[], _Value]) -> _Value:
        """Work that waits for brokers, on a thread."""
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            self.memory.page_ended()

    def session(self, request: Request) -> BrowserSession:
        """The request's session, a new one where no login is wanted; raises LoginNeeded."""
        session = self.sessions.find(request.cookies.get(self.cookie), renews=not is_automatic(request))
        if self.settings.login is not None:
            if session is None or session.login is None:
                raise LoginNeeded
            return session
        return session if session is not None else self.sessions.begin()

    def page(self, template: str, function: PageFunction) -> Callable[[Request], Any]:
        """The endpoint of a page that only reads."""

        async def endpoint(request: Request) -> Response:
            session = self.session(request)
            name, params = request.path_params.get("name", ""), dict(request.query_params)
            try:
                answer = await self.run(lambda: self.ask(session, function, params, name))
            except PageError as error:
                if error.page is None:
                    raise
                answer = {**error.page, "error": str(error), "status": error.status}
                return self.render(request, session, template, answer, error.status)
            return self.render(request, session, template, answer)

        return endpoint

    def ask(
        self, session: BrowserSession, function: Callable[[Asking], Any], params: Mapping[str, str], name: str
    ) -> Any:
        """What the function answers by a client with the session's login."""

        def lent() -> Any:
            with self.clients.lend(session.login) as client:
                target = self.clients.target_of(session.login)
                masks, registry = self.settings.masks, self.settings.registry
                asking = Asking(client, target, params, name, registry, masks, self.collector, self.settings.closed)
                return function(asking)

        return refusable(lent)

    def render(
        self,
        request: Request,
        session: BrowserSession | None,
        template: str,
        answer: Mapping[str, Any],
        status: int = 200,
    ) -> Response:
        """The page in HTML, or its JSON twin."""
        if wants_json(request):
            token = {"form_token": self.sessions.form_token(session)} if session is not None else {}
            response: Response = _Twin({**answer, **token}, status, headers={"Vary": "Accept"})
        else:
            html = self._templates.get_template(template).render(
                page=answer,
                path=request.url.path.removeprefix(self.below),
                query=dict(request.query_params),
                twin=_twin(request),
                user=session.login.user if session is not None and session.login is not None else None,
                token=self.sessions.form_token(session) if session is not None else "",
                notices=session.noticed() if session is not None and not is_automatic(request) else [],
                wants_login=self.settings.login is not None,
            )
            if self.below:
                html = self._address.sub(lambda one: one[0] + self.below, html)
                html = _STATIC.sub(lambda one: one[0] + self.settings.root, html)
            response = HTMLResponse(visible_page(html), status, headers={"Vary": "Accept"})
        if session is not None:
            self._remember(response, session)
        return response

    def _remember(self, response: Response, session: BrowserSession) -> None:
        response.set_cookie(
            self.cookie,
            session.key,
            httponly=True,
            samesite="strict",
            secure=self.settings.secure_cookie,
            path=f"{self.below}/",
        )

    async def export(self, request: Request) -> Response:
        """The records of a browse as a file."""
        session, name = self.session(request), request.path_params["name"]
        params = dict(request.query_params)
        contents, media, file = await self.run(lambda: self.ask(session, message_pages.export_file, params, name))
        return Response(contents, media_type=media, headers={"Content-Disposition": f'attachment; filename="{file}"'})

    async def checked_form(self, request: Request) -> tuple[BrowserSession, dict[str, str]]:
        """Session and fields of a form that this session was given; raises PageError, LoginNeeded."""
        session = self.session(request)
        form = await read_form(request)
        if not self.sessions.accepts(session, form.pop("form_token", "")):
            raise PageError(403, "the form is too old, or of another session; go back, reload the page and try again")
        return session, form

    async def change(self, request: Request) -> Response:
        """Ask once more, with the command that does the same; perform it when that was answered."""
        session, form = await self.checked_form(request)
        typed: dict[str, str] = {one: form.pop(one) for one in ("password", "again") if one in form}  # shown nowhere
        form = filled(form)
        planned = plan_change(request.path_params["kind"], form, self.settings.masks)
        if planned.command.subject == SCHEMAS and self.settings.closed:
            raise PageError(403, self.settings.closed)
        target = self.clients.target_of(session.login)
        command = planned.command.shown(self.settings.target)
        if form.pop("confirm", "") != "yes":
            rows, warning = await self.run(lambda: refusable(lambda: previewed(planned, target)))
            answer = {
                "title": planned.title, "warning": warning, "command": command, "preview": rows,
                "back": planned.back, "fields": form, "done": False, "destroys": planned.destroys,
                "asks_password": planned.asks_password,
            }  # fmt: skip
            return self.render(request, session, "confirm.html", answer)
        text, made = await self.run(lambda: refusable(lambda: performed(planned, target, typed)))
        logger.warning("%s did: %s", session.login.user if session.login is not None else "a visitor", command)
        login = session.login
        if login is not None and password_user(planned, login.mechanism) == login.user:
            session.login = login._replace(password=typed.get("password") or made)  # else its next page is refused
        if wants_json(request):
            answer = {"done": True, "command": command, "text": text, **({"password": made} if made else {})}
            return self.render(request, session, "confirm.html", answer)
        session.notify(text or f"{planned.title}: done", made)
        response = self.sent_to(planned.back)
        self._remember(response, session)
        return response

    # ---- login -----------------------------------------------------------------------------------------------------

    async def login(self, request: Request) -> Response:
        """The form, and what becomes of it."""
        if self.settings.login is None:
            return self.sent_to("/")
        session = self.sessions.visitor(request.cookies.get(self.cookie))
        onward = local_path(request.query_params.get("next", "/"))
        if request.method == "GET":
            return self._login_page(request, session, onward)
        if self.settings.oidc is not None:
            raise PageError(405, "log in at the issuer, by /login/oidc")
        form = await read_form(request)
        if not self.sessions.accepts(session, form.get("form_token", "")):
            return self._login_page(request, session, onward, PageError(403, "the form was too old; try again"))
        login = UserLogin(form.get("user", ""), form.get("password", ""), self.settings.login)
        try:
            if not login.user or not login.password:
                raise PageError(403, "give a user and a password")
            await self._in_turn(request, lambda: self._try(login))
        except PageError as error:
            logger.warning("login refused: user %r", login.user[:200])
            return self._login_page(request, session, onward, error, login.user[:USER_SHOWN])
        response = self.sent_to(onward)
        self._remember(response, self.sessions.begin(login))
        return response

    async def _in_turn(self, request: Request, work: Callable[[], _Value]) -> _Value:
        """Do a login's work on a thread when it is its address's turn. Raises PageError, and what ``work`` raises."""
        try:
            async with self._logins.turn(request.client.host if request.client else ""):
                return await anyio.to_thread.run_sync(work)
        except TooManyLogins as error:
            raise PageError(503, str(error)) from None

    def _login_page(
        self, request: Request, session: BrowserSession, onward: str, error: PageError | None = None, user: str = ""
    ) -> Response:
        issuer = self.settings.oidc.issuer if self.settings.oidc is not None else None
        answer = {"next": onward, "error": str(error or ""), "issuer": issuer, "user": user}
        return self.render(request, session, "login.html", answer, error.status if error is not None else 200)

    async def login_elsewhere(self, request: Request) -> Response:
        """To the issuer."""
        oidc = self._issuer()
        cookie, address = oidc.begin(local_path(request.query_params.get("next", "/")), self._callback(request))
        response = RedirectResponse(address, 303)
        response.set_cookie(  # lax: the issuer's page leads back
            LOGIN_COOKIE, cookie, max_age=int(LOGIN_S), httponly=True, samesite="lax",
            secure=self.settings.secure_cookie, path=self.below + CALLBACK,
        )  # fmt: skip
        return response

    async def login_returned(self, request: Request) -> Response:
        """Back from the issuer. The answer is a page that goes on by itself: a redirect would still be the issuer's
        navigation, in which browsers keep the session's strict cookie to themselves."""
        oidc, params, redirect = self._issuer(), dict(request.query_params), self._callback(request)
        visitor = self.sessions.visitor(request.cookies.get(self.cookie))

        def finish() -> TokenLogin:
            returned = oidc.finish(request.cookies.get(LOGIN_COOKIE, ""), params, redirect)
            self._try(returned.login)
            return returned

        try:
            returned = await self._in_turn(request, finish)
        except PageError as error:
            logger.warning("login refused: %s", error)
            return self._login_page(request, visitor, "/", error)
        session = self.sessions.begin(returned.login, returned.lasts_s)
        onward = self._whole(local_path(returned.onward))  # a refresh is no address that render knows
        response = self.render(request, session, "continue.html", {"next": onward})
        response.delete_cookie(LOGIN_COOKIE, path=self.below + CALLBACK)
        return response

    def _issuer(self) -> OidcLogin:
        if self.settings.oidc is None:
            raise PageError(404, "this console has no login at an issuer")
        return self.settings.oidc

    def _callback(self, request: Request) -> str:
        """Where the issuer leads back to: by the name that the browser used, which the guard has let in."""
        scheme = "https" if self.settings.secure_cookie else "http"
        return f"{scheme}://{request.headers.get('host', '')}{self.below}{CALLBACK}"

    def _try(self, login: UserLogin) -> None:
        try:
            with self.clients.lend(login) as client:
                client.describe_cluster()
        except click.ClickException as error:
            text = error.format_message()
            if login.mechanism != OAUTHBEARER and INVALID_CREDENTIALS in text:
                text = "The brokers refuse this user or this password."
            raise PageError(403, text) from error
        except ValueError as error:  # a user or password that no login line can hold
            raise PageError(403, "the brokers refuse this login") from error

    async def logout(self, request: Request) -> Response:
        """End the session, and the connections of its user."""
        session, _ = await self.checked_form(request)
        self.sessions.end(session)
        login = session.login
        if login is not None and not self.sessions.logged_in(login):
            await self.run(lambda: self.clients.drop(login))
        response = self.sent_to("/")
        response.delete_cookie(self.cookie, path=f"{self.below}/")
        return response

    # ---- errors ----------------------------------------------------------------------------------------------------

    async def refuse(self, request: Request, error: Exception) -> Response:
        """A page that says what is wrong."""
        if isinstance(error, LoginNeeded):
            if HTMX in request.headers:
                return Response(status_code=401, headers={"HX-Refresh": "true"})  # the whole page, not a part of it
            if wants_json(request):
                return JSONResponse({"error": f"log in first, by {self.below}/login"}, 401)
            return self.sent_to(f"/login?next={quote(_came_from(request), '')}")
        status = error.status if isinstance(error, PageError) else getattr(error, "status_code", 500)
        text = str(error) if isinstance(error, PageError) else REFUSALS.get(status, HTTPStatus(status).phrase)
        session = self.sessions.find(request.cookies.get(self.cookie), renews=not is_automatic(request))
        answer = {"error": text, "status": status, "title": HTTPStatus(status).phrase}
        return self.render(request, session, "error.html", answer, status)


def refusable(work: Callable[[], _Value]) -> _Value:
    """Do the work; what the fleet or the command refuses becomes a PageError."""
    try:
        return work()
    except CliError as error:
        raise PageError.of(error) from error
    except click.UsageError as error:
        raise PageError(400, error.format_message()) from error


def is_automatic(request: Request) -> bool:
    """Whether the page asks by itself: such requests keep no session from ending."""
    return HTMX in request.headers or AUTOMATIC in request.headers


def wants_json(request: Request) -> bool:
    """By ``?format=json``, or by Accept where HTML is not wanted."""
    if "format" in request.query_params:
        return request.query_params["format"] == "json"
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def _address(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")


def _came_from(request: Request) -> str:
    """Where a login leads on to: the page, or that of the form, which is not sent again."""
    if request.method == "GET":
        return _address(request)
    page = urlsplit(request.headers.get("referer", ""))
    if page.netloc != request.headers.get("host"):
        return "/"
    return local_path(page.path + (f"?{page.query}" if page.query else ""))


def _twin(request: Request) -> str:
    """The address of the page's JSON twin, on this host also where the path begins as another one's would."""
    url = request.url.include_query_params(format="json")
    return f"/{quote(url.path.lstrip('/'))}?{url.query}"


def _with_params(path: str, query: Mapping[str, str], **changed: str) -> str:
    """The address with the parameters that it has, and those that change."""
    return f"{path}?{urlencode({**query, **changed})}"


def local_path(text: str) -> str:
    """The path if it is one of the console's, else the first page: a link to a login leads nowhere else."""
    parts = urlsplit(text)
    local = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    return text if local and text.isprintable() else "/"


def _bytes_filter(size: int | None) -> str:
    return "–" if size is None or size < 0 else bytes_text(size)


def _iso_filter(time: int | str | None) -> str:
    """A time in milliseconds, or as a command tells it."""
    text = iso(time) if isinstance(time, int) else time
    if not text:
        return "–"
    return Markup('<time datetime="{}">{}</time>').format(text, text.replace("T", " ").replace("+00:00", "Z"))


async def _alive(_: Request) -> Response:
    return JSONResponse({"alive": True})


def create_console(settings: ConsoleSettings, others: Sequence[ConsoleSettings] = ()) -> Starlette:
    """The application, for uvicorn: the fleet at the root, and others each below its own path.

    Fleets share nothing but the process: each has its logins, sessions, clients, threads and figures.
    """
    remember_same_answers()
    root, below = Console(settings), [Console(one) for one in others]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for console in (root, *below):
                await stack.enter_async_context(console.running())
            yield

    static = Mount("/static", StaticFiles(directory=HERE / "static"))
    routes: list[BaseRoute] = [
        Mount(one.below.removeprefix(settings.root), Starlette(routes=one.routes(), exception_handlers=one.refusals()))
        for one in below
    ]
    routes += [*root.routes(), static]
    if settings.root:
        inner = Starlette(routes=routes, exception_handlers=root.refusals())
        routes = [Route("/", lambda _: RedirectResponse(f"{settings.root}/", 303)), Mount(settings.root, inner)]
    routes.append(Route("/alive", _alive))
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, hosts=settings.hosts, root=settings.root)],
        exception_handlers=root.refusals(),
        lifespan=lifespan,
    )
