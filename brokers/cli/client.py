"""What all commands share: connection options, clients, and errors in the user's terms.

Built on kafka-python, which every installation has. Every error becomes one line that names the topic, group
or address and says what to do; a traceback is for our own bugs only.
"""

from __future__ import annotations

import functools
import logging
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
import kafka.errors as kafka_errors
from click.core import ParameterSource
from kafka.protocol.consumer import IsolationLevel, OffsetSpec
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from fleetlog.brokers.cli.admin_client import GONE, AdminClient, BrokerGone
from fleetlog.brokers.cli.options import at_least
from fleetlog.brokers.cli.output import CliError, Output, count_text, number_text, warn
from fleetlog.brokers.cli.tls_probe import TLS_CONTEXT, TlsRefused, tls_connection, tls_refusal, without_tls
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.cli.times import Point

DEFAULT_BOOTSTRAP = "localhost:9092"
DEFAULT_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 3.0
PROBE = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""ApiVersions version 0, correlation id 1, no client id: every broker answers that at once."""
PROBE_TIMEOUT_S = 1.0
LOGIN_TIMEOUT_S = 12.0
"""A refusal is held back by connection.failed.authentication.delay.ms, of 10 s at most."""
CLOSE_TIMEOUT_MS = 2_000
KNOWN_POLL_S = 0.02
COMPLETION_TIMEOUT_S = 2.0
CLIENT_ID = "fleetlog-cli"

HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition; see `fleetlog topics list`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "it exists already",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the name may have 1 to 249 letters, digits, '.', '_' and '-'",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions can only grow",
    ErrorCode.INVALID_REPLICATION_FACTOR: "there are not that many live brokers; see `fleetlog cluster describe`",
    ErrorCode.NOT_ENOUGH_REPLICAS: "too few replicas in sync for min.insync.replicas; see `fleetlog topics describe`",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "the first replica is not in sync; see `fleetlog topics describe`",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "no replica that could lead is alive; see `fleetlog topics describe`",
    ErrorCode.NOT_CONTROLLER: "no controller is elected; try again in a moment",
    ErrorCode.KAFKA_STORAGE_ERROR: "a log directory is offline; see `fleetlog cluster describe`",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group; see `fleetlog groups list`",
    ErrorCode.NON_EMPTY_GROUP: "it still has members; stop them first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members still read that topic; stop them first",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has active members; stop them first",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing; stop its members or try again",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "its coordinator is not available; try again in a moment",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is still loading; try again in a moment",
    ErrorCode.NOT_COORDINATOR: "its coordinator is moving; try again in a moment",
    ErrorCode.LEADER_NOT_AVAILABLE: "a partition has no leader; see `fleetlog topics describe`",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "a partition's leader is moving; try again in a moment",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id; see `fleetlog transactions list`",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the partition does not hold that offset; see `fleetlog topics describe`",
    ErrorCode.MESSAGE_TOO_LARGE: "a record is larger than the topic's max.message.bytes",
    ErrorCode.INVALID_GROUP_ID: "a group's name must not be empty",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this login has no such right on the cluster; `fleetlog acls add --cluster`"
    " gives it",
    ErrorCode.TOPIC_DELETION_DISABLED: "the brokers have delete.topic.enable=false",
}


OWN_WORDS = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION})
"""Errors that a hint explains better than the broker's message."""
MAX_TIMEOUT_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Target:
    """The fleet's address, how long to wait for it, and the properties with which clients connect (not shown).

    ``registry`` is the address of its schema registry, if a profile names one.
    """

    bootstrap: str
    timeout_s: float
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    registry: str = ""

    @property
    def timeout_ms(self) -> int:
        """The timeout in milliseconds."""
        return int(self.timeout_s * 1000)


# --- options ----------------------------------------------------------------------------------------------------


