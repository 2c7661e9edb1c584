"""SCRAM: RFC 7677's exchange, stock clients against our server, ours against it, and every byte that may be wrong."""

from __future__ import annotations

import base64
import hashlib
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.net.sasl.scram import ScramClient as KafkaPythonClient

from fleetlog.brokers.logins.mechanisms import AuthenticationFailed, LoginStep
from fleetlog.brokers.logins.principals import has_outer_blanks
from fleetlog.brokers.logins.scram import (
    ITERATIONS_MIN,
    MESSAGE_BYTES_MAX,
    SERVER_ITERATIONS_MAX,
    CredentialForm,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_from,
    credential_of,
    credential_text,
    decode_saslname,
    encode_saslname,
    random_text,
)
from fleetlog.brokers.logins.users import ScramUsers
from tests.support.sasl_wire import credential_of_password

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
BOTH = pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])

# RFC 7677, section 3.
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
WRONG = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"

Users = dict[str, ScramCredential]
PENCIL = credential_of_password(SHA_256, "pencil", SALT, 4096)


def forms_of(mechanism: ScramMechanism, users: Users) -> Mapping[CredentialForm, int]:
    """As brokers count them."""
    followed = ScramUsers(lambda _: None)
    followed.take({f"users/{user}": {mechanism.value: credential_text(one)} for user, one in users.items()}, True)
    return followed.forms(mechanism)


def server_of(
    users: Users | None = None,
    mechanism: ScramMechanism = SHA_256,
    nonce: str = SERVER_NONCE,
    fake_key: bytes = b"fake",
) -> ScramServer:
    return ScramServer(
        mechanism,
        ({"user": PENCIL} if users is None else users).get,
        lambda: nonce,
        fake_key,
        forms_of(mechanism, users or {}),
    )


def challenged(users: Users | None = None) -> ScramServer:
    server = server_of(users)
    server.evaluate(CLIENT_FIRST)
    return server


def refused(server: ScramServer, token: bytes) -> AuthenticationFailed:
    with pytest.raises(AuthenticationFailed) as caught:
        server.evaluate(token)
    return caught.value


# ---------------------------------------------------------------- the exchange


def test_the_exchange_of_the_rfc_at_the_server() -> None:
    server = server_of()
    assert server.evaluate(CLIENT_FIRST) == LoginStep(SERVER_FIRST)
    step = server.evaluate(CLIENT_FINAL)
    assert step.response == SERVER_FINAL
    assert step.authenticated is not None
    assert str(step.authenticated.principal) == "User:user"
    assert step.authenticated.expires_at_ms is None


def test_the_exchange_of_the_rfc_at_the_client() -> None:
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    assert client.first() == CLIENT_FIRST
    assert client.final(SERVER_FIRST) == CLIENT_FINAL
    client.check(SERVER_FINAL)


class Stock(Protocol):
    """The part of a stock client that makes and checks messages."""

    def answer(self, token: bytes | None) -> bytes | None: ...


class KafkaPython:
    def __init__(self, user: str, password: str, mechanism: str) -> None:
        self.client: Any = KafkaPythonClient(user, password, mechanism)
        self.step = 0

    def answer(self, token: bytes | None) -> bytes | None:
        self.step += 1
        if self.step == 1:
            return bytes(self.client.first_message())
        if self.step == 2:
            self.client.process_server_first_message(token)
            return bytes(self.client.final_message())
        self.client.process_server_final_message(token)
        return None


class AioKafka:
    def __init__(self, user: str, password: str, mechanism: str) -> None:
        names = {"sasl_plain_username": user, "sasl_plain_password": password}
        self.client: Any = ScramAuthenticator(loop=None, sasl_mechanism=mechanism, **names)

    def answer(self, token: bytes | None) -> bytes | None:
        found = self.client._step(token)
        return None if found is None else bytes(found[0])


def exchange(client: Stock, server: ScramServer) -> LoginStep:
    """All messages; the last step of the server. The client has then checked the server's signature."""
    token, step = client.answer(None), LoginStep(b"")
    while token is not None:
        step = server.evaluate(token)
        token = client.answer(step.response)
    return step


# kafka-python does not escape commas and equals signs in names, so names with these are aiokafka's.
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20).filter(
    lambda name: not has_outer_blanks(name)
)


@settings(max_examples=25, deadline=None)
@given(NAMES, st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), st.sampled_from([SHA_256, SHA_512]))
@example("a=,b=2C", "p,w=", SHA_512)
def test_stock_clients_log_in(user: str, password: str, mechanism: ScramMechanism) -> None:
    users = {user: credential_of_password(mechanism, password, b"salt", ITERATIONS_MIN)}
    clients: list[Stock] = [AioKafka(user, password, mechanism.value)]
    if not set(user) & set(",="):
        clients.append(KafkaPython(user, password, mechanism.value))
    for client in clients:
        step = exchange(client, server_of(users, mechanism))
        assert step.authenticated is not None
        assert step.authenticated.principal == ("User", user)


