"""``fleetlog registry``: the command, what it keeps in ``_schemas``, and its answers to HTTP.

Whoever gets a change is the writer: it takes the producer id of a transactional id with the next epoch, writes a NOOP
with it, and reads up to that. From then on the partition's leader refuses what an earlier writer sends, so a decision
that is made from what was read cannot meet another one. An answer goes out when its record is read back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import click
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.admin import DescribeAclsRequest

from fleetlog.brokers.acls.image import PatternType, Permission
from fleetlog.brokers.addresses import address_text
from fleetlog.brokers.cli.acls import Wanted
from fleetlog.brokers.cli.admin_client import GONE, TRANSACTION, AdminClient
from fleetlog.brokers.cli.client import Target, admin, client_options, raise_for_code, wait_for_topics
from fleetlog.brokers.cli.command_config import PROTOCOL
from fleetlog.brokers.cli.options import listen_address, need_packages
from fleetlog.brokers.cli.output import CliError, Output
from fleetlog.brokers.cli.sender import INIT_PRODUCER_ID, InputRecord, Sender
from fleetlog.brokers.cli.topic_reader import UNCOMMITTED, TopicReader
from fleetlog.brokers.schemas.protobuf import PROTOBUF
from fleetlog.brokers.schemas.registry import (
    BARRIER,
    DEFAULT_CONTEXT,
    KINDS,
    Plan,
    Record,
    RegistryRefusal,
    RegistryState,
    Stored,
    context_of,
    qualified,
)
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.messages import request_class

logger = logging.getLogger(__name__)

TOPIC: Final = "_schemas"
DEFAULT_PORT: Final = 8081
TRANSACTIONAL_ID: Final = "fleetlog-registry"
NEEDED: Final = ("uvicorn", "fastavro", "jsonschema", "grpc_tools", "google.protobuf")
COPIES: Final = 3
WRITE_HEADER: Final = "fleetlog-write"
CLAIM_S: Final = 300.0
"""How long a writer relies on its epoch; transactional ids and producers are forgotten after days."""
FETCH_MS: Final = 500
READ_BYTES: Final = 4 << 20
RECORD_BYTES_MAX: Final = 1_000_000
BODY_BYTES_MAX: Final = 2_000_000
FIELDS_MAX: Final = 100
PAUSE_S: Final = 0.1
STOP_S: Final = 3
THREADS: Final = {"work": 8, "change": 1}
"""Of each kind of request: changes wait for each other anyhow, and nobody else waits for them."""
WAITING_MAX: Final = 200
"""Requests of a kind that wait for a thread."""
CONTENT: Final = b"application/vnd.schemaregistry.v1+json"
TAKEN: Final = frozenset({
    "application/vnd.schemaregistry.v1+json", "application/vnd.schemaregistry+json", "application/json",
    "application/octet-stream",
})  # fmt: skip
"""Types of a request's body. A page of another site cannot send the first three, and says where it is from."""


class _Reader(TopicReader):
    """Waits at the leader for what is new."""

    def _request(self, *given: Any) -> Any:
        request = super()._request(*given)
        request.max_wait_ms, request.min_bytes = FETCH_MS, 1
        return request


class _Writer(Sender):
    """Writes with the epoch that it took over when it was made."""

    def _new_producer(self, deadline_s: float) -> tuple[int, int]:
        request = request_class(INIT_PRODUCER_ID)(
            transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=60_000, max_version=4
        )
        while True:
            rows = self._client.find_coordinators(
                TRANSACTIONAL_ID, max(deadline_s - time.monotonic(), 0.1), TRANSACTION
            )
            node = next((row.node_id for row in rows if not row.error_code), None)
            answer = None if node is None else self._client.ask_all([(node, request)], 2.0)[0]
            if answer is not None and not answer.error_code:
                return answer.producer_id, answer.producer_epoch
            if time.monotonic() >= deadline_s:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE if answer is None else answer.error_code
                raise_for_code(f"transactional id {TRANSACTIONAL_ID}", code)
            time.sleep(PAUSE_S)


