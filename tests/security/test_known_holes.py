"""Holes that other implementations had, and the test here that each of them would fail; those without one are below."""

from __future__ import annotations

import ast
import struct
import tracemalloc
from pathlib import Path

import pytest

from fleetlog.brokers.acls.access import DESCRIBE, GROUP, Need
from fleetlog.brokers.api.rows import api_table
from fleetlog.brokers.logins import scram
from fleetlog.brokers.logins.mechanisms import AuthenticationFailed
from fleetlog.brokers.logins.scram import ScramClient, ScramMechanism, ScramServer
from fleetlog.wire import messages
from tests.support.sasl_wire import credential_of_password

ROOT = Path(__file__).parents[2]
DESCRIBE_GROUPS, SASL_AUTHENTICATE = 15, 36
HOLES = {
    "CVE-2017-12610, another user than the one of the password":
        "tests/logins/test_plain.py::test_messages_that_are_refused",
    "CVE-2018-1288, a client that says it is a replica":
        "tests/api/test_access.py::test_a_replicas_fetch_needs_its_own_right_at_every_version",
    "CVE-2018-17196, a transactional batch in a request without an id":
        "tests/api/test_access.py::test_a_transactional_batch_needs_an_id_in_the_request",
    "CVE-2021-38153, passwords":
        "tests/logins/test_plain.py::test_secrets_are_compared_in_constant_time",
    "CVE-2022-34917, frames before a login":
        "tests/system/test_sasl.py::test_garbage_before_the_login_closes_the_connection",
    "CVE-2023-34455, a chunk that declares a large size":
        "tests/wire/test_compression.py::test_snappy_that_declares_more_than_it_can_hold",
    "CVE-2023-43642, another one":
        "tests/wire/test_compression.py::test_a_snappy_block_holds_what_it_declares",
    "CVE-2023-25194, a login module of a client's choice":
        "tests/logins/test_jaas.py::test_lines_that_are_refused_without_being_quoted",
    "CVE-2024-27309, ACLs that go with another one":
        "tests/acls/test_image.py::test_decisions_equal_the_naive_model",
    "CVE-2024-31141, files and the environment in values":
        "tests/test_config.py::test_values_are_texts_and_nothing_is_looked_up_for_them",
    "CVE-2024-56128, the nonce":
        "tests/logins/test_scram.py::test_the_nonce_is_compared",
    "CVE-2025-27817, an address of a client's choice":
        "tests/test_config.py::test_where_the_keys_of_an_issuer_are_is_for_operators_alone",
    "CVE-2025-27818, the login module for LDAP":
        "tests/logins/test_jaas.py::test_lines_that_are_refused_without_being_quoted",
    "CVE-2025-27819, the login module for JNDI":
        "tests/logins/test_listener_settings.py::test_half_a_configuration_is_refused",
    "CVE-2026-33557, tokens of anybody":
        "tests/logins/test_token_signatures.py::test_other_algorithms",
    "CVE-2026-110985, tokens where no keys are configured":
        "tests/logins/test_listener_settings.py::test_half_a_configuration_of_tokens_is_refused",
    "CVE-2026-35554, a buffer that is filled again while a request in flight refers to it":
        "tests/server/test_framing.py::test_a_block_is_used_again_only_without_readers",
    "CVE-2026-35554, records that such a buffer brings to another topic's partition":
        "tests/api/test_produce.py::test_what_is_wrong_with_a_partition_is_its_own_error",
}  # fmt: skip


@pytest.mark.parametrize("hole", HOLES)
def test_its_test_stands(hole: str) -> None:
    file, _, name = HOLES[hole].partition("::")
    functions = [node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)]
    assert name in functions


@pytest.mark.parametrize("password", ["pencil", "pencil2"])
def test_proofs_of_scram_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    """CVE-2021-38153: what a client proves is compared by ``compare_digest``, and by nothing else."""
    mechanism = ScramMechanism.SHA_256
    stored = credential_of_password(mechanism, "pencil", b"salt", 4096)
    compared: list[bytes] = []
    original = scram.hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return original(one, other)

    monkeypatch.setattr(scram.hmac, "compare_digest", compare)
    client = ScramClient(mechanism, "user", password, "of-the-client")
    server = ScramServer(mechanism, {"user": stored}.get, lambda: "of-the-server", b"key")
    challenge = server.evaluate(client.first()).response
    if password == "pencil":
        assert server.evaluate(client.final(challenge)).authenticated
    else:
        with pytest.raises(AuthenticationFailed):
            server.evaluate(client.final(challenge))
    assert stored.stored_key in compared


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">B", 0xFF) + b"\xff\xff\xff\x07" + b"x",  # a token of 2 GiB
        b"\x02x\x01\x00" + b"\xff\xff\xff\xff\x07",  # a tagged field of 2 GiB
        b"\x02x\xff\xff\xff\xff\x07",  # 2 billion tagged fields
    ],
)
def test_what_a_request_declares_before_a_login_reserves_no_memory(body: bytes) -> None:
    """CVE-2022-34917: a length is only a number until the bytes are there."""
    messages.request_class(SASL_AUTHENTICATE)  # its class is made once
    tracemalloc.start()
    try:
        with pytest.raises(messages.MalformedRequest):
            messages.decode_request(SASL_AUTHENTICATE, 2, memoryview(body))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_description_of_a_group_needs_describe() -> None:
    """CVE-2026-41115: one right in the documentation, another one in the code."""
    assert set(api_table()[DESCRIBE_GROUPS].needs) == {Need(DESCRIBE, GROUP)}
