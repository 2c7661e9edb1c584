"""Kafka's settings that change nothing here: accepted and shown, so that Kafka's files, tools and MirrorMaker work.

Names, types, defaults, bounds and which are dynamic are Kafka 4.4's, as its ``KafkaConfig`` prints them; the RETIRED
are those that Kafka 3.9 had and 4.0 removed. A row is ``name type default allowed [live]``; ``-`` allows everything of
the type, ``null`` is no value and '' an empty one. What has an effect is a field of
``brokers.config.BrokerConfig``, but for the three of authorization, those of TLS, of OIDC and of the connection
to ZooKeeper, which ``brokers.tls`` reads.
``tests/kafka_jars/test_settings.py`` compares all of them with Kafka's own.
"""

from __future__ import annotations

import re
from typing import Any

from fleetlog.brokers.setting_kinds import Setting, SettingType

_SECURITY = """
delegation.token.expiry.check.interval.ms long 3600000 1..
delegation.token.expiry.time.ms long 86400000 1..
delegation.token.max.lifetime.ms long 604800000 1..
delegation.token.secret.key password null -
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder - live
sasl.client.callback.handler.class class null -
sasl.jaas.config password null - live
sasl.kerberos.kinit.cmd string /usr/bin/kinit - live
sasl.kerberos.principal.to.local.rules list DEFAULT - live
sasl.kerberos.service.name string null - live
sasl.kerberos.ticket.renew.jitter double 0.05 - live
sasl.kerberos.ticket.renew.window.factor double 0.8 - live
sasl.login.callback.handler.class class null -
sasl.login.class class null -
sasl.login.connect.timeout.ms int null -
sasl.login.read.timeout.ms int null -
sasl.login.refresh.buffer.seconds short 300 - live
sasl.login.refresh.min.period.seconds short 60 - live
sasl.login.refresh.window.factor double 0.8 - live
sasl.login.refresh.window.jitter double 0.05 - live
sasl.login.retry.backoff.max.ms long 10000 -
sasl.login.retry.backoff.ms long 100 -
sasl.mechanism.controller.protocol string GSSAPI -
sasl.oauthbearer.allow.unverified.audience boolean false -
sasl.oauthbearer.allow.unverified.issuer boolean false -
sasl.oauthbearer.assertion.algorithm string RS256 ES256|RS256
sasl.oauthbearer.assertion.claim.aud string null -
sasl.oauthbearer.assertion.claim.exp.seconds int 300 0..86400
sasl.oauthbearer.assertion.claim.iss string null -
sasl.oauthbearer.assertion.claim.jti.include boolean false -
sasl.oauthbearer.assertion.claim.nbf.seconds int 60 0..3600
sasl.oauthbearer.assertion.claim.sub string null -
sasl.oauthbearer.assertion.file string null -
sasl.oauthbearer.assertion.private.key.file string null -
sasl.oauthbearer.assertion.private.key.passphrase password null -
sasl.oauthbearer.assertion.template.file string null -
sasl.oauthbearer.client.credentials.client.id string null -
sasl.oauthbearer.client.credentials.client.secret password null -
sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever -
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator -
sasl.oauthbearer.scope string null -
sasl.oauthbearer.token.endpoint.url string null -
sasl.server.callback.handler.class class null -
sasl.server.max.receive.size int 524288 -
security.providers string null -
"""

_TLS = """
ssl.allow.dn.changes boolean false -
ssl.allow.san.changes boolean false -
ssl.cipher.suites list '' - live
ssl.client.auth string none required|requested|none live
ssl.enabled.protocols list TLSv1.2,TLSv1.3 - live
ssl.endpoint.identification.algorithm string https - live
ssl.engine.factory.class class null - live
ssl.key.password password null - live
ssl.keymanager.algorithm string SunX509 - live
ssl.keystore.certificate.chain password null - live
ssl.keystore.key password null - live
ssl.keystore.location string null - live
ssl.keystore.password password null - live
ssl.keystore.type string JKS - live
ssl.principal.mapping.rules string DEFAULT -
ssl.protocol string TLSv1.3 - live
ssl.provider string null - live
ssl.secure.random.implementation string null - live
ssl.trustmanager.algorithm string PKIX - live
ssl.truststore.certificates password null - live
ssl.truststore.location string null - live
ssl.truststore.password password null - live
ssl.truststore.type string JKS - live
"""

_OIDC = """
sasl.oauthbearer.clock.skew.seconds int 30 -
sasl.oauthbearer.expected.audience list '' -
sasl.oauthbearer.expected.issuer string null -
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000 -
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 -
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 -
sasl.oauthbearer.jwks.endpoint.url string null -
sasl.oauthbearer.scope.claim.name string scope -
sasl.oauthbearer.sub.claim.name string sub -
"""