class SchemaStore:
    """The topic: a thread reads it into a registry, and one change at a time is written. For any thread."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._registry = RegistryState()
        self._copy: RegistryState | None = None
        self._next = 0
        self._seen: set[bytes] = set()
        self._awaited: set[bytes] = set()
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._connection = ExitStack()
        self._writer: _Writer | None = None
        self._claimed_s = 0.0
        self._ending = False

    def start(self) -> None:
        """Make sure of the topic, and read all of it. Raises CliError."""
        with admin(self._target, f"topic {TOPIC}") as client:
            check_unsecured(client)
            make_topic(client, self._target)
            end = TopicReader(client, TOPIC).bounds(undecided=False)
        if 0 not in end:
            raise CliError(f"topic {TOPIC}: its leader does not answer; see `fleetlog topics describe {TOPIC}`")
        threading.Thread(target=self._follow, name="schemas", daemon=True).start()
        self._wait_read(end[0].end, time.monotonic() + self._target.timeout_s)

    def close(self) -> None:
        """End the reader, and the writer's connections."""
        self._ending = True
        with self._writing:
            self._connection.close()

    def registry(self) -> RegistryState:
        """The state as it is read so far; nobody changes what is returned."""
        with self._changed:
            if self._copy is None:
                self._copy = self._registry.copy()
            return self._copy

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._ending:
            try:
                with admin(self._target, f"topic {TOPIC}") as client:
                    reader = _Reader(client, TOPIC)
                    bounds = reader.bounds(undecided=False)
                    if 0 in bounds:
                        self._next = max(self._next, bounds[0].first)
                    while not self._ending and 0 not in reader.silent:
                        self._read(reader)
            except (CliError, OSError) as error:
                logger.warning("reading %s is tried again: %s", TOPIC, error)
            time.sleep(PAUSE_S)

    def _read(self, reader: _Reader) -> None:
        part = reader.fetch({0: self._next}, UNCOMMITTED, 10_000, READ_BYTES).get(0)
        if part is None:
            return
        with self._changed:
            for record in part.records:
                if not record.marker:
                    self._registry.apply(record.key, record.value)
                    self._seen |= {
                        value for name, value in record.headers if name == WRITE_HEADER and value
                    } & self._awaited
            self._copy, self._next = None, part.next_offset
            self._changed.notify_all()

    def _wait_read(self, offset: int, deadline_s: float) -> None:
        """Until all before the offset is read. Raises CliError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._next >= offset, max(deadline_s - time.monotonic(), 0)):
                raise CliError(f"topic {TOPIC} is read up to offset {self._next}, not to {offset}")

    # ---- writing ---------------------------------------------------------------------------------------------------

    def change(self, decide: Callable[[RegistryState], Plan], asked_s: float) -> Any:
        """What a change answers once it is read back. Raises RegistryRefusal, 50001 and 50002 among them."""
        deadline_s = asked_s + self._target.timeout_s
        if time.monotonic() >= deadline_s:
            raise RegistryRefusal(50002, "the changes before this one took too long; nothing was changed, ask again")
        mark, answer = uuid.uuid4().bytes, None
        with self._writing:
            self._awaited.add(mark)
            try:
                while True:
                    try:
                        claimed = self._claim(deadline_s)
                        if mark in self._seen:  # it was written, though no answer said so
                            return answer
                        try:
                            plan = decide(self.registry())
                        except RegistryRefusal:
                            if claimed:
                                raise
                            self._release()  # another one may have written since: no record of ours would find that out
                            continue
                        answer = plan.answer
                        if plan.records:
                            self._write(plan.records, mark, deadline_s)
                        return answer
                    except (CliError, OSError, *GONE) as error:
                        self._release()
                        if time.monotonic() + PAUSE_S >= deadline_s:
                            raise RegistryRefusal(50002, f"the schema's record is not confirmed: {error}") from None
                        time.sleep(PAUSE_S)
            finally:
                self._awaited.discard(mark)
                self._seen.discard(mark)

    def _claim(self, deadline_s: float) -> bool:
        """Become the writer: nothing that another one decided comes behind this. False: it was. Raises CliError."""
        if self._writer is not None and time.monotonic() - self._claimed_s < CLAIM_S:
            return False
        self._release()
        client = self._connection.enter_context(admin(self._target, f"topic {TOPIC}"))
        left_s = max(deadline_s - time.monotonic(), 1.0)
        self._claimed_s = time.monotonic()
        self._writer = _Writer(client, TOPIC, acks="all", codec="none", timeout_s=left_s)
        self._write([BARRIER], b"", deadline_s)
        return True

    def _release(self) -> None:
        self._writer = None
        self._connection.close()

    def _write(self, records: list[Record], mark: bytes, deadline_s: float) -> None:
        headers = ((WRITE_HEADER, mark),) if mark else ()
        rows = []
        for key, value in records:
            texts = [
                None if part is None else json.dumps(part, separators=(",", ":")).encode() for part in (key, value)
            ]
            if len(texts[1] or b"") > RECORD_BYTES_MAX:
                raise RegistryRefusal(42209, f"the schema's record has more than {RECORD_BYTES_MAX} bytes")
            rows.append(InputRecord(texts[1], texts[0], headers, partition=0))
        assert self._writer is not None
        self._writer.send(rows)
        self._wait_read(self._writer.last[0] + 1, deadline_s)


def check_unsecured(client: AdminClient) -> None:
    """Raise CliError where the fleet has rights, which this registry does not ask for."""
    everything = Wanted([], PatternType.ANY, (), (), [], Permission.ANY)
    answers = [client.ask_any(DescribeAclsRequest(**one)) for one in everything.filters()]
    if any(answer.error_code != ErrorCode.SECURITY_DISABLED for answer in answers):
        raise CliError(
            "this fleet has ACLs, and the registry does not know who asks it: it would give everybody its own rights, "
            "so it does not start"
        )


def make_topic(client: AdminClient, target: Target) -> None:
    """Create the topic, or check that it is one partition that is compacted. Raises CliError."""
    described = client.describe_topics([TOPIC])
    if not described or described[0]["error_code"]:
        copies = min(COPIES, len(client._manager.cluster.brokers()))
        spec = {"num_partitions": 1, "replication_factor": copies, "configs": {"cleanup.policy": "compact"}}
        answer = client.create_topics({TOPIC: spec}, target.timeout_ms, raise_errors=False)
        (row,) = answer["topics"]
        if row["error_code"] != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise_for_code(f"topic {TOPIC}", row["error_code"], row.get("error_message"))
        wait_for_topics(client, [TOPIC], target.timeout_s)
        described = client.describe_topics([TOPIC])
    resource = ConfigResource(ConfigResourceType.TOPIC, TOPIC)
    configs = client.describe_configs([resource], config_filter="all").get("topic", {}).get(TOPIC, {})
    policy = str(configs.get("cleanup.policy", {}).get("value"))
    if len(described[0]["partitions"]) != 1 or policy != "compact":
        raise CliError(
            f"topic {TOPIC} must have one partition and cleanup.policy=compact, not "
            f"{len(described[0]['partitions'])} and {policy}: as it is, schemas would be lost"
        )


# ---- HTTP ----------------------------------------------------------------------------------------------------------


class Call:
    """One request: its path in parts, its query, and its body."""

    def __init__(self, parts: tuple[str, ...], rows: list[tuple[str, str]], body: Any, context: str) -> None:
        self.parts, self.query_rows, self.body, self.context = parts, rows, body, context
        self.query = dict(rows)

    @property
    def everything(self) -> str:
        """The prefix of all subjects; behind a context, of those in it."""
        return ":*:" if self.context == DEFAULT_CONTEXT else f":{self.context}:"

    def subject(self, place: int) -> str:
        """The subject that stands in the path there; in the context of the path, if it has one."""
        return qualified(self.parts[place], self.context)

    def setting_of(self, place: int) -> str | None:
        """The same for a setting, which may be everybody's or a context's."""
        if len(self.parts) <= place:
            return None if self.context == DEFAULT_CONTEXT else f":{self.context}:"
        return self.subject(place)

    def flag(self, name: str) -> bool:
        """A switch in the query."""
        return self.query.get(name, "").lower() == "true"

    def fields(self) -> dict[str, Any]:
        """The body as an object. Raises RegistryRefusal."""
        if not isinstance(self.body, dict):
            raise RegistryRefusal(422, "the body must be an object of JSON")
        return self.body

    def page(self, rows: list[Any]) -> list[Any]:
        """The rows that ``offset`` and ``limit`` ask for. Raises RegistryRefusal."""
        offset, limit = (self.query.get(name, default) for name, default in (("offset", "0"), ("limit", "-1")))
        if not re.fullmatch("[0-9]{1,9}", offset) or not re.fullmatch("-?[0-9]{1,9}", limit):
            raise RegistryRefusal(422, "offset and limit must be numbers")
        end = None if int(limit) <= 0 else int(offset) + int(limit)
        return rows[int(offset) : end]


def _shown_as(call: Call, state: RegistryState, stored: Stored, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields with the schema in the format that is asked for."""
    if call.query.get("format") == "serialized" and stored.kind == PROTOBUF:
        return fields | {"schema": state.parsed(stored).serialized}
    return fields


