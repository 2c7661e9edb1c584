"""The settings that Kafka's clients have, by name: what is none of them is a misspelling.

A name alone says nothing of its effect here: `fleetlog.spark.client.settings` does. Sources: the configuration pages of
Apache Kafka 4.1 (consumer, producer, common) and librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fleetlog.spark.client.failures import OptionError

KAFKA_PREFIX = "kafka."


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_COMMON = _listed("""
    bootstrap.servers client.dns.lookup client.id client.rack connections.max.idle.ms enable.metrics.push
    metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
    retry.backoff.ms sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
    sasl.mechanism security.protocol socket.connection.setup.timeout.ms ssl.cipher.suites
    ssl.endpoint.identification.algorithm ssl.key.password ssl.keystore.location ssl.keystore.password
""")
_JAVA = _listed("""
    acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset batch.size
    buffer.memory check.crcs compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level config.providers default.api.timeout.ms delivery.timeout.ms enable.auto.commit
    enable.idempotence exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id
    group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms interceptor.classes
    isolation.level key.deserializer key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
    max.partition.fetch.bytes max.poll.interval.ms max.poll.records max.request.size metadata.max.idle.ms
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    partition.assignment.strategy partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
    partitioner.class partitioner.ignore.keys receive.buffer.bytes sasl.client.callback.handler.class
    sasl.jaas.config sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
    sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    security.providers send.buffer.bytes session.timeout.ms socket.connection.setup.timeout.max.ms
    ssl.enabled.protocols ssl.engine.factory.class ssl.keymanager.algorithm ssl.keystore.certificate.chain
    ssl.keystore.key ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
    ssl.truststore.type transaction.timeout.ms transaction.two.phase.commit.enable transactional.id
    value.deserializer value.serializer
""")
_LIBRDKAFKA_ONLY = _listed("""
    api.version.fallback.ms api.version.request api.version.request.timeout.ms batch.num.messages
    broker.address.family broker.address.ttl broker.version.fallback compression.codec compression.level debug
    enable.random.seed enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification
    log.connection.close log.queue log.thread.name log_level max.in.flight message.copy.max.bytes
    message.max.bytes message.send.max.retries message.timeout.ms metadata.broker.list partitioner
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queuing.strategy receive.message.max.bytes reconnect.backoff.jitter.ms
    request.required.acks sasl.kerberos.keytab sasl.kerberos.principal sasl.mechanisms
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config
    sasl.oauthbearer.extensions sasl.oauthbearer.method sasl.oauthbearer.scope sasl.password sasl.username
    socket.blocking.max.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.crl.location ssl.curves.list
    ssl.engine.id ssl.engine.location ssl.key.location ssl.key.pem ssl.providers ssl.sigalgs.list
    statistics.interval.ms sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
""")
_LIBRDKAFKA_TOO = _listed("""
    acks allow.auto.create.topics batch.size compression.type delivery.timeout.ms enable.idempotence linger.ms
    max.in.flight.requests.per.connection sasl.oauthbearer.token.endpoint.url transaction.timeout.ms
    transactional.id
""")

LIBRDKAFKA = frozenset((*_COMMON, *_LIBRDKAFKA_ONLY, *_LIBRDKAFKA_TOO))
"""What librdkafka's producer takes."""

KNOWN = frozenset((*LIBRDKAFKA, *_JAVA))

FOR_LOGINS = ("security.", "sasl.", "ssl.", "enable.sasl.", "enable.ssl.")
"""How names of TLS and logins begin."""

logger = logging.getLogger(__name__)
_warned: set[tuple[str, str]] = set()


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean ...?`` for a misspelt name; empty where no known name is near."""
    import difflib  # late: few names are misspelt

    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""


def check_names(settings: Iterable[str]) -> None:
    """Raises OptionError for a setting that no Kafka client has. Names without the prefix ``kafka.``."""
    for name in settings:
        if name not in KNOWN:
            hint = nearest(name, KNOWN).replace("did you mean ", f"did you mean {KAFKA_PREFIX}")
            raise OptionError(f"option {KAFKA_PREFIX}{name} is unknown: no Kafka client has such a setting{hint}")


def check_effect(settings: Iterable[str], used: Iterable[str], user: str, *, warn: bool = True) -> None:
    """With ``warn`` log once each setting that has no effect on ``user``, for instance "the source".

    Raises OptionError for one of TLS and logins: without it a connection would be less safe than it looks.
    """
    effective = frozenset(used)
    for name in sorted(settings):
        if name in effective:
            continue
        if name.startswith(FOR_LOGINS):
            secure = ", ".join(sorted(known for known in effective if known.startswith(FOR_LOGINS)))
            raise OptionError(f"option {KAFKA_PREFIX}{name} is not supported by {user}; supported are {secure}")
        if warn:
            warn_without_effect(KAFKA_PREFIX + name, user)


def warn_without_effect(option: str, user: str, reason: str = "") -> None:
    """Log once in this process that an option changes nothing."""
    if (option, user) not in _warned:
        _warned.add((option, user))
        logger.warning("option %s has no effect on %s%s", option, user, reason and f": {reason}")