@BOTH
def test_stock_clients_with_a_wrong_password_do_not(mechanism: ScramMechanism) -> None:
    users = {"user": credential_of_password(mechanism, "right", b"salt", ITERATIONS_MIN)}
    for client in (AioKafka("user", "wrong", mechanism.value), KafkaPython("user", "wrong", mechanism.value)):
        with pytest.raises(AuthenticationFailed):
            exchange(client, server_of(users, mechanism))


@BOTH
def test_our_client_sends_what_a_stock_client_sends(mechanism: ScramMechanism) -> None:
    stock = AioKafka("a=b", "pässword", mechanism.value)
    ours = ScramClient(mechanism, "a=b", "pässword", stock.client._nonce)
    assert ours.first() == stock.answer(None)
    server = server_of({"a=b": credential_of_password(mechanism, "pässword", b"salt", 5000)}, mechanism)
    challenge = server.evaluate(ours.first()).response
    assert ours.final(challenge) == stock.answer(challenge)


# ---------------------------------------------------------------- what the server refuses


def test_the_nonce_is_compared() -> None:
    """CVE-2024-56128. The proof is right for the message it is in: only the nonce gives it away."""
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    for nonce in ("x", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k00"):
        challenge = SERVER_FIRST.replace(SERVER_NONCE.encode(), nonce.encode())
        assert "nonce" in refused(challenged(), client.final(challenge)).detail


def proven(without_proof: bytes, server_first: bytes = SERVER_FIRST) -> bytes:
    """A final message whose proof is right for whatever it says."""
    message = b",".join((CLIENT_FIRST[3:], server_first, without_proof))
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    key = SHA_256.mac(salted, b"Client Key")
    signature = SHA_256.mac(SHA_256.digest(key), message)
    return without_proof + b",p=" + base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))


def test_the_header_and_the_nonce_of_the_final_message_are_compared_although_the_proof_is_right() -> None:
    right = CLIENT_FINAL.rpartition(b",p=")[0]
    assert proven(right) == CLIENT_FINAL
    assert challenged().evaluate(proven(right + b",ext=x")).authenticated
    for wrong in (
        right.replace(b"c=biws", b"c=eSws"),  # y,,
        right.replace(b"c=biws", b"c="),
        right.replace(b"c=biws", b"c=" + base64.b64encode(b"n,a=user,")),
        right[:-1],
        right + b"0",
        right.replace(CLIENT_NONCE.encode(), b""),
        right.replace(b"r=rOpr", b"r=ROpr"),
    ):
        assert str(refused(challenged(), proven(wrong))) == WRONG


def test_librdkafka_before_2_6_1_repeats_its_nonce_once() -> None:
    right = CLIENT_FINAL.rpartition(b",p=")[0]
    own = CLIENT_NONCE.encode()
    assert challenged().evaluate(proven(right.replace(b"r=" + own, b"r=" + 2 * own))).authenticated
    for wrong in (b"r=" + 3 * own, b"r=x" + own, b"r=" + own[:-1] + b"x" + own):
        assert str(refused(challenged(), proven(right.replace(b"r=" + own, wrong)))) == WRONG


def test_a_credential_that_changes_during_the_login() -> None:
    """Its connection would be open although those of the withdrawn credential were closed a moment before."""
    for after in ({}, {"user": credential_of_password(SHA_256, "pencil", b"another salt", 4096)}):
        users = {"user": PENCIL}
        server = challenged(users)
        users.clear()
        users |= after
        assert "changed during the login" in refused(server, CLIENT_FINAL).detail
    assert challenged({"user": PENCIL}).evaluate(CLIENT_FINAL).authenticated


def test_an_unknown_user_is_asked_for_as_many_iterations_as_most() -> None:
    server = ScramServer(SHA_256, {}.get, lambda: SERVER_NONCE, b"fake", {CredentialForm(8192): 1})
    assert server.evaluate(CLIENT_FIRST).response.endswith(b",i=8192")


def test_a_recorded_login_cannot_be_replayed() -> None:
    server = server_of(nonce="another")
    server.evaluate(CLIENT_FIRST)
    refused(server, CLIENT_FINAL)


