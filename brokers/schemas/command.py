"""``fleetlog registry``: the command, what it keeps in ``_schemas``, and its answers to HTTP.

Whoever gets a change is the writer: it takes the producer id of a transactional id with the next epoch, writes a NOOP
with it, and reads up to that. From then on the partition's leader refuses what an earlier writer sends, so a decision
that is made from what was read cannot meet another one. An answer goes out when its record is read back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import click
from kafka.protocol.admin import DescribeAclsRequest, DescribeProducersRequest

from fleetlog.brokers.acls.hosts import host_as_acls_have_it
from fleetlog.brokers.acls.image import AclOperation
from fleetlog.brokers.addresses import address_text
from fleetlog.brokers.audit.events import LOGGER
from fleetlog.brokers.cli.acls import EVERYTHING
from fleetlog.brokers.cli.admin_client import GONE, TRANSACTION, AdminClient
from fleetlog.brokers.cli.client import Target, admin, client_options, raise_for_code, wait_for_topics
from fleetlog.brokers.cli.command_config import PROTOCOL
from fleetlog.brokers.cli.options import ServiceCommand, host_of, listen_address, need_packages
from fleetlog.brokers.cli.output import CliError, Output
from fleetlog.brokers.cli.overview import topic_setting
from fleetlog.brokers.cli.sender import INIT_PRODUCER_ID, InputRecord, Sender
from fleetlog.brokers.cli.topic_reader import UNCOMMITTED, TopicReader
from fleetlog.brokers.console.command import TlsFiles, tls_options
from fleetlog.brokers.console.logins import LOGINS_AT_ONCE, LoginTurns, TooManyLogins
from fleetlog.brokers.logins.mechanism_names import MECHANISMS
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER
from fleetlog.brokers.schemas.callers import STALE_S, Callers, RegistryUser, unauthorized
from fleetlog.brokers.schemas.figures import OTHER, RegistryFigures, Standing
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
from fleetlog.brokers.server.service_manager import ServiceManager, service_manager
from fleetlog.txn.transaction import MAX_EPOCH
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.messages import request_class

logger = logging.getLogger(__name__)

TOPIC: Final = "_schemas"
DEFAULT_PORT: Final = 8081
TRANSACTIONAL_ID: Final = "fleetlog-registry"
NEEDED: Final = ("uvicorn", "fastavro", "jsonschema", "grpc_tools", "google.protobuf")
COPIES: Final = 3
WRITE_HEADER: Final = "fleetlog-write"
SPENT_EPOCH: Final = 2**14
"""Only a transactional id that is claimed anew and anew gets that far: other producers stay at their first epochs."""
CLAIM_S: Final = 300.0
"""How long a writer relies on its epoch; transactional ids and producers are forgotten after days."""
FETCH_MS: Final = 500
READ_BYTES: Final = 4 << 20
RECORD_BYTES_MAX: Final = 1_000_000
BODY_BYTES_MAX: Final = 2_000_000
FIELDS_MAX: Final = 100
SCHEMAS_PER_PAGE: Final = 1_000
"""As ``schema.search.max.limit`` of Confluent's."""
PAGE_CHARACTERS_MAX: Final = 10_000_000
PAUSE_S: Final = 0.1
STOP_S: Final = 3
THREADS: Final = {"work": 8, "list": 2, "change": 1, "login": LOGINS_AT_ONCE}
"""Of each kind of request: changes wait for each other anyhow, and nobody else waits for them."""
WAITING_MAX: Final = {"work": 200, "list": 50, "change": 200, "login": LOGINS_AT_ONCE}
"""Requests of a kind that wait for a thread, or have one. Logins wait for their turns before that."""
CONTENT: Final = b"application/vnd.schemaregistry.v1+json"
METRICS: Final = ("metrics",)
METRICS_CONTENT: Final = b"text/plain; version=0.0.4; charset=utf-8"
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


