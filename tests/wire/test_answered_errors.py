"""Every error code of an answer is found, wherever its schema has one."""

from __future__ import annotations

import pytest

import fleetlog.wire.messages as m
from fleetlog.wire.answered_errors import MOST_ELEMENTS, answered_errors
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode


def committed(*codes: int) -> m.OffsetCommitResponse:
    kind = m.OffsetCommitResponse.OffsetCommitResponseTopic
    part = kind.OffsetCommitResponsePartition
    partitions = [part(partition_index=index, error_code=code) for index, code in enumerate(codes)]
    return m.OffsetCommitResponse(version=8, topics=[kind(name="t", partitions=partitions)])


def test_codes_of_partitions() -> None:
    assert answered_errors(committed(0, 25, 0, 22), 8) == [25, 22]
    assert answered_errors(committed(0), 8) == []
    assert answered_errors(m.OffsetCommitResponse(version=8, topics=[]), 8) == []


def test_the_code_at_the_top() -> None:
    assert answered_errors(m.HeartbeatResponse(version=4, error_code=27), 4) == [27]
    assert answered_errors(m.HeartbeatResponse(version=4, error_code=0), 4) == []


def test_top_and_elements_together() -> None:
    kind = m.DescribeLogDirsResponse
    results = [kind.DescribeLogDirsResult(error_code=56, log_dir="/a", topics=[])]
    assert answered_errors(kind(version=4, error_code=31, results=results), 4) == [31, 56]


def test_an_answer_without_codes_has_none() -> None:
    assert answered_errors(m.ListPartitionReassignmentsResponse(version=0, error_code=0, topics=[]), 0) == []


def test_a_long_answer_costs_no_more() -> None:
    assert len(answered_errors(committed(*[3] * (MOST_ELEMENTS + 10)), 8)) < MOST_ELEMENTS


@pytest.mark.parametrize("key", sorted(APIS))
def test_each_schema_can_be_searched(key: int) -> None:
    api, kind = APIS[key], m.response_class(key)
    answer = kind(version=api.max_version)
    field = kind._struct.fields.get("error_code")
    if field is not None and field.for_version_q(api.max_version):
        answer.error_code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
        assert answered_errors(answer, api.max_version) == [-1]
    else:
        assert answered_errors(answer, api.max_version) == []