@given(st.integers(0, len(CLIENT_FINAL) - 1), st.integers(1, 255))
def test_a_final_message_with_any_other_byte_is_refused(at: int, mask: int) -> None:
    changed = bytes(b ^ mask if i == at else b for i, b in enumerate(CLIENT_FINAL))
    try:
        step = challenged().evaluate(changed)
    except AuthenticationFailed:
        return
    # Base64's last character before the padding has two bits that say nothing.
    assert step.authenticated is None or base64.b64decode(changed[-44:]) == base64.b64decode(CLIENT_FINAL[-44:])


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,,n=,r=abc",
        b"n,,r=abc,n=user",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=us\0er,r=abc",
        b"n,,n=user,r=a\x7fc",
        b"n,,n=user,r=a c",
        b"n,,n=user,r=abc,",
        b"n,,n=user,r=abc,nothing",
        b"n,user,n=user,r=abc",
        b"n,a=,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=user,r=" + b"a" * MESSAGE_BYTES_MAX,
    ],
)
def test_first_messages_that_are_refused(token: bytes) -> None:
    server = server_of()
    assert str(refused(server, token)) == WRONG
    refused(server, CLIENT_FIRST)  # spent


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_are_refused_or_answered_but_never_logged_in(one: bytes, other: bytes) -> None:
    for server, token in ((server_of(), b"n,," + one), (server_of(), one), (challenged(), other)):
        try:
            assert server.evaluate(token).authenticated is None
        except AuthenticationFailed:
            pass


