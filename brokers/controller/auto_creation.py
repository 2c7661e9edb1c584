"""Automatic creation of topics on first use, internal topics included.

Any broker may need a topic; the controller creates it. Concurrent requests for one name share one creation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fleetlog.brokers.controller.handle import AUTO_CREATE_MS, ControllerHandle
from fleetlog.brokers.controller.requests import NewTopic, check_name
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.model import AUDIT_TOPIC, GROUP_METADATA_TOPIC, PROTECTED_TOPICS, TRANSACTION_STATE_TOPIC
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.security.audit_settings import audit_topic_configs
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode

log = logging.getLogger(__name__)

CREATE_TOPICS_VERSION = 7
METADATA_WAIT_MS = 2_000
RETRY_SECONDS = 0.1
COMPLAINT_S = 60.0
_FACTORS = {
    GROUP_METADATA_TOPIC: ("consumer groups", "offsets.topic.replication.factor"),
    TRANSACTION_STATE_TOPIC: ("transactions", "transaction.state.log.replication.factor"),
    AUDIT_TOPIC: ("audit events", "audit.topic.replication.factor"),
}


class AutoCreation:
    """See the module. ``controller`` is this broker's own, which may be the active one."""

    def __init__(self, controller: ControllerHandle, metadata: MetadataCache, peers: PeersPort, broker_id: int) -> None:
        self._controller = controller
        self._metadata = metadata
        self._peers = peers
        self._broker_id = broker_id
        self._creating: dict[str, asyncio.Task[ErrorCode]] = {}
        self.refused: dict[str, str] = {}
        """Internal topics whose creation was rejected, with the reason. Until then groups or transactions wait."""
        self._complained_at: dict[str, float] = {}

    async def stop(self) -> None:
        """Cancel the creations in flight."""
        tasks = list(self._creating.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def create(self, names: Sequence[str], timeout_ms: int = AUTO_CREATE_MS) -> dict[str, ErrorCode]:
        """Create the missing topics, at this or a remote controller, and wait until the metadata cache has them.

        Internal topics get their own settings. NONE means that the metadata cache has the topic. While
        ``auto.create.topics.max.pending`` creations are in flight, further ones answer REQUEST_TIMED_OUT.
        """
        found: dict[str, ErrorCode] = {}
        tasks: dict[str, asyncio.Task[ErrorCode]] = {}
        most = self._metadata.static.auto_create_topics_max_pending
        for name in dict.fromkeys(names):
            if name in self._metadata.topics:
                found[name] = ErrorCode.NONE
            elif check_name(name) is not None:
                found[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif len(self._creating) >= most and name not in self._creating and name not in PROTECTED_TOPICS:
                found[name] = ErrorCode.REQUEST_TIMED_OUT
            else:
                tasks[name] = self._creation(name)
        if tasks:
            await asyncio.wait(tasks.values(), timeout=timeout_ms / 1000)
        for name, task in tasks.items():
            done = task.done() and not task.cancelled()
            found[name] = task.result() if done else ErrorCode.REQUEST_TIMED_OUT
        return found

    def _creation(self, name: str) -> asyncio.Task[ErrorCode]:
        task = self._creating.get(name)
        if task is None:
            task = asyncio.create_task(
                self._create_somewhere(internal_topic(name, self._metadata)), name=f"create {name}"
            )
            self._creating[name] = task
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        return task

    async def _create_somewhere(self, topic: NewTopic) -> ErrorCode:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AUTO_CREATE_MS / 1000
        error = ErrorCode.REQUEST_TIMED_OUT
        while loop.time() < deadline and topic.name not in self._metadata.topics:
            error = await self._ask_controller(topic, round((deadline - loop.time()) * 1000))
            if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                self.refused.pop(topic.name, None)
                await self._metadata.wait_until(lambda: topic.name in self._metadata.topics, METADATA_WAIT_MS)
                break
            if error not in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE):
                return error
            await asyncio.sleep(RETRY_SECONDS)
        return ErrorCode.NONE if topic.name in self._metadata.topics else error

    async def _ask_controller(self, topic: NewTopic, timeout_ms: int) -> ErrorCode:
        if self._controller.is_active:
            (outcome,) = await self._controller.create_topics([topic], timeout_ms=timeout_ms)
            self._complain(topic, outcome.error, outcome.message)
            return outcome.error
        controller_id = self._metadata.controller_id
        if controller_id < 0 or controller_id == self._broker_id:
            return ErrorCode.NOT_CONTROLLER
        try:
            response = await self._peers.call(
                controller_id,
                api_keys.CREATE_TOPICS,
                CREATE_TOPICS_VERSION,
                _create_request(topic, timeout_ms),
                timeout_ms,
            )
        except PeerUnavailable as problem:
            log.info("creating topic %s at controller %d failed: %s", topic.name, controller_id, problem)
            return ErrorCode.BROKER_NOT_AVAILABLE
        if not response.topics:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        error = ErrorCode(response.topics[0].error_code)
        self._complain(topic, error, response.topics[0].error_message)
        return error

    def _complain(self, topic: NewTopic, error: ErrorCode, message: str | None) -> None:
        """Log, at most once per COMPLAINT_S, why an internal topic is missing: clients only see retriable errors."""
        if topic.name not in _FACTORS or error is not ErrorCode.INVALID_REPLICATION_FACTOR:
            return
        what, setting = _FACTORS[topic.name]
        self.refused[topic.name] = (
            f"{topic.name} cannot be created, so {what} wait: {setting}={topic.replication_factor}, and there are fewer"
            f" brokers ({message}) Start more brokers, or set {setting} to the number of brokers on each of them"
        )
        now = asyncio.get_running_loop().time()
        if now >= self._complained_at.get(topic.name, now):
            self._complained_at[topic.name] = now + COMPLAINT_S
            log.error("%s", self.refused[topic.name])


def internal_topic(name: str, metadata: MetadataCache) -> NewTopic:
    """The definition of an automatically created topic: the defaults, or the internal topic's own settings."""
    config = metadata.effective
    settings: Mapping[str, str | None]
    if name == GROUP_METADATA_TOPIC:
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        return NewTopic(
            name, config.offsets_topic_num_partitions, config.offsets_topic_replication_factor, configs=settings
        )
    if name == TRANSACTION_STATE_TOPIC:
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "unclean.leader.election.enable": "false",
        }
        return NewTopic(
            name, config.transaction_state_log_num_partitions, config.transaction_state_log_replication_factor,
            configs=settings,
        )  # fmt: skip
    if name == AUDIT_TOPIC and config.audit_enable:
        return NewTopic(
            name, config.audit_topic_num_partitions, config.audit_topic_replication_factor,
            configs=audit_topic_configs(config),
        )  # fmt: skip
    return NewTopic(name)


def _create_request(topic: NewTopic, timeout_ms: int) -> Any:
    request = messages.request_class(api_keys.CREATE_TOPICS)
    version = CREATE_TOPICS_VERSION
    configs = [
        request.CreatableTopic.CreatableTopicConfig(version=version, name=name, value=value)
        for name, value in topic.configs.items()
    ]
    creatable = request.CreatableTopic(
        version=version, name=topic.name, num_partitions=topic.partitions,
        replication_factor=topic.replication_factor, assignments=[], configs=configs,
    )  # fmt: skip
    return request(version=version, topics=[creatable], timeout_ms=timeout_ms, validate_only=False)