class Writer(Sender):
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

    def spent(self) -> list[int]:
        """Producer ids that ran out of epochs, so that another has taken their place: a writer that still has one would
        not be refused. Raises CliError."""
        request = DescribeProducersRequest(topics=[(TOPIC, [0])])
        answer = self._client.ask_all([(self._leaders[0], request)], self._timeout_s)[0]
        if answer is None:
            raise CliError(f"topic {TOPIC}: its leader does not answer")
        row = answer.topics[0].partitions[0]
        raise_for_code(f"topic {TOPIC}", row.error_code, row.error_message)
        return [
            one.producer_id
            for one in row.active_producers
            if one.producer_id != self._producer[0] and SPENT_EPOCH <= one.producer_epoch < MAX_EPOCH
        ]


class _Fence(Sender):
    """Writes with the last epoch of a producer id, which no writer gets."""

    def __init__(self, client: AdminClient, producer_id: int, timeout_s: float) -> None:
        self._id = producer_id
        super().__init__(client, TOPIC, acks="all", codec="none", timeout_s=timeout_s)

    def _new_producer(self, deadline_s: float) -> tuple[int, int]:
        return self._id, MAX_EPOCH


class SchemaStore:
    """The topic: a thread reads it into a registry, and one change at a time is written. For any thread."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._registry = RegistryState()
        self._shown = self._registry.copy()
        self._next = 0
        self._read_s = 0.0
        self._topic: str | None = None
        """The id of the topic that is read."""
        self._seen: set[bytes] = set()
        self._awaited: set[bytes] = set()
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._connection = ExitStack()
        self._writer: Writer | None = None
        self._claimed_s = 0.0
        self._ending = False

    def start(self, callers: Callers | None) -> None:
        """Make sure of the topic, and read all of it; without ``callers`` only in a fleet where all may do everything.

        Raises CliError.
        """
        with admin(self._target, f"topic {TOPIC}") as client:
            if callers is None:
                check_unsecured(client)
            else:
                callers.start(client)
            make_topic(client, self._target)
            end = TopicReader(client, TOPIC).bounds(undecided=False)
        if 0 not in end:
            raise CliError(f"topic {TOPIC}: its leader does not answer; see `fleetlog topics describe {TOPIC}`")
        self._read_s = time.monotonic()
        threading.Thread(target=self._follow, name="schemas", daemon=True).start()
        self._wait_read(end[0].end, time.monotonic() + self._target.timeout_s)

    def close(self) -> None:
        """End the reader, and the writer's connections."""
        self._ending = True
        with self._writing:
            self._connection.close()

    def registry(self) -> RegistryState:
        """The state as it is read so far; nobody changes what is returned."""
        return self._shown

    def standing(self) -> Standing:
        """How it stands to the topic."""
        now_s = time.monotonic()
        is_writer = self._writer is not None and now_s - self._claimed_s < CLAIM_S
        return Standing(self._next, now_s - self._read_s, is_writer)

    def behind(self) -> str:
        """Why what is read may be old; empty if it is not."""
        old_s = time.monotonic() - self._read_s
        return f"topic {TOPIC} could not be read for {old_s:.0f} s" if old_s > STALE_S else ""

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._ending:
            try:
                with admin(self._target, f"topic {TOPIC}") as client:
                    self._begin_anew_if_it_is_another(client)
                    reader = _Reader(client, TOPIC)
                    bounds = reader.bounds(undecided=False)
                    if 0 in bounds:
                        self._next = max(self._next, bounds[0].first)
                    while not self._ending and 0 not in reader.silent:
                        self._read_s = time.monotonic()
                        self.read(reader)
            except (CliError, OSError) as error:
                logger.warning("reading %s is tried again: %s", TOPIC, error)
            time.sleep(PAUSE_S)

    def _begin_anew_if_it_is_another(self, client: AdminClient) -> None:
        """A topic that was deleted and made anew has other schemas, and begins at offset 0. Raises CliError."""
        present = topic_id(client)
        if self._topic not in {None, present}:
            logger.error("topic %s was deleted and made anew; what it has now is what this registry has", TOPIC)
            with self._changed:
                self._registry, self._next = RegistryState(), 0
                self._shown = self._registry.copy()
        self._topic = present

    def read(self, reader: TopicReader) -> None:
        """Take what one fetch gives."""
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
            self._shown, self._next = self._registry.copy(), part.next_offset
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
                            self._write([BARRIER], b"", deadline_s)  # fails if another one may have written since
                            plan = decide(self.registry())
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
        left_s = max(deadline_s - time.monotonic(), 1.0)
        self._claimed_s = time.monotonic()
        self._writer, fence = self.new_writer(left_s)
        for producer_id in self._writer.spent():
            fence(producer_id).send([_row(BARRIER)])
        self._write([BARRIER], b"", deadline_s)
        return True

    def new_writer(self, timeout_s: float) -> tuple[Writer, Callable[[int], Sender]]:
        """One with the next epoch, and what makes the last writer of a producer id. Raises CliError."""
        client = self._connection.enter_context(admin(self._target, f"topic {TOPIC}"))
        if topic_id(client) != self._topic:
            raise CliError(f"topic {TOPIC} was made anew and is not read yet")
        writer = Writer(client, TOPIC, acks="all", codec="none", timeout_s=timeout_s)
        return writer, partial(_Fence, client, timeout_s=timeout_s)

    def _release(self) -> None:
        self._writer = None
        self._connection.close()

    def _write(self, records: list[Record], mark: bytes, deadline_s: float) -> None:
        rows = [_row(record, ((WRITE_HEADER, mark),) if mark else ()) for record in records]
        assert self._writer is not None
        self._writer.send(rows)
        self._wait_read(self._writer.last[0] + 1, deadline_s)


