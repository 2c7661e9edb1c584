"""Topics that come to be by being used: automatic ones, and the internal topics.

Any broker may need one; the controller makes it. Many requests for the same name make one creation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from brokers.cluster.peers import PeersPort, PeerUnavailable
from brokers.cluster.requests import NewTopic, check_name
from brokers.cluster.view import ClusterView
from brokers.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from wire import messages
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from brokers.cluster.controller import ControllerHandle

log = logging.getLogger(__name__)

CREATE_TOPICS_KEY = 19
CREATE_TOPICS_VERSION = 7
AUTO_CREATE_MS = 5_000
VIEW_WAIT_MS = 2_000
RETRY_SECONDS = 0.1


class AutoCreation:
    """See the module. ``controller`` is this broker's own, which may be the one in office."""

    def __init__(self, controller: ControllerHandle, view: ClusterView, peers: PeersPort, broker_id: int) -> None:
        self._controller = controller
        self._view = view
        self._peers = peers
        self._broker_id = broker_id
        self._creating: dict[str, asyncio.Task[ErrorCode]] = {}

    async def stop(self) -> None:
        """Give up what is under way."""
        tasks = list(self._creating.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def create(self, names: Sequence[str], timeout_ms: int = AUTO_CREATE_MS) -> dict[str, ErrorCode]:
        """Create the topics that don't exist, wherever the controller is, and wait until our view has them.

        Internal topics get their own settings. NONE means: there, in our view. Many requests for the same name make
        one creation.
        """
        found: dict[str, ErrorCode] = {}
        tasks: dict[str, asyncio.Task[ErrorCode]] = {}
        for name in dict.fromkeys(names):
            if name in self._view.topics:
                found[name] = ErrorCode.NONE
            elif check_name(name) is not None:
                found[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
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
            task = asyncio.create_task(self._create_somewhere(internal_topic(name, self._view)), name=f"create {name}")
            self._creating[name] = task
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        return task

    async def _create_somewhere(self, topic: NewTopic) -> ErrorCode:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AUTO_CREATE_MS / 1000
        error = ErrorCode.REQUEST_TIMED_OUT
        while loop.time() < deadline and topic.name not in self._view.topics:
            error = await self._ask_controller(topic, round((deadline - loop.time()) * 1000))
            if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                await self._view.wait_until(lambda: topic.name in self._view.topics, VIEW_WAIT_MS)
                break
            if error not in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE):
                return error
            await asyncio.sleep(RETRY_SECONDS)
        return ErrorCode.NONE if topic.name in self._view.topics else error

    async def _ask_controller(self, topic: NewTopic, timeout_ms: int) -> ErrorCode:
        if self._controller.is_active:
            (outcome,) = await self._controller.create_topics([topic], timeout_ms=timeout_ms)
            return outcome.error
        controller_id = self._view.controller_id
        if controller_id < 0 or controller_id == self._broker_id:
            return ErrorCode.NOT_CONTROLLER
        try:
            response = await self._peers.call(
                controller_id, CREATE_TOPICS_KEY, CREATE_TOPICS_VERSION, _create_request(topic, timeout_ms), timeout_ms
            )
        except PeerUnavailable as problem:
            log.info("creating %s at the controller: %s", topic.name, problem)
            return ErrorCode.BROKER_NOT_AVAILABLE
        return ErrorCode(response.topics[0].error_code) if response.topics else ErrorCode.UNKNOWN_SERVER_ERROR


def internal_topic(name: str, view: ClusterView) -> NewTopic:
    """How a topic is created that nobody described: defaults, or the settings of the internal topics."""
    config = view.effective
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
    return NewTopic(name)


def _create_request(topic: NewTopic, timeout_ms: int) -> Any:
    request = messages.request_class(CREATE_TOPICS_KEY)
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
