"""Principals and the names of certificates' subjects; the expected spellings are those that a JVM printed."""

from __future__ import annotations

import ssl
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetlog.brokers.logins.principals import (
    ANONYMOUS,
    SUBJECT_BYTES_MAX,
    BadPrincipal,
    NoRuleMatches,
    PrincipalMapper,
    granted_principal,
    has_outer_blanks,
    parse_principal,
    parse_super_users,
    subject_name,
    subject_of_certificate,
)


def test_a_principal_has_a_type_and_a_name() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert parse_principal("User:CN=a:b,O=c") == ("User", "CN=a:b,O=c")
    for bad in ("alice", "User:", ":alice", ""):
        with pytest.raises(BadPrincipal):
            parse_principal(bad)


BLANK_ENDS = [
    "alice\u3000",
    "\u00a0alice",
    "alice ",
    " alice",
    "alice\u200b",
    "\ufeffalice",
    "alice\u202e",
    "alice\x1c",
]


@pytest.mark.parametrize("name", BLANK_ENDS)
def test_no_login_has_a_name_that_looks_like_another(name: str) -> None:
    assert has_outer_blanks(name)
    assert not has_outer_blanks("a li\u3000ce")
    with pytest.raises(BadPrincipal, match="blanks at the ends"):
        granted_principal(f"User:{name}")
    if not name.isascii():
        with pytest.raises(BadPrincipal):
            parse_super_users(f"User:admin;User:{name}")
    for rules in ("DEFAULT", "RULE:^(.*)$/$1/", "RULE:^CN=(.*)$/$1/"):
        with pytest.raises(NoRuleMatches):
            PrincipalMapper(rules).principal_name(f"CN={name}" if rules.startswith("RULE:^CN") else name)
    assert granted_principal("User:alice") == ("User", "alice")


def test_super_users_are_separated_by_semicolons() -> None:
    assert parse_super_users("User:admin; User:CN=a,O=b ;") == {"User:admin", "User:CN=a,O=b"}
    assert parse_super_users("") == frozenset()
    with pytest.raises(BadPrincipal, match="admin"):
        parse_super_users("User:a;admin")


# ---------------------------------------------------------------- subjects


# DER and what javax.security.auth.x500.X500Principal.getName() of Java 25 printed for it.
FROM_JAVA = [
    (
        (
            "308181310b3009060355040613024445310a3008060355040a13016f310a30080603550408130174310a3008060355040713016c310a3008"
            "06035504091301733111300f060a0992268993f22c64010113017531133011060a0992268993f22c6401191603636f6d311a300a06035504"
            "0b130374776f300c06035504030c052368617368"
        ),
        r"OU=two+CN=\#hash,DC=com,UID=u,STREET=s,L=l,ST=t,O=o,C=DE",
    ),
    (
        (
            "303b3114301206092a864886f70d01090116056140622e63310e300c060355040a0c05c3a920c3bc311330110603550403130a6c65616420"
            "747261696c"
        ),
        "CN=lead trail,O=é ü,1.2.840.113549.1.9.1=#16056140622e63",
    ),
    (
        "3036310c300a06035504030c03610a62310a30080603550405130135310a30080603550404130178310e300c060355040c13057469746c65",
        "2.5.4.12=#13057469746c65,2.5.4.4=#130178,2.5.4.5=#130135,CN=a\nb",
    ),
    ("3000", ""),
]


@pytest.mark.parametrize(("der", "name"), FROM_JAVA)
def test_subjects_are_spelled_as_java_does(der: str, name: str) -> None:
    assert subject_name(bytes.fromhex(der)) == name


def der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")
    return bytes([tag]) + length + content


def common_name(value: bytes, tag: int = 0x0C) -> bytes:
    return der(0x30, der(0x31, der(0x30, der(6, bytes.fromhex("550403")) + der(tag, value))))


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (b'a,b=c+d<e>f#g;h"i\\j', r"a\,b\=c\+d\<e\>f\#g\;h\"i\\j"),
        (b"  two ", r"\ \ two\ "),
        (b"  ", r"\ \ "),
        (b"a b", "a b"),
        (b"a\0b", r"a\00b"),
        (b"", ""),
    ],
)
def test_special_characters(value: bytes, spelled: str) -> None:
    assert subject_name(common_name(value)) == f"CN={spelled}"


def test_values_that_are_no_text_are_spelled_in_hexadecimal() -> None:
    assert subject_name(common_name(b"\x01", tag=0x04)) == "CN=#040101"


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x30",
        b"\x30\x05\x31",
        b"\x30\x80",
        b"\x30\x85\x01\x01\x01\x01\x01",
        b"\x31\x00",
        b"\x30\x00\x30\x00",
        b"\x1f\x01\x00",
        common_name(b"\xff\xfe"),
        der(0x30, der(0x31, der(0x30, der(6, b"\x88") + der(0x0C, b"a")))),
        der(0x30, der(0x31, der(0x30, der(6, b"") + der(0x0C, b"a")))),
        der(0x30, der(0x31, der(0x30, der(0x0C, b"a")))),
        common_name(b"a" * SUBJECT_BYTES_MAX),
    ],
)
def test_subjects_that_cannot_be_read(bad: bytes) -> None:
    with pytest.raises(BadPrincipal):
        subject_name(bad)


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: der(0x30, data)))
@example(bytes.fromhex(FROM_JAVA[0][0])[:-1])
def test_any_bytes_are_a_name_or_refused(data: bytes) -> None:
    for reader in (subject_name, subject_of_certificate):
        try:
            reader(data)
        except BadPrincipal:
            pass


CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIB1zCCAX2gAwIBAgIUOT4S4CId2Mctl6zKlvf0wGSSHGkwCgYIKoZIzj0EAwIw
QTELMAkGA1UEBhMCREUxDjAMBgNVBAoMBWZsZWV0MQ0wCwYDVQQLDARkYXRhMRMw
EQYDVQQDDApjbGllbnQsb25lMB4XDTI2MTEyMzA2MjAyNVoXDTM2MTEyMDA2MjAy
NVowQTELMAkGA1UEBhMCREUxDjAMBgNVBAoMBWZsZWV0MQ0wCwYDVQQLDARkYXRh
MRMwEQYDVQQDDApjbGllbnQsb25lMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
twhTEcxPmLv7IolLbFDTEKKifs2QyQIyjqZTyHGNhIxkCRhVu8wO1Mi5kr45Dwik
S11X1KQ5KzY24N0zT1WHiKNTMFEwHQYDVR0OBBYEFEAgSxAamZn08A9bUel2UkTv
ILSQMB8GA1UdIwQYMBaAFEAgSxAamZn08A9bUel2UkTvILSQMA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhAOl3QnGY18XPH9+t47maLr4XE1emp3El
iCB4SbGDbbrCAiB+MpgJ9s0ShJIJzGu8vQGvKJiu8Fh7+yFsHUkBSyeb5A==
-----END CERTIFICATE-----"""


def test_the_subject_of_a_certificate() -> None:
    certificate = ssl.PEM_cert_to_DER_cert(CERTIFICATE)
    assert subject_name(subject_of_certificate(certificate)) == "CN=client\\,one,OU=data,O=fleet,C=DE"
    for size in (0, 1, 10, len(certificate) - 1):
        with pytest.raises(BadPrincipal):
            subject_of_certificate(certificate[:size])


# ---------------------------------------------------------------- mapping rules


SUBJECT = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", SUBJECT, SUBJECT),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", SUBJECT, "Duke"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", SUBJECT, "duke"),
        (r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1@x/U,DEFAULT", SUBJECT, "DUKE@X"),
        (
            r"RULE:^CN=(.*?),OU=Other.*$/$1/L , RULE:^CN=([^,]+),OU=([^,]+).*$/$2.$1/,DEFAULT",
            SUBJECT,
            "ServiceUsers.Duke",
        ),
        ("RULE:^CN=(.*?),OU=Other.*$/$1/L,DEFAULT", SUBJECT, SUBJECT),
        ("RULE:CN=(\\w+)\\/(\\w+)/$1\\/$2/", "CN=a/b", "a/b"),
        ("RULE:CN=(.*)/$2 $10\\$/\nDEFAULT", "CN=a", "$2 a0$"),
        ("RULE:(a)(b)?/$1$2/", "a", "a"),
    ],
)
def test_rules_map_a_subject_to_a_name(rules: str, subject: str, name: str) -> None:
    assert PrincipalMapper(rules).principal_name(subject) == name


@pytest.mark.parametrize(
    ("rules", "subject"),
    [
        ("RULE:CN=Duke/duke/", SUBJECT),  # only a part of it
        ("RULE:^CN=(\\w*),.*$/$1/", "CN=,O=x"),  # an empty name
        ("DEFAULT", "CN=" + "a" * SUBJECT_BYTES_MAX),
    ],
)
def test_subjects_without_a_name(rules: str, subject: str) -> None:
    with pytest.raises(NoRuleMatches):
        PrincipalMapper(rules).principal_name(subject)


@pytest.mark.parametrize(
    "rules",
    [
        "",
        "default",
        "DEFAULTS",
        "RULE:a/b",
        "RULE:a",
        "RULE:a/b/X",
        "RULE:a/b/LU",
        "RULE:(a/b/",
        "RULE:a/$x/",
        "RULE:a/$/",
        r"RULE:(a)\1/b/",
        "RULE:(?!a)b/b/",
        "RULE:[/b/",
        "RULE:a/b/ DEFAULT",
        "alice",
    ],
)
def test_rules_that_cannot_be(rules: str) -> None:
    with pytest.raises(BadPrincipal):
        PrincipalMapper(rules)


@pytest.mark.parametrize(
    "rule", [r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L", "RULE:(,*[^,]*)+(.*)+!/$1/"]
)
def test_a_long_subject_takes_no_longer_than_its_length(rule: str) -> None:
    """The first is the example of Kafka's documentation: with backtracking this subject takes half an hour."""
    subject = ("CN=a" + ",OU=b,O=c,L=d,ST=e" * 300)[:SUBJECT_BYTES_MAX]
    began = time.thread_time()
    with pytest.raises(NoRuleMatches):
        PrincipalMapper(rule).principal_name(subject)
    assert time.thread_time() - began < 0.1


def test_escaped_parentheses_and_sets_are_no_groups() -> None:
    assert PrincipalMapper(r"RULE:\(a+\)+[(*+)]*/b/").principal_name("(aa))*") == "b"