def _version_of(call: Call, state: RegistryState) -> Stored:
    return state.version(call.subject(1), call.parts[3], deleted=call.flag("deleted"))


def _by_id(call: Call, state: RegistryState) -> dict[str, Any]:
    number, subject = call.parts[2], call.query.get("subject", "")
    if not re.fullmatch("[0-9]{1,10}", number):
        raise RegistryRefusal(404, "HTTP 404 Not Found")
    stored = state.by_id(int(number), qualified(subject, call.context))
    more = {"maxId": state.highest_id(context_of(stored.subject))} if call.flag("fetchMaxId") else {}
    return _shown_as(call, state, stored, stored.described() | more)


def _places(call: Call, state: RegistryState) -> list[tuple[str, int]]:
    number, subject = call.parts[2], qualified(call.query.get("subject", ""), call.context)
    if not re.fullmatch("[0-9]{1,10}", number):
        raise RegistryRefusal(404, "HTTP 404 Not Found")
    return state.places(int(number), subject, deleted=call.flag("deleted"))


def _with_metadata(call: Call, state: RegistryState) -> dict[str, Any]:
    keys = [value for name, value in call.query_rows if name == "key"]
    values = [value for name, value in call.query_rows if name == "value"]
    subject = call.subject(1)
    for number in reversed(state.versions(subject, deleted=call.flag("deleted"))):
        stored = state.version(subject, str(number), deleted=True)
        if all(stored.properties.get(key) == value for key, value in zip(keys, values, strict=False)):
            return stored.shown()
    raise RegistryRefusal(40401, f"Subject '{subject}' not found.")


