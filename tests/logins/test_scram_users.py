"""SCRAM credentials by request: what is written, what is refused, and that a stored credential logs in."""

from __future__ import annotations

import hashlib

import pytest

from fleetlog.brokers.logins.scram import ScramClient, ScramMechanism, ScramServer, credential_from
from fleetlog.brokers.logins.scram_users import (
    Deletion,
    DescribedUser,
    Upsertion,
    alter_users,
    describe_users,
    users_to_read,
)
from fleetlog.wire.errors import ErrorCode

SHA_256, SHA_512 = 1, 2
NAME = ScramMechanism.SHA_256.value


def upsertion(
    user: str = "alice", mechanism: int = SHA_256, iterations: int = 4096, salt: bytes = b"salt"
) -> Upsertion:
    name = "sha512" if mechanism == SHA_512 else "sha256"
    salted = hashlib.pbkdf2_hmac(name, b"secret", salt, max(iterations, 1))
    return Upsertion(user, mechanism, iterations, salt, salted)


def test_what_is_written_logs_in_and_leaves_the_rest() -> None:
    results = alter_users({"alice": {"producer_byte_rate": "5"}}, [], [upsertion(), upsertion(mechanism=SHA_512)])
    config = results["alice"].config
    assert results["alice"].error is ErrorCode.NONE
    assert config is not None
    assert config["producer_byte_rate"] == "5"
    for mechanism in ScramMechanism:
        credential = credential_from(mechanism, config[mechanism.value])
        client = ScramClient(mechanism, "alice", "secret", "abc")
        server = ScramServer(mechanism, {"alice": credential}.get, lambda: "def", b"key")
        assert server.evaluate(client.final(server.evaluate(client.first()).response)).authenticated


def test_deletions_leave_the_rest() -> None:
    written = alter_users({}, [], [upsertion(), upsertion(mechanism=SHA_512)])["alice"].config
    assert written is not None
    before = {"producer_byte_rate": "5", **written}
    after = alter_users({"alice": before}, [Deletion("alice", SHA_512)], [])["alice"].config
    assert after == {key: value for key, value in before.items() if key != ScramMechanism.SHA_512.value}
    assert ScramMechanism.SHA_512.value in before


@pytest.mark.parametrize(
    ("deletions", "upsertions", "error"),
    [
        ([], [upsertion("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([], [upsertion("alice\u3000")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([], [upsertion(iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([], [upsertion(iterations=16385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([], [upsertion(salt=b"")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([], [upsertion(salt=bytes(1025))], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([], [upsertion()._replace(salted_password=b"short")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([], [upsertion(mechanism=0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([Deletion("alice", 3)], [], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([], [upsertion(), upsertion(iterations=5000)], ErrorCode.DUPLICATE_RESOURCE),
        ([Deletion("alice", SHA_256)], [upsertion()], ErrorCode.DUPLICATE_RESOURCE),
        ([Deletion("alice", SHA_512)], [], ErrorCode.RESOURCE_NOT_FOUND),
        ([Deletion("alice", SHA_512)], [upsertion()], ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_one_wrong_part_refuses_the_user_alone(
    deletions: list[Deletion], upsertions: list[Upsertion], error: ErrorCode
) -> None:
    results = alter_users({"alice": {NAME: "stored"}}, deletions, [*upsertions, upsertion("bob")])
    assert results["bob"].error is ErrorCode.NONE
    (user,) = results.keys() - {"bob"}
    assert results[user].error is error
    assert results[user].config is None
    assert results[user].message


def test_users_are_named_once() -> None:
    assert users_to_read([Deletion("b", 1)], [upsertion("a"), upsertion("b")]) == ["b", "a"]


def test_users_are_described_without_their_keys() -> None:
    alice, bob = (alter_users({}, [], [upsertion(u, iterations=i)])[u].config for u, i in (("a", 4096), ("b", 8192)))
    assert alice is not None
    assert bob is not None
    configs = {"a": alice, "b": bob, "quota": {"producer_byte_rate": "1"}, "broken": {NAME: "salt=x"}}
    one, other = (DescribedUser(ErrorCode.NONE, None, ((SHA_256, count),)) for count in (4096, 8192))
    assert describe_users(configs, None) == describe_users(configs, []) == {"a": one, "b": other}
    found = describe_users(configs, ["b", "quota", "unknown", "a", "a", "broken"])
    assert found["b"] == other
    assert found["a"].error is ErrorCode.DUPLICATE_RESOURCE
    assert {found[user].error for user in ("quota", "unknown", "broken")} == {ErrorCode.RESOURCE_NOT_FOUND}
    assert "stored_key" not in repr(found)


def test_salted_passwords_are_not_shown() -> None:
    assert repr(upsertion()) == "Upsertion(user='alice', mechanism=1, iterations=4096)"