def _row(record: Record, headers: tuple[tuple[str, bytes | None], ...] = ()) -> InputRecord:
    """A record as it is written. Raises RegistryRefusal, 42209."""
    key, value = (None if part is None else json.dumps(part, separators=(",", ":")).encode() for part in record)
    if len(value or b"") > RECORD_BYTES_MAX:
        raise RegistryRefusal(42209, f"the schema's record has more than {RECORD_BYTES_MAX} bytes")
    return InputRecord(value, key, headers, partition=0)


def check_unsecured(client: AdminClient) -> None:
    """Raise CliError where the fleet has rights, which this registry does not ask for."""
    answers = [client.ask_any(DescribeAclsRequest(**one)) for one in EVERYTHING.filters()]
    if any(answer.error_code != ErrorCode.SECURITY_DISABLED for answer in answers):
        raise CliError(
            "this fleet has ACLs, and without --login the registry does not know who asks it: it would give everybody "
            "its own rights, so it does not start"
        )


def topic_id(client: AdminClient) -> str:
    """The id of the topic, which another one of its name has not. Raises CliError."""
    (described,) = client.describe_topics([TOPIC])
    raise_for_code(f"topic {TOPIC}", described["error_code"])
    return str(described["topic_id"])


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
    policy = topic_setting(client, [TOPIC], "cleanup.policy").get(TOPIC)
    if len(described[0]["partitions"]) != 1 or policy != "compact":
        raise CliError(
            f"topic {TOPIC} must have one partition and cleanup.policy=compact, not "
            f"{len(described[0]['partitions'])} and {policy}: as it is, schemas would be lost"
        )


# ---- HTTP ----------------------------------------------------------------------------------------------------------


