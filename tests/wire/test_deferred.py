"""Imports of and from a deferred package."""

from __future__ import annotations

import subprocess
import sys

import pytest

PACKAGE = """
import sys
from fleetlog import wire
import fleetlog.wire.messages
assert "kafka.protocol.admin" in sys.modules
assert "kafka.consumer" not in sys.modules and "kafka.client_async" not in sys.modules, "kafka's clients are imported"
"""


@pytest.mark.parametrize(
    "use",
    [
        "from kafka import KafkaProducer; assert KafkaProducer.__name__ == 'KafkaProducer'",
        "import kafka; assert kafka.KafkaConsumer.__module__ == 'kafka.consumer.group'",
        "import kafka; assert kafka.__version__",
        "import kafka.admin; assert kafka.admin.KafkaAdminClient and kafka.KafkaAdminClient",
        "from kafka import *; assert KafkaConsumer",
        "import kafka; assert kafka.admin.KafkaAdminClient is kafka.KafkaAdminClient",
        "from kafka import errors, KafkaAdminClient; assert errors.KafkaError and KafkaAdminClient",
        "import kafka.errors; assert kafka.errors.KafkaError; import kafka.protocol; assert kafka.protocol",
        "import kafka; assert not hasattr(kafka, 'nothing'); assert kafka.KafkaProducer",
    ],
)
def test_kafka_is_whole_for_every_importer(use: str) -> None:
    subprocess.run([sys.executable, "-c", PACKAGE + use], check=True, timeout=60)


def test_what_is_imported_already_stays() -> None:
    code = "import kafka; before = kafka.KafkaProducer; import fleetlog.wire.messages; import kafka as again\n"
    subprocess.run([sys.executable, "-c", code + "assert again.KafkaProducer is before"], check=True, timeout=60)


@pytest.mark.parametrize(
    "use",
    [
        "assert crc32c.crc32c(b'123456789') == 0xE3069283 and 'crc32c._cli' not in sys.modules",
        "from crc32c import crc32c as found; assert found is crc32c.crc32c and 'email' not in sys.modules",
        "crc32c.crc32c; assert 'crc32c' in vars(crc32c), 'found once'",
        "assert crc32c.__version__ and crc32c.CRC32CHash and crc32c.crc32c(b'') == 0",
        "assert not hasattr(crc32c, 'nothing') and crc32c.crc32c(b'') == 0",
    ],
)
def test_a_checksum_comes_without_a_command_line(use: str) -> None:
    code = "import sys; from fleetlog import wire; import crc32c; "
    subprocess.run([sys.executable, "-c", code + use], check=True, timeout=60)


LATER = """
import sys
from fleetlog import wire
import kafka.admin
from kafka.protocol.admin import DescribeConfigsRequest, ElectionType, ListGroupsRequest
"""


@pytest.mark.parametrize(
    "use",
    [
        "assert 'kafka.protocol.admin.configs' not in sys.modules, 'no class is made before it is used'",
        "assert type(DescribeConfigsRequest(resources=[])).__name__ == 'DescribeConfigsRequest'",
        "assert isinstance(ElectionType.UNCLEAN, ElectionType) and ElectionType(1) is ElectionType.UNCLEAN",
        "import fleetlog.wire.messages; assert isinstance(ListGroupsRequest(), wire.messages.request_class(16))",
        "from kafka.protocol.admin import *; assert isinstance(ListGroupsRequest, type)",
        "import kafka.protocol.admin as a; assert not hasattr(a, 'nothing'); assert a.topics.ElectionType(0) == 0",
    ],
)
def test_classes_are_made_when_they_are_used(use: str) -> None:
    subprocess.run([sys.executable, "-c", LATER + use], check=True, timeout=60)


ALL = """
from fleetlog import wire
import kafka.protocol.api_data as made_of
made, load = [], made_of.load_json
made_of.load_json = lambda name, package=None: made.append(name) or load(name, package=package)
from concurrent.futures import ThreadPoolExecutor as Pool
from kafka.protocol.api_header import RequestHeader, ResponseClassRegistry
from kafka.protocol.admin import groups
answer = lambda key: ResponseClassRegistry.get_response_class(RequestHeader(key, 0, 1, "c"))
"""


@pytest.mark.parametrize(
    "use",
    [
        "groups.DeleteGroupsRequest; assert {'DeleteGroupsRequest', 'DeleteGroupsResponse'} <= {*made}, made",
        "groups.DeleteGroupsResponse; assert not {'ListGroupsRequest', 'ListGroupsResponse'} & {*made}, made",
        "assert groups.ListGroupsRequest is groups.ListGroupsRequest; assert made.count('ListGroupsRequest') == 1",
        "assert answer(15).__name__ == 'DescribeGroupsResponse_v0'",
        "groups.DeleteGroupsRequest(); assert answer(42).__name__ == 'DeleteGroupsResponse_v0'",
        "assert not hasattr(groups, 'nothing') and not hasattr(groups, 'NothingRequest')",
        "import pickle; assert pickle.loads(pickle.dumps(groups.ListGroupsRequest)) is groups.ListGroupsRequest",
        "found = [*Pool(8).map(lambda n: groups.DeleteGroupsResponse, range(99))]; assert len({*map(id, found)}) == 1",
        "from kafka.protocol.consumer.group import *; assert isinstance(JoinGroupRequest, type)",
        "import kafka.protocol.producer.transaction as t; assert all(getattr(t, name) for name in t.__all__)",
    ],
)
def test_messages_are_made_in_pairs_when_one_is_asked_for(use: str) -> None:
    subprocess.run([sys.executable, "-c", ALL + use], check=True, timeout=60)