def _tried(call: Call, state: RegistryState) -> dict[str, Any]:
    version = call.parts[4] if len(call.parts) > 4 else None
    problems = state.try_out(call.subject(2), call.fields(), version, normalize=call.flag("normalize"))
    return {"is_compatible": not problems} | ({"messages": problems} if call.flag("verbose") else {})


def _deleted(call: Call) -> dict[str, bool]:
    return {"deleted": call.flag("deleted"), "deleted_only": call.flag("deletedOnly")}


Handler = Callable[[Call, RegistryState], Any]
READ: Final = "read"
"""Answered on the loop."""
WORK: Final = "work"
"""Compiles a schema: on one of several threads."""
CHANGE: Final = "change"
"""Returns a plan of records."""

ROUTES: Final[tuple[tuple[str, str, str, Handler], ...]] = (
    ("GET", "", READ, lambda call, state: {}),
    ("GET", "subjects", READ, lambda call, state: call.page(
        state.subjects(call.query.get("subjectPrefix", call.everything), **_deleted(call)))),
    ("POST", "subjects/*", WORK, lambda call, state: state.look_up(
        call.subject(1), call.fields(), normalize=call.flag("normalize"), deleted=call.flag("deleted"))),
    ("DELETE", "subjects/*", CHANGE, lambda call, state: state.delete_subject(
        call.subject(1), permanent=call.flag("permanent"))),
    ("GET", "subjects/*/metadata", READ, _with_metadata),
    ("GET", "subjects/*/versions", READ, lambda call, state: call.page(
        state.versions(call.subject(1), **_deleted(call)))),
    ("POST", "subjects/*/versions", CHANGE, lambda call, state: state.register(
        call.subject(1), call.fields(), normalize=call.flag("normalize"))),
    ("GET", "subjects/*/versions/*", WORK, lambda call, state: _shown_as(
        call, state, one := _version_of(call, state), one.shown())),
    ("DELETE", "subjects/*/versions/*", CHANGE, lambda call, state: state.delete_version(
        call.subject(1), call.parts[3], permanent=call.flag("permanent"))),
    ("GET", "subjects/*/versions/*/schema", READ, lambda call, state: _version_of(call, state).text),
    ("GET", "subjects/*/versions/*/referencedby", READ, lambda call, state: call.page(
        state.referenced_by(call.subject(1), call.parts[3]))),
    ("GET", "schemas", READ, lambda call, state: call.page([
        one.shown() for one in state.all(
            call.query.get("subjectPrefix", call.everything), deleted=call.flag("deleted"),
            latest=call.flag("latestOnly"))])),
    ("GET", "schemas/types", READ, lambda call, state: sorted(KINDS)),
    ("GET", "schemas/ids/*", WORK, _by_id),
    ("GET", "schemas/ids/*/schema", WORK, lambda call, state: _by_id(call, state)["schema"]),
    ("GET", "schemas/ids/*/subjects", READ, lambda call, state: call.page(
        sorted({subject for subject, _ in _places(call, state)}))),
    ("GET", "schemas/ids/*/versions", READ, lambda call, state: call.page(
        [{"subject": subject, "version": version} for subject, version in _places(call, state)])),
    ("POST", "compatibility/subjects/*/versions", WORK, _tried),
    ("POST", "compatibility/subjects/*/versions/*", WORK, _tried),
    ("GET", "config", READ, lambda call, state: state.config(call.setting_of(1), default=True)),
    ("PUT", "config", CHANGE, lambda call, state: state.set_config(call.setting_of(1), call.fields())),
    ("DELETE", "config", CHANGE, lambda call, state: state.delete_config(call.setting_of(1))),
    ("GET", "config/*", READ, lambda call, state: state.config(
        call.setting_of(1), default=call.flag("defaultToGlobal"))),
    ("PUT", "config/*", CHANGE, lambda call, state: state.set_config(call.setting_of(1), call.fields())),
    ("DELETE", "config/*", CHANGE, lambda call, state: state.delete_config(call.setting_of(1))),
    ("GET", "mode", READ, lambda call, state: {"mode": state.mode(call.setting_of(1), default=True)}),
    ("PUT", "mode", CHANGE, lambda call, state: state.set_mode(
        call.setting_of(1), call.fields(), force=call.flag("force"))),
    ("DELETE", "mode", CHANGE, lambda call, state: state.delete_mode(call.setting_of(1))),
    ("GET", "mode/*", READ, lambda call, state: {
        "mode": state.mode(call.setting_of(1), default=call.flag("defaultToGlobal"))}),
    ("PUT", "mode/*", CHANGE, lambda call, state: state.set_mode(
        call.setting_of(1), call.fields(), force=call.flag("force"))),
    ("DELETE", "mode/*", CHANGE, lambda call, state: state.delete_mode(call.setting_of(1))),
    ("GET", "contexts", READ, lambda call, state: call.page(state.contexts())),
)  # fmt: skip
"""Method, path, how it is answered, and by what."""