class Call:
    """One request: its path in parts, its query, and its body."""

    body: Any = None
    takes_guids = False
    """Its client says that it takes fields that older ones do not know."""
    allows: Callable[[AclOperation, str | None], bool] | None = None
    """What its caller may do with a subject, or (None) with what belongs to all; None: everything."""

    def __init__(self, method: str, parts: tuple[str, ...], rows: list[tuple[str, str]], context: str) -> None:
        self.method, self.parts, self.query_rows, self.context = method, parts, rows, context
        self.query = dict(rows)

    @property
    def about(self) -> str | None:
        """The subject that the path names, or whose settings; None: those of all."""
        if self.parts == METRICS:
            return None
        if self.parts[0] in {"config", "mode"}:
            return self.setting_of(1)
        return self.subject(2 if self.parts[0] == "compatibility" else 1)

    def may(self, operation: AclOperation, subject: str, state: RegistryState) -> bool:
        """Whether the caller may do that with the subject, and with the one that it is another name of."""
        return self.allows is None or all(self.allows(operation, one) for one in state.names_of(subject))

    def needs(self, operation: AclOperation, state: RegistryState) -> Iterator[tuple[AclOperation, str | None]]:
        """What must be allowed: on the path's subject, and on those that the body refers to.

        IMPORT lets its user choose ids, which all subjects share.
        """
        about, body = self.about, self.body if isinstance(self.body, dict) else {}
        if self.parts == METRICS or self.parts[0] in {"config", "mode"}:
            yield operation, about
            if operation == ALTER and body.get("mode") == "IMPORT":
                yield operation, None
            return
        yield from ((operation, one) for one in state.names_of(about or ""))
        rows = body.get("references")
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and isinstance(row.get("subject"), str):
                named = qualified(row["subject"], context_of(about))
                yield from ((SEE, one) for one in state.names_of(named))

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
    subject = qualified(subject, call.context)
    stored = state.by_id(int(number), subject)
    if not any(call.may(SEE, one, state) for one, _ in state.places(int(number), subject, deleted=True)):
        raise RegistryRefusal(40301, f"none of the subjects that have schema {number} may be read")
    more: dict[str, Any] = {"guid": stored.guid} if call.takes_guids else {}
    more |= {"maxId": state.highest_id(context_of(stored.subject))} if call.flag("fetchMaxId") else {}
    return _shown_as(call, state, stored, stored.described() | more)


def _places(call: Call, state: RegistryState) -> list[tuple[str, int]]:
    number, subject = call.parts[2], qualified(call.query.get("subject", ""), call.context)
    if not re.fullmatch("[0-9]{1,10}", number):
        raise RegistryRefusal(404, "HTTP 404 Not Found")
    places = state.places(int(number), subject, deleted=call.flag("deleted"))
    return [place for place in places if call.may(DESCRIBE, place[0], state)]


def _by_guid(call: Call, state: RegistryState) -> dict[str, Any]:
    stored = state.by_guid(call.parts[2], lambda subject: call.may(SEE, subject, state))[0]
    return _shown_as(call, state, stored, stored.described() | {"guid": stored.guid})


def _ids_of_guid(call: Call, state: RegistryState) -> list[dict[str, Any]]:
    rows = state.by_guid(call.parts[2], lambda subject: call.may(DESCRIBE, subject, state))
    pairs = sorted({(context_of(one.subject), one.id) for one in rows})
    return [{"context": context, "id": number} for context, number in pairs]


def _with_guid(call: Call, state: RegistryState, answer: Any) -> Any:
    """What names a schema by its id names it by its content, too, for clients that take that."""
    if not call.takes_guids or not isinstance(answer, dict) or "id" not in answer:
        return answer
    return answer | {"guid": state.by_id(answer["id"], answer.get("subject") or call.subject(1)).guid}


def _with_metadata(call: Call, state: RegistryState) -> dict[str, Any]:
    keys = [value for name, value in call.query_rows if name == "key"]
    values = [value for name, value in call.query_rows if name == "value"]
    subject = call.subject(1)
    for number in reversed(state.versions(subject, deleted=call.flag("deleted"))):
        stored = state.version(subject, str(number), deleted=True)
        if all(stored.properties.get(key) == value for key, value in zip(keys, values, strict=False)):
            return stored.shown()
    raise RegistryRefusal(40401, f"Subject '{subject}' not found.")


def _all(call: Call, state: RegistryState) -> list[dict[str, Any]]:
    """A page of all schemas, of Confluent's size. Raises RegistryRefusal."""
    prefix, deleted = call.query.get("subjectPrefix", call.everything), call.flag("deleted")
    rows = call.page([
        one
        for one in state.all(prefix, deleted=deleted, latest=call.flag("latestOnly"))
        if call.may(SEE, one.subject, state)
    ])[:SCHEMAS_PER_PAGE]  # fmt: skip
    if sum(len(one.text) for one in rows) > PAGE_CHARACTERS_MAX:
        raise RegistryRefusal(42209, f"these schemas have more than {PAGE_CHARACTERS_MAX} characters: ask with a limit")
    return [one.shown() for one in rows]


