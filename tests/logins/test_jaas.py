"""The JAAS line: three module names, nothing loaded, no secret in an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.logins.jaas import BadJaasLine, LoginModule, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def test_a_brokers_line() -> None:
    line = parse_jaas(f'{PLAIN} required username="admin" password="a" user_admin="a" user_al-ice="b c" ;')
    assert line.module is LoginModule.PLAIN
    assert line.login == ("admin", "a")
    assert line.passwords == {"admin": "a", "al-ice": "b c"}


def test_a_line_of_several_lines_with_comments_and_other_quotes() -> None:
    line = parse_jaas(f"// login\n{SCRAM} REQUIRED /* the\nuser */\n username='o\"k' password=plain.word_1;\n")
    assert line.module is LoginModule.SCRAM
    assert line.login == ('o"k', "plain.word_1")
    assert line.passwords == {}


def test_escapes_in_logins_are_resolved() -> None:
    line = parse_jaas(rf'{PLAIN} required username="a\"b\\c\n\101\é" password="p//no /*comment*/;=";')
    assert line.login == ('a"b\\c\nA' + "é", "p//no /*comment*/;=")


def test_without_a_login() -> None:
    assert parse_jaas(f"{PLAIN} required;").login is None
    assert parse_jaas(f'{PLAIN} required username="a";').login is None
    assert parse_jaas(f'{PLAIN} required username="" password="b";').login is None


QUOTED = st.text(st.characters(codec="utf-8", exclude_characters="\n"))


@given(QUOTED, QUOTED)
def test_any_quoted_text_comes_back(user: str, password: str) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    line = parse_jaas(f"{PLAIN} required username={quoted(user)} password={quoted(password)};")
    assert line.options == {"username": user, "password": password}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  // nothing",
        "com.sun.security.auth.module.JndiLoginModule required user.provider.url='ldap://hidden' ;",
        "com.sun.security.auth.module.LdapLoginModule required userProvider='ldap://hidden' useSSL=false;",
        "com.sun.security.auth.module.Krb5LoginModule required;",
        f"{PLAIN}",
        f"{PLAIN};",
        f"{PLAIN} always;",
        f'{PLAIN} required password="hidden"',
        f'{PLAIN} required password="hidden;',
        f"{PLAIN} required password=;",
        f"{PLAIN} required password hidden;",
        f'{PLAIN} required ="hidden";',
        f"{PLAIN} required password=hid&den;",
        f'{PLAIN} required password="hidden" password="hidden";',
        f'{PLAIN} required password="hidden"; {SCRAM} required;',
        f'{PLAIN} required password="hidden";;',
        f'{PLAIN} required password="hidden" /* not closed ;',
        f'{PLAIN} required password="hid\nden";',
        "= required;",
    ],
)
def test_lines_that_are_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(BadJaasLine) as caught:
        parse_jaas(text)
    assert "hid" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for line in (text, f"{PLAIN} required {text}"):
        try:
            parse_jaas(line)
        except BadJaasLine:
            pass


def test_a_line_is_not_shown() -> None:
    assert repr(parse_jaas(f'{PLAIN} required password="hidden";')) == "JaasLine(PLAIN)"