def _properties(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    from fleetlog.brokers.cli.command_config import read_command_config  # with all that logins and TLS need

    return read_command_config(file)


def _security(properties: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of kafka-python's clients."""
    if not properties:
        return {}
    from fleetlog.brokers.cli.command_config import client_security

    return client_security(properties)


def parse_bootstrap(value: str) -> list[tuple[str, int]]:
    """Addresses of ``host:port,host:port``; raises click.BadParameter that names the invalid one."""
    addresses = []
    for address in value.split(","):
        host, colon, port = address.strip().rpartition(":")
        if not colon or not _is_host(host) or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
            raise click.BadParameter(f"{address.strip()!r} is not host:port", param_hint="--bootstrap")
        addresses.append((host.strip("[]"), int(port)))
    return addresses


def _is_host(host: str) -> bool:
    try:
        return bool(host.encode("idna"))
    except UnicodeError:  # an empty part, or one of more than 63 characters
        return False


def _bootstrap(_: click.Context, __: click.Parameter, value: str) -> str:
    parse_bootstrap(value)
    return value


_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")


def complete_profiles(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of profiles."""
    from fleetlog.brokers.cli.profiles import read_profiles

    try:
        return sorted(name for name in read_profiles().by_name if name.startswith(incomplete))
    except CliError:
        return []


def _target(ctx: click.Context, timeout_s: float) -> Target:
    """By the command line, then by --profile, then by FLEETLOG_BOOTSTRAP and FLEETLOG_COMMAND_CONFIG, then by
    FLEETLOG_PROFILE or the profile in use.

    A profile that the command line does not name counts only where no address is given: its login is for its fleet.
    """
    bootstrap, file = str(ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP), ctx.params.get("command_config")
    source = ctx.get_parameter_source
    named = source("profile") is ParameterSource.COMMANDLINE
    counting = {ParameterSource.COMMANDLINE} if named else {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}
    has_address, has_file = source("bootstrap") in counting, source("command_config") in counting
    if not named and (has_address or has_file):
        return Target(bootstrap, timeout_s, _properties(file))
    from fleetlog.brokers.cli.profiles import chosen_profile

    profile = chosen_profile(ctx.params.get("profile"))
    if profile is None:
        return Target(bootstrap, timeout_s, _properties(file))
    return Target(
        bootstrap if has_address else profile.bootstrap,
        timeout_s,
        _properties(file) if has_file else profile.security,
        profile.registry,
    )


def client_options(function: _Function) -> _Function:
    """Adds --bootstrap, --profile, --timeout and --json; the command gets ``target`` and ``out``."""

    @click.option(
        "--bootstrap",
        "-b",
        envvar="FLEETLOG_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        callback=_bootstrap,
        metavar="HOST:PORT[,...]",
        help="Brokers to connect to first.",
    )
    @click.option(
        "--timeout",
        type=at_least(0.1, MAX_TIMEOUT_S),
        default=DEFAULT_TIMEOUT_S,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for an answer.",
    )
    @click.option(
        "--command-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="FLEETLOG_COMMAND_CONFIG",
        show_envvar=True,
        help="Properties with the names of Java's clients: security.protocol, sasl.*, ssl.* (PEM or PKCS12 stores).",
    )
    @click.option(
        "--profile",
        envvar="FLEETLOG_PROFILE",
        show_envvar=True,
        shell_complete=complete_profiles,
        metavar="NAME",
        help="A profile of `fleetlog profile`.  [default: the one in use, if any]",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    @functools.wraps(function)
    def wrapped(*args: Any, timeout: float, as_json: bool, **kwargs: Any) -> Any:
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        for name in ("bootstrap", "command_config", "profile"):
            kwargs.pop(name)
        target = _target(click.get_current_context(), timeout)
        return function(*args, target=target, out=Output(as_json), **kwargs)

    return wrapped  # type: ignore[return-value]


class PartitionsOf(NamedTuple):
    """A topic, all of it (``partitions`` None) or some partitions."""

    topic: str
    partitions: tuple[int, ...] | None


def topic_partitions(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[PartitionsOf]:
    """Callback of arguments and options like ``TOPIC`` or ``TOPIC:0,3``."""
    named = []
    for value in values:
        topic, colon, listed = value.partition(":")
        if colon and not all(re.fullmatch(" *[0-9]{1,9} *", part) for part in listed.split(",")):
            raise click.BadParameter(f"{value!r} must be TOPIC or TOPIC:PARTITION[,PARTITION...]")
        named.append(PartitionsOf(topic, tuple(int(part) for part in listed.split(",")) if colon else None))
    return named


def names_told(ctx: click.Context, incomplete: str, ask: Callable[[Any], list[str]]) -> list[str]:
    """Names for shell completion; none when the fleet does not answer quickly."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        with admin(_target(ctx, COMPLETION_TIMEOUT_S)) as client:
            return sorted(name for name in ask(client) if name.startswith(incomplete))
    except click.ClickException:
        return []


def _setting_names(names: Iterable[str], incomplete: str, parameter: click.Parameter) -> list[str]:
    mark = "=" if "=" in (parameter.metavar or "") else ""
    return sorted(f"{name}{mark}" for name in names if name.startswith(incomplete))


def complete_topic_settings(_: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of a topic's settings."""
    from fleetlog.brokers.topic_config import TOPIC_SETTINGS

    return _setting_names(TOPIC_SETTINGS, incomplete, parameter)


def complete_broker_settings(_: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of a broker's settings."""
    from fleetlog.brokers.config import BROKER_SETTINGS

    return _setting_names(BROKER_SETTINGS, incomplete, parameter)


def complete_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of topics."""
    return names_told(ctx, incomplete, lambda client: [str(name) for name in client.list_topics()])


def complete_groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of groups."""
    return names_told(ctx, incomplete, lambda client: [str(group["group_id"]) for group in client.list_groups()])


# --- clients ----------------------------------------------------------------------------------------------------


def reach(target: Target) -> list[str]:
    """The bootstrap addresses at which a broker answers now.

    Fails fast, with the addresses and reasons, when no broker listens: clients would retry until their timeout. They
    also choose at random, so that one paused broker among three sometimes delays a command for that long.
    """
    addresses = parse_bootstrap(target.bootstrap)
    security = _security(target.properties)
    with ThreadPoolExecutor(len(addresses)) as pool:
        probed = list(pool.map(lambda address: _probe(address, target.timeout_s, security), addresses))
    spelled = [address.strip() for address in target.bootstrap.split(",")]
    answering = [name for name, failure in zip(spelled, probed, strict=True) if failure is None]
    if answering:
        return answering
    refused = next((failure for failure in probed if isinstance(failure, TlsRefused)), None)
    if refused is not None:
        raise CliError(str(refused))
    silent = [name for name, failure in zip(spelled, probed, strict=True) if isinstance(failure, TimeoutError)]
    if silent:
        return silent
    reasons = [
        f"{host}:{port} ({failure.strerror or failure})"
        for (host, port), failure in zip(addresses, probed, strict=True)
        if failure is not None
    ]
    own = target.bootstrap == DEFAULT_BOOTSTRAP and not target.properties  # another fleet is started by other commands
    way = "start one with `fleetlog dev up`, or name one with --bootstrap" if own else "is this the fleet's address?"
    raise CliError(f"no broker answers at {', '.join(reasons)}; {way}")


def takes_login(target: Target) -> bool:
    """Whether a broker took the login of the target's properties; False: none answers. Raises LoginRefused."""
    security = _security(target.properties)
    assert "sasl_mechanism" in security, "there is a login"
    return any(_probe(address, target.timeout_s, security) is None for address in parse_bootstrap(target.bootstrap))


def _probe(address: tuple[str, int], timeout_s: float, security: Mapping[str, Any]) -> OSError | None:
    """None if the broker answers, and accepts the login where there is one. Raises CliError if it refuses it."""
    context = security.get(TLS_CONTEXT)

    def ask(connection: socket.socket) -> OSError | None:
        connection.sendall(PROBE)
        first = connection.recv(1)
        if not first:
            return TimeoutError("closed")
        return without_tls(first, address) if context is None else None

    answer_s = PROBE_TIMEOUT_S if context is None else CONNECT_TIMEOUT_S
    problem = _exchange(address, context, timeout_s, answer_s, ask)
    if problem is not None or "sasl_mechanism" not in security:
        return problem
    from fleetlog.brokers.cli.login_probe import probe_login

    return _exchange(address, context, timeout_s, LOGIN_TIMEOUT_S, lambda one: probe_login(one, security))


def _exchange(
    address: tuple[str, int],
    context: ssl.SSLContext | None,
    timeout_s: float,
    answer_s: float,
    work: Callable[[socket.socket], OSError | None],
) -> OSError | None:
    """What work finds over a new connection, or why there is none; a TimeoutError where nothing is answered."""
    try:
        connection = socket.create_connection(address, timeout=min(timeout_s, CONNECT_TIMEOUT_S))
    except TimeoutError as error:
        return OSError(error.errno, str(error))  # unreachable
    except OSError as error:
        return error
    connection.settimeout(min(timeout_s, answer_s))
    try:
        with connection if context is None else tls_connection(connection, address, context) as secured:
            return work(secured)
    except TlsRefused as refused:
        return refused
    except ssl.SSLError as error:
        return tls_refusal(error, address)
    except OSError:
        return TimeoutError("silent")


@contextmanager
def admin(target: Target, about: str = "") -> Iterator[Any]:
    """An admin client; errors inside the block become one line beginning with ``about``."""
    bootstrap = reach(target)
    with explained(target, about):
        client = AdminClient(
            suspects={address.strip() for address in target.bootstrap.split(",")} - set(bootstrap),
            bootstrap_servers=bootstrap,
            client_id=CLIENT_ID,
            request_timeout_ms=target.timeout_ms,
            bootstrap_timeout_ms=target.timeout_ms,
            **_security(target.properties),
        )
        try:
            yield client
        except GONE as error:
            if cut_off := client.cut_off():
                begin = f"{about}: " if about else ""
                raise CliError(f"{begin}{without_zookeeper(cut_off)}") from error
            raise
        finally:
            client.close()


def without_zookeeper(brokers: list[int]) -> str:
    """What to tell whoever asked for what these brokers cannot do without ZooKeeper."""
    named = f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, brokers))}"
    return (
        f"not done in time, since ZooKeeper does not answer {named}: see whether the ZooKeeper servers run, have a "
        "majority and can be reached from there; then try again"
    )


@contextmanager
def consumer(target: Target, about: str = "", **config: Any) -> Iterator[Any]:
    """A consumer without deserializers; offsets are committed by the command itself."""
    from kafka.consumer import KafkaConsumer  # a third more memory, which few commands need

    bootstrap = reach(target)
    with explained(target, about):
        client = KafkaConsumer(
            bootstrap_servers=bootstrap,
            client_id=CLIENT_ID,
            bootstrap_timeout_ms=target.timeout_ms,
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            **_security(target.properties),
            **config,
        )
        try:
            yield client
        finally:
            client.close(autocommit=False, timeout_ms=min(target.timeout_ms, CLOSE_TIMEOUT_MS))


@contextmanager
def producer(target: Target, about: str, transactional_id: str) -> Iterator[Any]:
    """A transactional producer without serializers, whose transactions before are ended."""
    from kafka.producer import KafkaProducer

    bootstrap = reach(target)
    with explained(target, about):
        client = KafkaProducer(
            bootstrap_servers=bootstrap,
            client_id=CLIENT_ID,
            transactional_id=transactional_id,
            **_security(target.properties),
        )
        try:
            client.init_transactions()
            yield client
        finally:
            client.close(timeout=min(target.timeout_s, CLOSE_TIMEOUT_MS / 1000))


# --- errors -----------------------------------------------------------------------------------------------------


def code_of(error: Exception) -> ErrorCode | None:
    """Kafka's error code of a client's exception, if it has one."""
    number = getattr(error, "errno", None)
    try:
        return None if number is None else ErrorCode(number)
    except ValueError:
        return None


def explain(code: int, message: str | None = None) -> str:
    """The text of an error code: its name, and the broker's reason or a hint."""
    try:
        error = ErrorCode(code)
    except ValueError:
        return f"error {code}: {message}" if message else f"error {code}"
    hint = HINTS.get(error, "")
    reason = hint if error in OWN_WORDS else message or hint or _description(code)
    return f"{reason} ({error.name})" if reason else error.name


def _description(code: int) -> str:
    """The description of an error in Kafka's documentation."""
    text = str(getattr(kafka_errors.for_code(code), "description", "") or "").strip().rstrip(".")
    return text[:1].lower() + text[1:]


def reworded(text: object) -> str:
    """An error as kafka-python writes it, ``[Error 40] InvalidConfigurationError: what``, in this command's form."""
    match = re.match(r"\[Error (\d+)\] \w+(?:: (.*))?$", str(text), re.DOTALL)
    return str(text) if match is None else explain(int(match[1]), match[2])


def raise_for_code(about: str, code: int, message: str | None = None) -> None:
    """Raise CliError if the code is an error."""
    if code:
        raise CliError(f"{about}: {explain(code, message)}")


@contextmanager
def explained(target: Target, about: str = "") -> Iterator[None]:
    """Turn a client's exceptions into CliError."""
    begin = f"{about}: " if about else ""
    try:
        yield
    except kafka_errors.KafkaError as error:
        code = code_of(error)
        if code is not None:
            raise CliError(f"{begin}{explain(code)}") from error
        if isinstance(error, BrokerGone):
            raise CliError(f"{begin}{_gone(error, target)}") from error
        if isinstance(error, GONE):
            raise CliError(
                f"{begin}no answer from {target.bootstrap} within {number_text(target.timeout_s)} s; "
                "do its brokers run, and is this their address? --timeout waits longer"
            ) from error
        raise CliError(f"{begin}{first_line(error) or 'the client gave up; try again'}") from error
    except (struct.error, OverflowError) as error:
        raise CliError(f"{begin}a number is larger than the protocol can carry") from error
    except OSError as error:
        raise CliError(f"{begin}{error.strerror or error}") from error


def _gone(error: BrokerGone, target: Target) -> str:
    if error.unknown:
        return f"{error.who}, ended the connection without an answer; see whether it did this before you ask again"
    return f"no answer from {error.who}, within {number_text(target.timeout_s)} s; --timeout waits longer for it"


def first_line(error: Exception) -> str:
    """The first line of an exception's text, without the library's prefix and at a readable length."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else "").split(": ", 1)[-1][:300]


def warn_of_minimum(settings: Mapping[str, str], replicas: int, name: str) -> None:
    """Say so if ``settings`` want more replicas in sync than the topic has: Kafka takes that without a word."""
    minimum = settings.get("min.insync.replicas", "")
    if minimum.isdecimal() and int(minimum) > replicas:
        warn(
            f"min.insync.replicas={minimum} is more than the {count_text(replicas, 'replica')} of {name}:"
            " every replica must be in sync for acks=all, so one broker that stops refuses writes"
        )


def wait_for_topics(client: Any, topics: list[str], timeout_s: float) -> list[str]:
    """Wait until every broker knows the topics and their leaders; returns the topics that one did not know in time.

    A new topic reaches the brokers one by one; a producer that starts after its creation must find it on all of them.
    A broker that doesn't answer has more to catch up with than this topic, and is not waited for.
    """

    def missing(answer: Any) -> set[str]:
        return {t.name for t in answer.topics if t.error_code or any(p.leader_id < 0 for p in t.partitions)}

    return sorted(wait_for_metadata(client, topics, missing, timeout_s))


def wait_for_metadata(
    client: Any, topics: list[str], missing: Callable[[Any], set[_Value]], timeout_s: float
) -> set[_Value]:
    """Wait until in no broker's answer about the topics something is missing; what one did not know in time."""
    deadline = time.monotonic() + timeout_s
    waiting = {broker.node_id for broker in client._manager.cluster.brokers()}
    rows = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    while True:
        requests = {b: MetadataRequest(topics=rows, allow_auto_topic_creation=False) for b in waiting}
        answers = client.ask_each(requests, min(timeout_s, PROBE_TIMEOUT_S))
        unknown = {b: missing(answer) for b, answer in answers.items() if answer is not None}
        waiting = {b for b, names in unknown.items() if names}
        if not waiting:
            return set()
        if time.monotonic() > deadline:
            return set().union(*unknown.values())
        time.sleep(KNOWN_POLL_S)


def offsets_at(client: Any, point: Point, begins: Mapping[Any, int], ends: Mapping[Any, int]) -> dict[Any, int]:
    """Where the point is in each partition, which has records from its begin to its end; an offset may be above it.

    A time after the last record is the end.
    """
    match point.kind:
        case "beginning":
            return dict(begins)
        case "end":
            return dict(ends)
        case "before_end":
            return {tp: max(end - point.value, begins[tp]) for tp, end in ends.items()}
        case "offset":
            return {tp: max(point.value, begin) for tp, begin in begins.items()}
    listed = client.list_partition_offsets(dict.fromkeys(begins, max(point.value, 0)))
    return {tp: listed[tp].offset if listed[tp].offset >= 0 else end for tp, end in ends.items()}


def first_and_end(
    client: Any, partitions: Iterable[Any], isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> tuple[dict[Any, int], dict[Any, int]]:
    """The first offset of each partition, and its end. Raises KafkaError."""
    first, end = (
        client.list_partition_offsets(dict.fromkeys(partitions, spec), isolation)
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    )
    return {tp: row.offset for tp, row in first.items()}, {tp: row.offset for tp, row in end.items()}


def named_partitions(client: Any, wanted: list[PartitionsOf]) -> list[Any]:
    """The partitions asked for, as kafka-python's; raises CliError naming what does not exist."""
    known = known_partitions(client, wanted)
    return [TopicPartition(topic, row["partition_index"]) for topic, rows in known.items() for row in rows]


def known_partitions(client: Any, wanted: list[PartitionsOf]) -> dict[str, list[dict[str, Any]]]:
    """Metadata of the partitions asked for, by topic; raises CliError naming what does not exist."""
    names = [one.topic for one in wanted]
    topics = {topic["name"]: topic for topic in client.describe_topics(names)}
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for topic, partitions in wanted:
        data = topics.get(topic)
        raise_for_code(f"topic {topic}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if data is None else data["error_code"])
        assert data is not None
        listed = sorted(data["partitions"], key=lambda p: int(p["partition_index"]))
        existing = {p["partition_index"] for p in listed}
        missing = [p for p in partitions or () if p not in existing]
        if missing:
            known = f"partitions 0 to {len(existing) - 1}"
            raise CliError(f"topic {topic} has {known}, not {missing[0]} (UNKNOWN_TOPIC_OR_PARTITION)")
        by_topic.setdefault(topic, []).extend(
            p for p in listed if partitions is None or p["partition_index"] in partitions
        )
    return by_topic