_KRAFT = """
broker.heartbeat.interval.ms int 2000 -
broker.session.timeout.ms int 9000 -
controller.listener.names list '' -
controller.quorum.append.linger.ms int 25 0..
controller.quorum.auto.join.enable boolean false -
controller.quorum.bootstrap.servers list '' -
controller.quorum.election.backoff.max.ms int 1000 0..
controller.quorum.election.timeout.ms int 1000 0..
controller.quorum.fetch.max.bytes int 1048576 1..
controller.quorum.fetch.snapshot.max.bytes int 1048576 1..
controller.quorum.fetch.timeout.ms int 2000 0..
controller.quorum.request.timeout.ms int 2000 0..
controller.quorum.retry.backoff.ms int 20 0..
controller.quorum.voters list '' -
controller.socket.timeout.ms int 30000 -
early.start.listeners list null -
initial.broker.registration.timeout.ms int 60000 -
metadata.log.dir string null -
metadata.log.max.record.bytes.between.snapshots long 20971520 1..
metadata.log.max.snapshot.interval.ms long 3600000 0..
metadata.log.segment.bytes int 1073741824 8388608..
metadata.log.segment.ms long 604800000 -
metadata.max.idle.interval.ms int 500 0..
metadata.max.retention.bytes long 104857600 -
metadata.max.retention.ms long 604800000 -
node.id int null 0..
process.roles list null broker|controller
"""

_TIERING = """
follower.fetch.last.tiered.offset.enable boolean false - live
remote.fetch.max.wait.ms int 500 1.. live
remote.list.offsets.request.timeout.ms long 30000 1.. live
remote.log.index.file.cache.total.size.bytes long 1073741824 1.. live
remote.log.manager.copier.thread.pool.size int 10 1.. live
remote.log.manager.copy.quota.window.num int 11 1..
remote.log.manager.copy.quota.window.size.seconds int 1 1..
remote.log.manager.expiration.thread.pool.size int 10 1.. live
remote.log.manager.fetch.quota.window.num int 11 1..
remote.log.manager.fetch.quota.window.size.seconds int 1 1..
remote.log.manager.follower.thread.pool.size int 2 1.. live
remote.log.manager.thread.pool.size int 2 1..
remote.log.metadata.custom.metadata.max.bytes int 128 0..
remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager -
remote.log.metadata.manager.class.path string null -
remote.log.metadata.manager.impl.prefix string rlmm.config. -
remote.log.metadata.manager.listener.name string null -
remote.log.reader.max.pending.tasks int 100 1..
remote.log.reader.threads int 10 1.. live
remote.log.storage.manager.class.name string null -
remote.log.storage.manager.class.path string null -
remote.log.storage.manager.impl.prefix string rsm.config. -
"""  # noqa: E501

_GROUPS = """
group.coordinator.append.linger.ms int -1 -1..
group.coordinator.background.threads int 2 1..
group.coordinator.cached.buffer.max.bytes int 1048588 524288.. live
group.coordinator.rebalance.protocols list classic,consumer,streams consumer|classic|share|streams
group.coordinator.threads int 4 1..
group.share.assignment.interval.ms int 1000 0.. live
group.share.assignors list simple -
group.share.max.assignment.interval.ms int 15000 0..
group.share.min.assignment.interval.ms int 0 0..
group.streams.assignment.interval.ms int 1000 0.. live
group.streams.assignors list sticky -
group.streams.heartbeat.interval.ms int 5000 1..
group.streams.initial.rebalance.delay.ms int 3000 0..
group.streams.max.assignment.interval.ms int 15000 0..
group.streams.max.heartbeat.interval.ms int 15000 1..
group.streams.max.session.timeout.ms int 60000 1..
group.streams.max.size int 2147483647 1..
group.streams.max.standby.replicas int 2 0..
group.streams.min.assignment.interval.ms int 0 0..
group.streams.min.heartbeat.interval.ms int 5000 1..
group.streams.min.session.timeout.ms int 45000 1..
group.streams.num.standby.replicas int 0 0..
group.streams.rack.aware.assignment.tags list '' -
group.streams.session.timeout.ms int 45000 1..
group.streams.topology.description.plugin.class class null -
share.coordinator.append.linger.ms int -1 -1..
share.coordinator.cached.buffer.max.bytes int 1048588 524288.. live
share.coordinator.load.buffer.size int 5242880 1..
share.coordinator.snapshot.update.records.per.snapshot int 500 0..
share.coordinator.state.topic.compression.codec int 0 -
share.coordinator.threads int 1 1..
share.coordinator.write.timeout.ms int 5000 1..
share.fetch.purgatory.purge.interval.requests int 1000 -
"""

