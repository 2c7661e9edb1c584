"""What a fleet with the planted API does; tests/test_planted.py runs it where the API is planted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import fleetlog.wire.messages as m
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.throttled import with_throttle_time
from tests.support.audited import ADMIN, ADMIN_PASSWORD, AuditReader, audited_fleet, logged_in, of_api
from tests.support.secured import PASSWORD, USER
from tests.support.waiting import eventually


@pytest.mark.zookeeper
def test_a_fleet_serves_and_guards_and_records_it(tmp_path: Path) -> None:
    key = api_keys.STAMP_TOPIC
    with closing(audited_fleet(tmp_path, 1)) as fleet:
        fleet.start()
        for user, password, error in (
            (USER, PASSWORD, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            (ADMIN, ADMIN_PASSWORD, ErrorCode.NONE),
        ):
            connection = logged_in(fleet.brokers[0], user, password)
            connection.send(18, 0, m.ApiVersionsRequest(version=0))
            known = {api.api_key: (api.min_version, api.max_version) for api in connection.answer(18, 0).api_keys}
            assert known[key] == (0, 1)
            request = m.StampTopicRequest(version=1, topic_name="letters", stamps=["red", "blue"])
            connection.send(key, 1, request)
            answer = connection.answer(key, 1)
            assert (answer.error_code, answer.stamped) == (error, 0 if error else 2)
            connection.close()
        reader = AuditReader(fleet)
        recorded = of_api("StampTopic", "letters")
        eventually(lambda: len(list(filter(recorded, reader.read()))) == 2, "an event for each of the requests")
        reader.close()


@pytest.mark.parametrize("version", [0, 1])
def test_its_answers_are_throttled(version: int) -> None:
    key = api_keys.STAMP_TOPIC
    body = m.encode_response_header(key, version, 7)
    body += m.encode_response(m.StampTopicResponse(version=version, error_code=3), key, version)
    (frame,) = with_throttle_time(key, version, [len(body).to_bytes(4, "big") + body], 250)
    _, answer = m.split_response(key, version, frame[4:])
    assert m.decode_response(key, version, answer).throttle_time_ms == 250
