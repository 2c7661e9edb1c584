"""Which topics may be named as those of dead letters: by groups, and by topics with a check of schemas.

Who names one could otherwise write to it, by rejecting records, or by sending what fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleetlog.brokers.acls.access import WRITE_TOPIC
from fleetlog.brokers.api.base import Context
from fleetlog.brokers.config import ConfigError, TopicConfig
from fleetlog.brokers.controller.requests import Refused
from fleetlog.brokers.coordinators.dead_letters import LETTER_TOPIC
from fleetlog.brokers.coordinators.schema_letters import letters_refusal
from fleetlog.brokers.metadata.features import SCHEMA_LETTERS_LEVEL, SCHEMA_VERSION
from fleetlog.wire.errors import ErrorCode

INVALID = "fleetlog.schema.invalid"


def check_group_letters(present: Mapping[str, str], wanted: Mapping[str, str], context: Context) -> None:
    """Refuse a group's topic of dead letters: INVALID_CONFIG, or the right that is missing."""
    topic = wanted.get(LETTER_TOPIC, "")
    if not topic or topic == present.get(LETTER_TOPIC, ""):
        return
    _check_right(LETTER_TOPIC, topic, context)
    metadata = context.services.metadata
    if topic in metadata.topics and metadata.topic_config(topic).fleetlog_dedup != "none":
        raise Refused(ErrorCode.INVALID_CONFIG, f"{LETTER_TOPIC}: topic {topic} drops repeats (fleetlog.dedup)")


def check_schema_letters(
    name: str, present: Mapping[str, str], wanted: Mapping[str, str], base: TopicConfig, context: Context
) -> None:
    """Refuse the topic of dead letters of topic ``name``, or that one of such letters begins to ask for schemas."""
    try:
        before, after = (TopicConfig.parse(settings, base) for settings in (present, wanted))
    except ConfigError:
        return  # which is refused for itself
    topic, metadata = after.letter_topic, context.services.metadata
    if topic and topic != before.letter_topic and after.fleetlog_schema_invalid != "tag":
        _check_right(INVALID, topic, context)
        why = letters_refusal(topic, metadata)
        if metadata.features.get(SCHEMA_VERSION, 0) < SCHEMA_LETTERS_LEVEL:
            why = f"{SCHEMA_VERSION} {SCHEMA_LETTERS_LEVEL} is not finalized: fleetlog features upgrade"
        elif topic == name:
            why = "what it does not take cannot go there"
        if why is not None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"{INVALID}: topic {topic} cannot have dead letters: {why}")
    if after.checks_schemas and not before.checks_schemas:
        user = next((one for one, info in metadata.topics.items() if info.configs.get(INVALID) == f"dlq:{name}"), None)
        if user is not None:
            why = f"{name} has the dead letters of topic {user} ({INVALID}), which have no schema"
            raise Refused(ErrorCode.INVALID_CONFIG, f"A check of schemas is not possible: {why}")


def _check_right(setting: str, topic: str, context: Context) -> None:
    if topic.startswith("__"):
        raise Refused(ErrorCode.INVALID_CONFIG, f"{setting}: DLQ topic name must not start with '__'")
    if (code := context.refusal(*WRITE_TOPIC, topic)) is not ErrorCode.NONE:
        raise Refused(code, f"{setting}: to name topic {topic} takes the right to write to it.")
