"""Properties files are read as Java reads them."""

from __future__ import annotations

import pytest

from fleetlog.brokers.config import ConfigError, parse_properties
from fleetlog.brokers.logins.jaas import parse_jaas


def value(text: str) -> str:
    ((found, _),) = parse_properties(text, "f").values()
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"a=one\\two", r"one\two"),
        (r"a=RULE:^CN=(\\w+)$/$1/", r"RULE:^CN=(\w+)$/$1/"),
        (r"a=\t\n\r\f\q\=\:\#", "\t\n\r\fq=:#"),
        (r"a=gr\u00fcn", "grün"),
        (r"a=\\u00fc", r"\u00fc"),
        ("a = b = c : d", "b = c : d"),
        ("a:b=c", "b=c"),
        ("a=one\\\n   two", "onetwo"),
        ("a=one\\\\", "one\\"),
        ("a=one\\\\\\\n two", "one\\two"),
        ("a=\\\\\\\\", "\\\\"),
        ("a=", ""),
    ],
)
def test_values_are_read_as_java_reads_them(text: str, expected: str) -> None:
    assert value(text) == expected


def test_a_name_with_a_separator() -> None:
    assert parse_properties("a\\=b\\:c=d", "f") == {"a=b:c": ("d", "f:1")}


def test_two_lines_after_a_backslash_of_a_value() -> None:
    """A value that ends with a backslash once took the next line for its rest."""
    assert parse_properties("a=x\\\\\nb=y", "f") == {"a": ("x\\", "f:1"), "b": ("y", "f:2")}
    assert parse_properties("a=x\\\\\\\\\nb=y", "f") == {"a": ("x\\\\", "f:1"), "b": ("y", "f:2")}


def test_a_jaas_line_in_a_file_of_kafka() -> None:
    r"""Its quotes are escaped twice: once for the line (\"), once for the file (\\")."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    line = parse_jaas(value(f'sasl.jaas.config={module} required username="a" password="x\\\\"y\\\\\\\\z";'))
    assert line.options["password"] == 'x"y\\z'


@pytest.mark.parametrize("text", [r"password=\u12", r"password=s\uXYZW"])
def test_a_broken_escape(text: str) -> None:
    with pytest.raises(ConfigError, match="four hexadecimal digits") as refused:
        parse_properties(text, "f")
    assert "XYZW" not in str(refused.value)
