"""Which errors of stock clients are definite: the record is not, and never will be, in the log.

Everything that isn't listed is indefinite: time-outs, disconnects, NotLeaderOrFollower (the append may survive),
unknown errors. The table follows the one of Jepsen's test of Redpanda, without the errors that a client tries again
after: the last answer says nothing of the attempts before it. Some errors are definite by the client's word only
(``doubtful``), as an earlier attempt may have succeeded; the sound reading of a history takes them as unknown.
"""

from __future__ import annotations

from typing import Any

DEFINITE = frozenset(
    {
        10,  # MESSAGE_TOO_LARGE
        17,  # INVALID_TOPIC_EXCEPTION
        18,  # RECORD_LIST_TOO_LARGE
        29,  # TOPIC_AUTHORIZATION_FAILED
        30,  # GROUP_AUTHORIZATION_FAILED
        38,  # INVALID_REPLICATION_FACTOR
        87,  # INVALID_RECORD
    }
)
DOUBTFUL = frozenset(
    {
        3,  # UNKNOWN_TOPIC_OR_PARTITION
        22,  # ILLEGAL_GENERATION
        25,  # UNKNOWN_MEMBER_ID
        27,  # REBALANCE_IN_PROGRESS
        41,  # NOT_CONTROLLER
        45,  # OUT_OF_ORDER_SEQUENCE_NUMBER
        47,  # INVALID_PRODUCER_EPOCH
        48,  # INVALID_TXN_STATE
        82,  # FENCED_INSTANCE_ID
        90,  # PRODUCER_FENCED
    }
)


def end_of(code: int | None) -> dict[str, Any]:
    """The event's fields for a send or commit that ended with this Kafka error code; None: a client's own error."""
    if code in DEFINITE:
        return {"e": "fail"}
    if code in DOUBTFUL:
        return {"e": "fail", "doubtful": True}
    return {"e": "info"}


def code_of(error: BaseException) -> int | None:
    """The Kafka error code in an exception of kafka-python or aiokafka; None for their own."""
    code = getattr(error, "errno", None)
    return code if isinstance(code, int) and code > 0 else None


def text_of(error: object) -> str:
    """Short words for an error."""
    return f"{type(error).__name__} {error}"[:160].replace("\n", " ")