def _tried(call: Call, state: RegistryState) -> dict[str, Any]:
    version = call.parts[4] if len(call.parts) > 4 else None
    problems = state.try_out(call.subject(2), call.fields(), version, normalize=call.flag("normalize"))
    return {"is_compatible": not problems} | ({"messages": problems} if call.flag("verbose") else {})


def _deleted(call: Call) -> dict[str, bool]:
    return {"deleted": call.flag("deleted"), "deleted_only": call.flag("deletedOnly")}


Handler = Callable[[Call, RegistryState], Any]
OPEN: Final = None
"""For everybody, without a login."""
LISTED: Final = AclOperation.ANY
"""For everybody who is logged in: the handler leaves out what they may not describe, or read."""
DESCRIBE, SEE = AclOperation.DESCRIBE, AclOperation.READ
WRITE, DELETE, ALTER = AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER_CONFIGS
READ: Final = "read"
"""Answered on the loop."""
LIST: Final = "list"
"""Asks of each subject whether the caller may, or looks through all schemas: half a second for 100,000 of them."""
WORK: Final = "work"
"""Compiles a schema: on one of several threads."""
CHANGE: Final = "change"
"""Returns a plan of records."""

Route = tuple[str, str, str, AclOperation | None, Handler]

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", "", READ, OPEN, lambda call, state: {}),
    ("GET", "subjects", LIST, LISTED, lambda call, state: call.page([
        one for one in state.subjects(call.query.get("subjectPrefix", call.everything), **_deleted(call))
        if call.may(DESCRIBE, one, state)])),
    ("POST", "subjects/*", WORK, SEE, lambda call, state: state.look_up(
        call.subject(1), call.fields(), normalize=call.flag("normalize"), deleted=call.flag("deleted"))),
    ("DELETE", "subjects/*", CHANGE, DELETE, lambda call, state: state.delete_subject(
        call.subject(1), permanent=call.flag("permanent"))),
    ("GET", "subjects/*/metadata", READ, SEE, _with_metadata),
    ("GET", "subjects/*/versions", READ, DESCRIBE, lambda call, state: call.page(
        state.versions(call.subject(1), **_deleted(call)))),
    ("POST", "subjects/*/versions", CHANGE, WRITE, lambda call, state: state.register(
        call.subject(1), call.fields(), normalize=call.flag("normalize"))),
    ("GET", "subjects/*/versions/*", WORK, SEE, lambda call, state: _shown_as(
        call, state, one := _version_of(call, state), one.shown())),
    ("DELETE", "subjects/*/versions/*", CHANGE, DELETE, lambda call, state: state.delete_version(
        call.subject(1), call.parts[3], permanent=call.flag("permanent"))),
    ("GET", "subjects/*/versions/*/schema", READ, SEE, lambda call, state: _version_of(call, state).text),
    ("GET", "subjects/*/versions/*/referencedby", LIST, DESCRIBE, lambda call, state: call.page(
        state.referenced_by(call.subject(1), call.parts[3], lambda subject: call.may(DESCRIBE, subject, state)))),
    ("GET", "schemas", LIST, LISTED, _all),
    ("GET", "schemas/types", READ, LISTED, lambda call, state: sorted(KINDS)),
    ("GET", "schemas/guids/*", WORK, LISTED, _by_guid),
    ("GET", "schemas/guids/*/ids", READ, LISTED, _ids_of_guid),
    ("GET", "schemas/ids/*", WORK, LISTED, _by_id),
    ("GET", "schemas/ids/*/schema", WORK, LISTED, lambda call, state: _by_id(call, state)["schema"]),
    ("GET", "schemas/ids/*/subjects", READ, LISTED, lambda call, state: call.page(
        sorted({subject for subject, _ in _places(call, state)}))),
    ("GET", "schemas/ids/*/versions", READ, LISTED, lambda call, state: call.page(
        [{"subject": subject, "version": version} for subject, version in _places(call, state)])),
    ("POST", "compatibility/subjects/*/versions", WORK, SEE, _tried),
    ("POST", "compatibility/subjects/*/versions/*", WORK, SEE, _tried),
    ("GET", "config", READ, DESCRIBE, lambda call, state: state.config(call.setting_of(1), default=True)),
    ("PUT", "config", CHANGE, ALTER, lambda call, state: state.set_config(call.setting_of(1), call.fields())),
    ("DELETE", "config", CHANGE, ALTER, lambda call, state: state.delete_config(call.setting_of(1))),
    ("GET", "config/*", READ, DESCRIBE, lambda call, state: state.config(
        call.setting_of(1), default=call.flag("defaultToGlobal"))),
    ("PUT", "config/*", CHANGE, ALTER, lambda call, state: state.set_config(call.setting_of(1), call.fields())),
    ("DELETE", "config/*", CHANGE, ALTER, lambda call, state: state.delete_config(call.setting_of(1))),
    ("GET", "mode", READ, DESCRIBE, lambda call, state: {"mode": state.mode(call.setting_of(1), default=True)}),
    ("PUT", "mode", CHANGE, ALTER, lambda call, state: state.set_mode(
        call.setting_of(1), call.fields(), force=call.flag("force"))),
    ("DELETE", "mode", CHANGE, ALTER, lambda call, state: state.delete_mode(call.setting_of(1))),
    ("GET", "mode/*", READ, DESCRIBE, lambda call, state: {
        "mode": state.mode(call.setting_of(1), default=call.flag("defaultToGlobal"))}),
    ("PUT", "mode/*", CHANGE, ALTER, lambda call, state: state.set_mode(
        call.setting_of(1), call.fields(), force=call.flag("force"))),
    ("DELETE", "mode/*", CHANGE, ALTER, lambda call, state: state.delete_mode(call.setting_of(1))),
    ("GET", "metrics", LIST, DESCRIBE, lambda call, state: {}),  # what the server counts it knows itself
    ("GET", "contexts", LIST, LISTED, lambda call, state: call.page(state.contexts(
        lambda subject: call.may(DESCRIBE, subject, state)))),
)  # fmt: skip
"""Method, path, how it is answered, what must be allowed on the path's subject or setting, and by what."""