_REST = """
add.partitions.to.txn.retry.backoff.max.ms int 100 0..
add.partitions.to.txn.retry.backoff.ms int 20 1..
alter.config.policy.class.name class null -
alter.log.dirs.replication.quota.window.num int 11 1..
alter.log.dirs.replication.quota.window.size.seconds int 1 1..
client.quota.callback.class class null -
config.providers list '' '' live
cordoned.log.dirs list '' - live
create.topic.policy.class.name class null -
delete.records.purgatory.purge.interval.requests int 1 -
fetch.purgatory.purge.interval.requests int 1000 -
kafka.metrics.polling.interval.secs int 10 1..
kafka.metrics.reporters list '' -
log.cleaner.enable boolean true -
log.cleaner.io.buffer.load.factor double 0.9 - live
log.cleaner.io.buffer.size int 524288 0.. live
log.cleaner.threads int 1 0.. live
log.dir.failure.timeout.ms long 30000 1..
log.flush.start.offset.checkpoint.interval.ms int 60000 0..
max.request.partition.size.limit int 2000 1..
metric.reporters list org.apache.kafka.common.metrics.JmxReporter - live
metrics.num.samples int 2 1..
metrics.recording.level string INFO -
metrics.sample.window.ms long 30000 1..
num.replica.alter.log.dirs.threads int null -
offsets.commit.timeout.ms int 5000 1..
offsets.load.buffer.size int 5242880 1..
offsets.topic.compression.codec int 0 -
producer.purgatory.purge.interval.requests int 1000 -
queued.max.requests int 500 1..
replica.alter.log.dirs.io.max.bytes.per.second long 9223372036854775807 0.. live
replica.high.watermark.checkpoint.interval.ms long 5000 -
replica.socket.receive.buffer.bytes int 65536 -
replica.socket.timeout.ms int 30000 -
replication.quota.window.num int 11 1..
replication.quota.window.size.seconds int 1 1..
request.timeout.ms int 30000 -
socket.connection.setup.timeout.max.ms long 30000 -
socket.connection.setup.timeout.ms long 10000 -
telemetry.max.bytes int 1048576 1..
transaction.partition.verification.enable boolean true - live
transaction.state.log.load.buffer.size int 5242880 1..
transaction.two.phase.commit.enable boolean false -
"""

_RETIRED = """
auto.include.jmx.reporter boolean true -
broker.id.generation.enable boolean true -
control.plane.listener.name string null -
delegation.token.master.key password null -
eligible.leader.replicas.enable boolean false -
group.share.max.groups short 10 1..100
inter.broker.protocol.version string null -
log.message.downconversion.enable boolean true - live
log.message.format.version string null -
log.message.timestamp.difference.max.ms long 9223372036854775807 0.. live
offsets.commit.required.acks short -1 -
password.encoder.cipher.algorithm string AES/CBC/PKCS5Padding -
password.encoder.iterations int 4096 1024..
password.encoder.key.length int 128 8..
password.encoder.keyfactory.algorithm string null -
password.encoder.old.secret password null -
password.encoder.secret password null -
reserved.broker.max.id int 1000 0..
zookeeper.max.in.flight.requests int 10 1..
zookeeper.metadata.migration.enable boolean false false
"""

_ZOOKEEPER = """
zookeeper.clientCnxnSocket string null -
zookeeper.digest.credentials password null -
zookeeper.set.acl boolean false -
zookeeper.ssl.cipher.suites list null -
zookeeper.ssl.client.enable boolean false -
zookeeper.ssl.crl.enable boolean false -
zookeeper.ssl.enabled.protocols list null -
zookeeper.ssl.endpoint.identification.algorithm string HTTPS -
zookeeper.ssl.keystore.location string null -
zookeeper.ssl.keystore.password password null -
zookeeper.ssl.keystore.type string null -
zookeeper.ssl.ocsp.enable boolean false -
zookeeper.ssl.protocol string TLSv1.2 -
zookeeper.ssl.truststore.location string null -
zookeeper.ssl.truststore.password password null -
zookeeper.ssl.truststore.type string null -
"""
"""Kafka 3.9's, but for the credentials of a digest, which Kafka has in a JAAS file."""

_TOPICS_RETIRED = """
message.downconversion.enable boolean true - live
message.format.version string null - live
message.timestamp.difference.max.ms long 9223372036854775807 0.. live
"""

_NOT_HERE = "Accepted; no effect: this broker has no such part."
_OIDC_DOC = "How tokens of OAUTHBEARER are checked, where it is enabled; listener.name.X.oauthbearer. counts before it."
_RETIRED_DOC = "Accepted; no effect: Kafka 4 has removed it, too."
_TIERING_DOC = "Accepted; no effect: docs/tiering.md says what tiered storage has here."
_ZOOKEEPER_DOC = "How the broker connects to ZooKeeper, and whether its znodes are its own; see docs/security.md."


