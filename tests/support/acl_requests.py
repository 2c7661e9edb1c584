"""DescribeAcls by hand: what one broker has read of the ACLs; brokers follow a change one by one."""

from __future__ import annotations

from typing import Any

from confluent_kafka.admin import AclBindingFilter

import fleetlog.wire.messages as m

DESCRIBE_ACLS, DESCRIBE_ACLS_VERSION = 29, 3


def describe_acls(asked: AclBindingFilter) -> Any:
    """The request for the ACLs that match."""
    return m.request_class(DESCRIBE_ACLS)(
        version=DESCRIBE_ACLS_VERSION, resource_type_filter=asked.restype.value, resource_name_filter=asked.name,
        pattern_type_filter=asked.resource_pattern_type.value, principal_filter=asked.principal,
        host_filter=asked.host, operation=asked.operation.value, permission_type=asked.permission_type.value,
    )  # fmt: skip


def count_of_acls(answer: Any) -> int:
    assert answer.error_code == 0, answer.error_message
    return sum(len(resource.acls) for resource in answer.resources)
