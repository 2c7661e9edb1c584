"""What a management request changed, for the audit topic: one change for each resource that it names, with its outcome.

Each row of ``brokers.api`` reads the changes of its own API with what is here. Never a value that a client sent: of
settings and quotas the names, of credentials the mechanism.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fleetlog.brokers.acls.image import CLUSTER_NAME, AclOperation
from fleetlog.brokers.audit.events import NAME_CHARS_MAX, Change, Changes
from fleetlog.wire.errors import ErrorCode

DETAILS_MAX: Final = 100
"""So many settings, partitions or quotas of one resource are named."""


def codes_of(rows: Any, name: str) -> dict[Any, int]:
    """The error of each row of an answer, by the row's name; of rows with partitions the first error among them."""
    codes_by_key: dict[Any, int] = {}
    for row in rows or ():
        parts = getattr(row, "partitions", None)
        if parts is None:
            parts = getattr(row, "partition_result", None)
        codes = [row.error_code] if parts is None else [part.error_code for part in parts]
        key = getattr(row, name)
        codes_by_key[key] = codes_by_key.get(key) or next((code for code in codes if code), 0)
    return codes_by_key


def named(
    kind: str, operation: AclOperation, names: Iterable[tuple[str, str]], codes: dict[Any, int], whole: int = 0
) -> Changes:
    """A change for each different name, in their order, with a detail."""
    for name, detail in dict(names).items():
        code = whole or codes.get(name, 0)
        yield Change(kind, name, operation, ErrorCode(code), detail)


def brief(verb: str, items: Iterable[object]) -> str:
    """The verb and the first items, or nothing without one."""
    texts: list[str] = []
    length = 0
    for item in items:
        text = str(item)
        length += len(text)
        if len(texts) == DETAILS_MAX or length > NAME_CHARS_MAX:
            texts.append("...")
            break
        texts.append(text)
    return f"{verb} {', '.join(texts)}" if texts else ""


def changes_of_brokers(request: object, response: Any) -> Changes:
    """What only brokers do is of the cluster, with the first error of the answer."""
    codes = [getattr(response, "error_code", 0)]
    for marker in getattr(response, "markers", ()):
        codes += (part.error_code for topic in marker.topics for part in topic.partitions)
    for topic in getattr(response, "results", ()):  # of share partitions' states
        codes += (part.error_code for part in topic.partitions)
    yield Change(
        "Cluster", CLUSTER_NAME, AclOperation.CLUSTER_ACTION, ErrorCode(next((code for code in codes if code), 0))
    )


def created_topics(errors: Mapping[str, ErrorCode]) -> Changes:
    """Topics that came into being, or not, because a client named them."""
    for name, error in errors.items():
        yield Change("Topic", name, AclOperation.CREATE, error, "created on first use")


def failed_changes(api_key: int, error: ErrorCode) -> Changes:
    """A request without an answer that names its resources."""
    yield Change("Cluster", CLUSTER_NAME, AclOperation.ALTER, error, f"API key {api_key}")