def _row(line: str, doc: str, *, retired: bool) -> Setting:
    name, kind, default, allowed, *flags = line.split()
    bounds: dict[str, Any] = {}
    if ".." in allowed:
        low, _, high = allowed.partition("..")
        bounds = {"low": int(low), "high": int(high) if high else None}
    elif allowed != "-":
        bounds = {"choices": tuple(choice.strip("'") for choice in allowed.split("|"))}
    row = Setting(name, SettingType[kind.upper()], None, doc, inert=True, retired=retired, **bounds)
    live, synonym = "live" in flags, flags[1] if len(flags) > 1 else ""
    value = None if default == "null" else row.parse("" if default == "''" else default)
    return row._replace(default=value, live=live, synonym=synonym)


def _rows(text: str, doc: str, *, retired: bool = False) -> dict[str, Setting]:
    rows = (_row(line, doc, retired=retired) for line in text.strip().splitlines())
    return {row.name: row for row in rows}


AUTHORIZER_CLASSES = (
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
"""Kafka's names of its authorizers; either of them switches the broker's own one on, which decides as they do."""
_PRINCIPALS = r"(?:[^:;]+:[^;]+|\s*)(?:;(?:[^:;]+:[^;]+|\s*))*"

_AUTHORIZATION = (
    Setting(
        "authorizer.class.name",
        SettingType.STRING,
        "",
        f"name {' or '.join(AUTHORIZER_CLASSES)} to have requests checked against ACLs by the broker itself; empty: "
        "every client may do everything. Other classes cannot be loaded.",
        pattern="|".join(map(re.escape, ("", *AUTHORIZER_CLASSES))),
    ),
    Setting(
        "super.users",
        SettingType.STRING,
        None,
        "principals that may do everything, as Type:name with semicolons, e.g. User:admin;User:broker.",
        pattern=_PRINCIPALS,
        retired=True,
    ),
    Setting(
        "allow.everyone.if.no.acl.found",
        SettingType.BOOLEAN,
        None,
        "Whether all clients may use what no ACL applies to; false if it is not set.",
        retired=True,
    ),
)
"""What brokers.acls.settings reads. Kafka's authorizers declare the last two, not its brokers."""

_OIDC_ROWS: dict[str, Setting] = {name: row._replace(inert=False) for name, row in _rows(_OIDC, _OIDC_DOC).items()}
OIDC_SETTINGS = frozenset(_OIDC_ROWS)
"""What brokers.logins.oidc_settings reads."""

_TLS_DOC = "TLS of the listeners that have it, read at the start: docs/security.md says what is served."
_TLS_ROWS = _rows(_TLS, _TLS_DOC)
ADMIN_TLS_PREFIX = "admin."
_ADMIN_DOC = "TLS of admin.listener, as the setting without admin. is that of listeners; off where none of them is set."
_OF_ADMIN = re.compile(r"ssl\.(cipher\.suites|client\.auth|enabled\.protocols|key\.password|(key|trust)store\..+)")
_ADMIN_ROWS = {
    ADMIN_TLS_PREFIX + name: row._replace(
        name=ADMIN_TLS_PREFIX + name, doc=_ADMIN_DOC, live=False, inert=False, retired=True,
        default=None if name.endswith("store.type") else row.default,
    )
    for name, row in _TLS_ROWS.items()
    if _OF_ADMIN.fullmatch(name)
}  # fmt: skip
_ZOOKEEPER_ROWS = {
    name: row._replace(inert=False) for name, row in _rows(_ZOOKEEPER, _ZOOKEEPER_DOC, retired=True).items()
}
TLS_SETTINGS, ZOOKEEPER_SETTINGS = frozenset(_TLS_ROWS), frozenset(_ZOOKEEPER_ROWS)
"""What brokers.tls reads, of listeners and of the connection to ZooKeeper."""

KAFKA_BROKER_SETTINGS: dict[str, Setting] = {
    **{row.name: row for row in _AUTHORIZATION},
    **_rows(_SECURITY, "Accepted; no effect: of security, this release has TLS, SASL and ACLs."),
    **_TLS_ROWS,
    **_OIDC_ROWS,
    **_rows(_KRAFT, "Accepted; no effect: ZooKeeper coordinates the brokers."),
    **_rows(_TIERING, _TIERING_DOC),
    **_rows(
        _GROUPS,
        "Accepted; no effect: bounds of groups' settings, and groups of other protocols, are not in this release.",
    ),
    **_rows(_REST, _NOT_HERE),
    **_rows(_RETIRED, _RETIRED_DOC, retired=True),
    **_ADMIN_ROWS,
    **_ZOOKEEPER_ROWS,
}
"""Those that are not inert are read from what was given: by brokers.tls, brokers.logins and brokers.acls."""
KAFKA_TOPIC_SETTINGS: dict[str, Setting] = {
    **_rows(_TOPICS_RETIRED, _RETIRED_DOC, retired=True),
}