class RegistryServer:
    """The ASGI application."""

    def __init__(self, store: SchemaStore) -> None:
        self._store = store
        self._threads = {how: ThreadPoolExecutor(number, f"registry-{how}") for how, number in THREADS.items()}
        self._waiting = dict.fromkeys(THREADS, 0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        try:
            status, answer = 200, await self._answer(scope, receive)
        except RegistryRefusal as error:
            status = int(str(error.code)[:3])
            answer = {"error_code": error.code, "message": str(error)}
        body = answer.encode() if isinstance(answer, str) else json.dumps(answer, separators=(",", ":")).encode()
        headers = [(b"content-type", CONTENT), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body if scope["method"] != "HEAD" else b""})

    async def _answer(self, scope: Any, receive: Any) -> Any:
        parts, context = request_path(scope["raw_path"])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        rows = [row for row in ROUTES if matches(row[1], parts)]
        if not rows:
            raise RegistryRefusal(404, "HTTP 404 Not Found")
        route = next((row for row in rows if row[0] == method), None)
        if route is None:
            raise RegistryRefusal(405, "HTTP 405 Method Not Allowed")
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get(b"origin")
        if origin is not None and origin.rpartition("//")[2] != headers.get(b"host"):
            raise RegistryRefusal(403, "pages of other sites may not ask the registry")
        try:
            query = parse_qsl(
                scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=FIELDS_MAX
            )
        except ValueError:
            raise RegistryRefusal(400, f"a query may have {FIELDS_MAX} fields") from None
        body = await read_body(headers, receive) if method in {"POST", "PUT"} else None
        call = Call(parts, query, body, context)
        _, _, how, handler = route
        if how == READ or (method == "GET" and "format" not in call.query):
            return handler(call, self._store.registry())
        if self._waiting[how] >= WAITING_MAX:
            raise RegistryRefusal(503, "too many requests wait for an answer; ask again")
        self._waiting[how] += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads[how], self._done, how, handler, call, time.monotonic())
        finally:
            self._waiting[how] -= 1

    def _done(self, how: str, handler: Handler, call: Call, asked_s: float) -> Any:
        if how == CHANGE:
            return self._store.change(lambda state: handler(call, state), asked_s)
        return handler(call, self._store.registry())