def test_an_authorization_id_equal_to_the_user_is_right() -> None:
    server = server_of()
    challenge = server.evaluate(b"n,a=user,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert challenge.response == SERVER_FIRST
    header = base64.b64encode(b"n,a=user,")
    assert server.evaluate(proven(b"c=" + header + CLIENT_FINAL[6:].rpartition(b",p=")[0])).authenticated


def test_nothing_follows_the_end() -> None:
    server = challenged()
    server.evaluate(CLIENT_FINAL)
    refused(server, CLIENT_FINAL)
    server = challenged()
    refused(server, b"c=biws,r=x,p=eA==")
    refused(server, CLIENT_FINAL)


# ---------------------------------------------------------------- unknown users


@BOTH
def test_an_unknown_user_is_answered_like_one_with_another_password(mechanism: ScramMechanism) -> None:
    users = {
        "known": credential_of_password(mechanism, "right", random_text(random.Random(1).getrandbits).encode(), 4096)
    }
    answers = []
    for user in ("known", "unknown"):
        client = ScramClient(mechanism, user, "wrong", "abc")
        server = server_of(users, mechanism)
        challenge = server.evaluate(client.first()).response
        failure = refused(server, client.final(challenge))
        answers.append((len(challenge) // 4, challenge.rpartition(b",")[2], str(failure)))
        assert challenge == server_of(users, mechanism).evaluate(client.first()).response
    assert answers[0] == answers[1]


def made_by_tools(number: int) -> ScramCredential:
    """As Kafka's tools, librdkafka (64 random bytes) and others make them, in turn."""
    bits = random.Random(number)
    salts = [random_text(bits.getrandbits).encode(), bits.randbytes(64), bits.randbytes(16).hex().encode()]
    return credential_of_password(SHA_256, "x", salts[number % 3], 8192 if number % 3 == 1 else 4096)


def test_unknown_users_have_salts_like_those_of_known_ones() -> None:
    """Of three tools, one of which chooses more iterations: the answer shows none but the tool."""
    users = {f"user-{number}": made_by_tools(number) for number in range(300)}

    def shown(user: str) -> tuple[int, str, str]:
        challenge = server_of(users).evaluate(f"n,,n={user},r=abc".encode()).response.decode()
        salt, iterations = challenge.split(",")[1:]
        decoded = base64.b64decode(salt.removeprefix("s="))
        kind = "hex" if not set(decoded) - set(b"0123456789abcdef") else "text" if decoded.isalnum() else "bytes"
        return len(decoded) if kind != "text" else len(decoded) // 20, kind, iterations

    known = Counter(shown(user) for user in users)
    unknown = Counter(shown(f"{user}?") for user in users)
    assert known.keys() == unknown.keys() == {(64, "bytes", "i=8192"), (32, "hex", "i=4096"), (1, "text", "i=4096")}
    assert all(60 < unknown[form] < 140 for form in unknown), unknown


def test_an_unknown_user_keeps_its_salt_when_others_come() -> None:
    users = {f"user-{number}": made_by_tools(number) for number in range(100)}
    asked = [f"n,,n=unknown-{number},r=abc".encode() for number in range(300)]
    before = [server_of(users).evaluate(message).response for message in asked]
    users |= {f"user-{number}": made_by_tools(1) for number in range(100, 104)}
    changed = sum(
        server_of(users).evaluate(message).response != old for message, old in zip(asked, before, strict=True)
    )
    assert 0 < changed < 30


def test_a_name_that_looks_like_another_fails_at_the_proof() -> None:
    server = server_of({"user\u3000": PENCIL})
    client = ScramClient(SHA_256, "user\u3000", "pencil", CLIENT_NONCE)
    failure = refused(server, client.final(server.evaluate(client.first()).response))
    assert str(failure) == WRONG
    assert "ends with a blank" in failure.detail


def salt_for(user: str, mechanism: ScramMechanism = SHA_256, fake_key: bytes = b"fake") -> bytes:
    answer = server_of({}, mechanism, fake_key=fake_key).evaluate(f"n,,n={user},r=abc".encode()).response
    return answer.split(b",")[1]


def test_fake_salts_differ_by_user_mechanism_and_key() -> None:
    salts = {salt_for("a"), salt_for("b"), salt_for("a", SHA_512), salt_for("a", fake_key=b"other")}
    assert len(salts) == 4


@pytest.mark.parametrize(
    ("users", "first"),
    [
        ({"user": credential_of_password(SHA_256, "pencil", SALT, ITERATIONS_MIN - 1)}, CLIENT_FIRST),
        ({"user": PENCIL}, CLIENT_FIRST + b",tokenauth=true"),
    ],
)
def test_weak_credentials_and_tokens_are_refused_at_the_proof(users: Users, first: bytes) -> None:
    server = server_of(users)
    challenge = server.evaluate(first).response
    assert challenge.endswith(b",i=4096")
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    assert str(refused(server, client.final(challenge))) == WRONG


def test_other_extensions_are_part_of_the_proof() -> None:
    server = server_of()
    server.evaluate(CLIENT_FIRST + b",more=x")
    refused(server, CLIENT_FINAL)


# ---------------------------------------------------------------- what the client refuses


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=x,s=eA==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=eA==,i=4096",  # the server adds nothing
        SERVER_FIRST.replace(b"4096", b"4095"),
        SERVER_FIRST.replace(b"4096", str(SERVER_ITERATIONS_MAX + 1).encode()),
        SERVER_FIRST.replace(b"4096", b"-4096"),
        SERVER_FIRST.replace(b"s=W", b"s=*"),
        b"e=other-error",
        b"\xff" * 40,
        SERVER_FIRST + b",x=" + b"a" * MESSAGE_BYTES_MAX,
    ],
)
def test_challenges_that_the_client_refuses(challenge: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE).final(challenge)


@pytest.mark.parametrize("last", [b"", b"v=", b"e=other-error", SERVER_FINAL[:-2] + b"5=", SERVER_FINAL[2:]])
def test_a_server_that_does_not_know_the_credential(last: bytes) -> None:
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    for answered in (False, True):
        if answered:
            client.final(SERVER_FIRST)
        with pytest.raises(AuthenticationFailed):
            client.check(last)


def test_what_a_client_needs() -> None:
    for user, password, nonce in (("", "p", "n"), ("u", "", "n"), ("u", "p", ""), ("u", "p", "a,b")):
        with pytest.raises(ValueError, match="SCRAM"):
            ScramClient(SHA_256, user, password, nonce)


# ---------------------------------------------------------------- credentials


@BOTH
def test_credentials_come_back(mechanism: ScramMechanism) -> None:
    credential = credential_of_password(mechanism, "secret", b"\0salt,=", 4096)
    text = credential_text(credential)
    assert [part.split("=")[0] for part in text.split(",")] == ["salt", "stored_key", "server_key", "iterations"]
    assert credential_from(mechanism, text) == credential


def test_a_salted_password_gives_the_credential() -> None:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    assert credential_of(SHA_256, salted, SALT, 4096) == PENCIL


GOOD = credential_text(PENCIL)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "salt=eA==",
        GOOD + ",more=1",
        GOOD.replace("iterations=4096", "iterations=0"),
        GOOD.replace("iterations=4096", "iterations=many"),
        GOOD.replace("salt=W22ZaJ0SNY7soEsUEjb6gQ==", "salt="),
        GOOD.replace("stored_key=", "stored_key=AAAA"),
        GOOD.replace("server_key=", "server_key=*"),
        credential_text(credential_of_password(SHA_512, "pencil", SALT, 4096)),
    ],
)
def test_credentials_that_cannot_be_read_are_not_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="not a credential of SCRAM-SHA-256") as caught:
        credential_from(SHA_256, text)
    assert "W22Z" not in str(caught.value)


def test_credentials_are_not_shown() -> None:
    assert repr(PENCIL) == "ScramCredential(iterations=4096)"
    assert not any(isinstance(value, bytes) and repr(value) in repr([PENCIL]) for value in (SALT, PENCIL.stored_key))


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_names_come_back(name: str) -> None:
    assert decode_saslname(encode_saslname(name)) == name
    assert not set(encode_saslname(name)) & {","}


def test_random_text() -> None:
    assert random_text(lambda bits: 0) == "0"
    assert random_text(lambda bits: 36**2 + 35) == "10z"
    assert len(random_text(lambda bits: (1 << bits) - 1)) == 26