class RegistryServer:
    """The ASGI application. ``callers``: who may ask; None: everybody, under one of the names ``hosts``, if given.

    ``manager`` is told when it serves, and when it stops.
    """

    def __init__(
        self,
        store: SchemaStore,
        callers: Callers | None = None,
        hosts: frozenset[str] = frozenset(),
        manager: ServiceManager | None = None,
    ) -> None:
        self._store, self._callers, self._hosts, self._manager = store, callers, hosts, manager
        self._threads = {how: ThreadPoolExecutor(number, f"registry-{how}") for how, number in THREADS.items()}
        self._waiting = dict.fromkeys(THREADS, 0)
        self._logins = LoginTurns()
        self._figures = RegistryFigures()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        begun_s, code = time.monotonic(), 200
        answer: Any
        try:
            answer = await self._answer(scope, receive)
        except RegistryRefusal as error:
            code, answer = error.code, {"error_code": error.code, "message": str(error)}
        except Exception:
            logger.exception("a fault in the answer to %s %r", scope["method"], scope["raw_path"][:200])
            code, answer = 50001, {"error_code": 50001, "message": "a fault of the registry; its log says more"}
        status = int(str(code)[:3])
        self._figures.answered(scope.get("fleetlog.route", OTHER), code, time.monotonic() - begun_s)
        content = METRICS_CONTENT if isinstance(answer, bytes) else CONTENT
        body = answer if isinstance(answer, bytes) else _text(answer).encode()
        headers = [(b"content-type", content), (b"content-length", str(len(body)).encode())]
        if status == 401 and self._callers is not None:
            headers.append((b"www-authenticate", self._callers.challenge))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body if scope["method"] != "HEAD" else b""})

    async def _live(self, receive: Any, send: Any) -> None:
        """From the first request that could come to the last: all schemas are read."""
        while (message := await receive())["type"] != "lifespan.shutdown":
            if self._manager is not None:
                self._manager.feed_watchdog(asyncio.get_running_loop())
                self._manager.ready("serves the schemas of the fleet")
            await send({"type": f"{message['type']}.complete"})
        if self._manager is not None:
            self._manager.stopping()
        await send({"type": "lifespan.shutdown.complete"})

    def _health(self) -> dict[str, Any]:
        """Raises RegistryRefusal, 503."""
        behind = self._store.behind() or ("" if self._callers is None else self._callers.behind())
        if behind:
            raise RegistryRefusal(503, behind)
        return {"ready": True}

    async def _answer(self, scope: Any, receive: Any) -> Any:
        parts, context = request_path(scope["raw_path"])
        if parts == ("health", "ready") and scope["method"] in {"GET", "HEAD"}:
            return self._health()
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        rows = [row for row in ROUTES if matches(row[1], parts)]
        if not rows:
            raise RegistryRefusal(404, "HTTP 404 Not Found")
        route = next((row for row in rows if row[0] == method), None)
        if route is None:
            raise RegistryRefusal(405, "HTTP 405 Method Not Allowed")
        scope["fleetlog.route"] = f"{method} /{route[1]}"
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self._check_site(headers)
        caller = None if self._callers is None or route[3] is OPEN else await self._caller(scope, headers)
        try:
            query = parse_qsl(
                scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=FIELDS_MAX
            )
        except ValueError:
            raise RegistryRefusal(400, f"a query may have {FIELDS_MAX} fields") from None
        call = Call(method, parts, query, context)
        call.takes_guids = headers.get(b"confluent-accept-unknown-properties", "").lower() == "true"
        if method in {"POST", "PUT"}:
            call.body = await read_body(headers, receive)
        how = route[2]
        if how == READ or (how == WORK and method == "GET" and "format" not in call.query):
            return self._handled(route, call, caller, self._store.registry())
        return await self._on_thread(how, partial(self._done, route, call, caller, time.monotonic()))

    async def _on_thread(self, how: str, work: Callable[[], Any]) -> Any:
        """Do the work when a thread of its kind is free. Raises RegistryRefusal."""
        if self._waiting[how] >= WAITING_MAX[how]:
            raise RegistryRefusal(503, "too many requests wait for an answer; ask again")
        self._waiting[how] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads[how], work)
        finally:
            self._waiting[how] -= 1

    def _check_site(self, headers: dict[bytes, str]) -> None:
        """Raise RegistryRefusal, 403, for what a page of another site sent, also by a name that it points here."""
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if origin is not None and origin.rpartition("//")[2] != host:
            raise RegistryRefusal(403, "pages of other sites may not ask the registry")
        if self._hosts and host_of(host) not in self._hosts:
            raise RegistryRefusal(403, "this registry is not known by that name; start it with --host-name NAME")

    async def _caller(self, scope: Any, headers: dict[bytes, str]) -> RegistryUser:
        """Who asks. Raises RegistryRefusal: 401, 50001, 503."""
        assert self._callers is not None
        authorization, address = headers.get(b"authorization", ""), scope["client"][0]
        if not authorization:
            raise unauthorized()
        principal = self._callers.known(authorization)
        if principal is None:
            try:
                async with self._logins.turn(address):
                    principal = self._callers.known(authorization) or await self._logged_in(authorization)
            except TooManyLogins as error:
                raise RegistryRefusal(503, str(error)) from None
        return RegistryUser(principal, host_as_acls_have_it(address))

    async def _logged_in(self, authorization: str) -> str:
        """Raises RegistryRefusal: 401, 50001, 503."""
        assert self._callers is not None
        try:
            principal: str = await self._on_thread("login", partial(self._callers.log_in, authorization))
        except RegistryRefusal as error:
            if error.code == unauthorized().code:
                self._figures.logged_in(taken=False)
            raise
        self._figures.logged_in(taken=True)
        return principal

    def _handled(self, route: Route, call: Call, caller: RegistryUser | None, state: RegistryState) -> Any:
        self._check(route, call, caller, state)
        if call.parts == METRICS:
            rights_age_s = None if self._callers is None else self._callers.age_s
            return self._figures.page(state, self._store.standing(), rights_age_s)
        return _with_guid(call, state, route[4](call, state))

    def _check(
        self, route: Route, call: Call, caller: RegistryUser | None, state: RegistryState, *, again: bool = False
    ) -> None:
        """Raise RegistryRefusal where the caller may not; only what is not asked ``again`` is logged."""
        operation = route[3]
        if self._callers is None or caller is None or operation is OPEN:
            return
        call.allows = partial(self._callers.allows, caller)
        for needed, subject in call.needs(operation, state) if operation != LISTED else ():
            self._callers.check(caller, needed, subject, "" if again else f"{call.method} /{route[1]}")

    def _done(self, route: Route, call: Call, caller: RegistryUser | None, asked_s: float) -> Any:
        if route[2] != CHANGE:
            return self._handled(route, call, caller, self._store.registry())
        self._check(route, call, caller, self._store.registry())

        def decide(state: RegistryState) -> Any:
            self._check(route, call, caller, state, again=True)
            return route[4](call, state)

        answer = self._store.change(decide, asked_s)
        return _with_guid(call, self._store.registry(), answer)