def request_path(raw: bytes) -> tuple[tuple[str, ...], str]:
    """A path in parts, and the context that it begins with. Raises RegistryRefusal."""
    try:
        parts = [unquote(part, errors="strict") for part in raw.split(b"?")[0].decode("ascii").strip("/").split("/")]
    except UnicodeError:
        raise RegistryRefusal(404, "HTTP 404 Not Found") from None
    context = DEFAULT_CONTEXT
    if parts[0] == "contexts" and len(parts) > 1:
        context = parts[1].strip(":") or DEFAULT_CONTEXT
        context = context if context.startswith(".") else f".{context}"
        parts = parts[2:] or [""]
    return tuple(parts), context


def matches(pattern: str, parts: tuple[str, ...]) -> bool:
    """Whether a route's pattern is of these parts."""
    steps = pattern.split("/")
    return len(steps) == len(parts) and all(step in {"*", part} for step, part in zip(steps, parts, strict=True))


async def read_body(headers: dict[bytes, str], receive: Any) -> Any:
    """The body as JSON. Raises RegistryRefusal."""
    kind = headers.get(b"content-type", "application/json").partition(";")[0].strip().lower()
    if kind not in TAKEN:
        raise RegistryRefusal(415, f"a body is of type {CONTENT.decode()} or application/json")
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            raise RegistryRefusal(42209, f"a request may have {BODY_BYTES_MAX} bytes")
        if message["type"] != "http.request" or not message.get("more_body"):
            break
    try:
        return json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise RegistryRefusal(400, "the body is not JSON") from None


# ---- the command ---------------------------------------------------------------------------------------------------


@click.command()
@click.option("--listen", "host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", "-p", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: any.")
@client_options
def registry(*, target: Target, out: Output, host: str, port: int) -> None:
    """Serve a schema registry that keeps its schemas in the fleet's topic _schemas, until Ctrl-C.

    It speaks Confluent's REST protocol. Several may run beside each other; whichever is asked to change something does.
    """
    address = listen_address(host)
    if target.properties.get(PROTOCOL, "PLAINTEXT") != "PLAINTEXT":
        raise CliError(
            "the registry does not know who asks it, and would give everybody the rights of its own login: it serves "
            "fleets without logins only"
        )
    need_packages("the registry needs", NEEDED, "schemas")
    from fleetlog.brokers.console.serving import serve

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    store = SchemaStore(target)
    store.start()

    def ready(at: int) -> None:
        url = f"http://{address_text(str(address), at)}"
        out.done(f"schema registry of {target.bootstrap} at {url} (Ctrl-C ends it)", {"url": url})

    try:
        serve(app=RegistryServer(store), host=str(address), port=port, certificate=None, stop_s=STOP_S, ready=ready)
    finally:
        store.close()