def _text(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, separators=(",", ":"))


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


@click.command(cls=ServiceCommand)
@click.option("--listen", "host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", "-p", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: any.")
@click.option(
    "--login", "mechanisms", type=click.Choice(list(MECHANISMS)), multiple=True,
    help="Callers log in with their user and password of the fleet, which the brokers check by this mechanism, and may "
    "do what its ACLs let them. OAUTHBEARER: with a token that the brokers take; both may be given.",
)  # fmt: skip
@tls_options
@click.option(
    "--host-name", "names", multiple=True, metavar="NAME",
    help="A name by which it is known on loopback, besides its address; may be repeated.",
)  # fmt: skip
@client_options
def registry(
    *,
    target: Target,
    out: Output,
    host: str,
    port: int,
    mechanisms: tuple[str, ...],
    tls: TlsFiles,
    names: tuple[str, ...],
) -> None:
    """Serve a schema registry that keeps its schemas in the fleet's topic _schemas, until Ctrl-C.

    It speaks Confluent's REST protocol. Several may run beside each other; whichever is asked to change something does.
    """
    address = listen_address(host)
    _check_logins(target, address.is_loopback, mechanisms, tls)
    need_packages("the registry needs", NEEDED, "schemas")
    from fleetlog.brokers.console.serving import serve

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger(LOGGER).setLevel(logging.INFO)
    manager = service_manager(os.environ)
    store, callers = SchemaStore(target), Callers(target, mechanisms) if mechanisms else None
    store.start(callers)
    own = {str(address), "localhost", *(name.lower() for name in names)}

    def ready(at: int) -> None:
        url = f"{'https' if tls.pair is not None else 'http'}://{address_text(str(address), at)}"
        out.done(f"schema registry of {target.bootstrap} at {url} (Ctrl-C ends it)", {"url": url})

    hosts = frozenset(own if address.is_loopback and not mechanisms else ())
    try:
        serve(
            app=RegistryServer(store, callers, hosts, manager),
            host=str(address),
            port=port,
            certificate=tls.pair,
            stop_s=STOP_S,
            ready=ready,
        )
    finally:
        store.close()
        if callers is not None:
            callers.close()


def _check_logins(target: Target, on_loopback: bool, mechanisms: tuple[str, ...], tls: TlsFiles) -> None:
    """Raise CliError or UsageError where the registry would give its own rights away, or others' passwords."""
    protocol = target.properties.get(PROTOCOL, "PLAINTEXT")
    if not mechanisms and protocol != "PLAINTEXT":
        raise CliError(
            "this fleet has logins, and without --login the registry does not know who asks it: it would give "
            "everybody its own rights"
        )
    if mechanisms and not protocol.startswith("SASL_"):
        raise click.UsageError(f"--login needs brokers that know users: --command-config with {PROTOCOL}=SASL_SSL")
    if len(set(mechanisms) - {OAUTHBEARER}) > 1:
        raise click.UsageError("--login names one mechanism with passwords, and OAUTHBEARER")
    if mechanisms and not on_loopback and not tls.there:
        raise click.UsageError(
            "passwords would cross the network as they are: give --tls-certificate and --tls-key, or --behind-tls-proxy"
        )
