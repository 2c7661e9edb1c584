"""Principals: their spelling, and the name that a client certificate's subject gives (``ssl.principal.mapping.rules``).

A subject is spelled as Java does (RFC 2253: the last RDN first, nine attributes by name, others as dotted OID with the
hexadecimal DER of the value), so that rules and ACLs written for Kafka match here. SANs give no principal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import re2

USER: Final = "User"
SUBJECT_BYTES_MAX: Final = 4096
"""The longest DER of a subject that is read, and the most characters of a name that rules are applied to."""


class BadPrincipal(ValueError):
    """A principal, a certificate's subject or a mapping rule that cannot be read; the text says which and why."""


class NoRuleMatches(Exception):
    """None of the mapping rules matches a certificate's subject: the login fails."""


class Principal(NamedTuple):
    """An authenticated identity. ``str()`` is the spelling that ACLs and log lines use (``User:alice``)."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal of a PLAINTEXT listener, and of an SSL listener where the client shows no certificate."""


def has_outer_blanks(name: str) -> bool:
    """Whether the name begins or ends with what is not seen there: a space of Unicode, a control or format character.

    Such a name looks like another one, in ACLs and in the log, so no login gets it.
    """
    return any(unicodedata.category(end) in {"Zs", "Zl", "Zp", "Cc", "Cf"} for end in (name[:1], name[-1:]) if end)


def parse_principal(text: str) -> Principal:
    """``Type:name``; the name may contain colons. Raises BadPrincipal."""
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise BadPrincipal(f"{text!r} is not a principal: write it as Type:name, for example User:alice")
    return Principal(kind, name)


def granted_principal(text: str) -> Principal:
    """A principal to give rights to: one that a login can have. Raises BadPrincipal."""
    principal = parse_principal(text)
    if any(map(has_outer_blanks, principal)):
        raise BadPrincipal(f"{text!r} is the principal of no login: remove the blanks at the ends of type and name")
    return principal


def parse_super_users(text: str) -> frozenset[str]:
    """``super.users``: separated by semicolons, because a distinguished name has commas. Raises BadPrincipal."""
    return frozenset(str(granted_principal(part)) for part in (one.strip(" \t\r\n") for one in text.split(";")) if part)


# ---------------------------------------------------------------- subjects


_NAMES: Final = {
    bytes.fromhex("550403"): "CN",
    bytes.fromhex("550406"): "C",
    bytes.fromhex("550407"): "L",
    bytes.fromhex("550408"): "ST",
    bytes.fromhex("55040a"): "O",
    bytes.fromhex("55040b"): "OU",
    bytes.fromhex("550409"): "STREET",
    bytes.fromhex("0992268993f22c640119"): "DC",
    bytes.fromhex("0992268993f22c640101"): "UID",
}
DER_SEQUENCE: Final = 0x30
_SET: Final = 0x31
DER_OID: Final = 0x06
_INTEGER: Final = 0x02
_EXPLICIT_VERSION: Final = 0xA0
_CHARSETS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1B: "ascii", 0x1E: "utf-16-be"}
_ESCAPED: Final = frozenset(',=+<>#;"\\')


class DerElement(NamedTuple):
    """One element of DER: its tag, what it holds, and all its bytes."""

    tag: int
    content: bytes
    whole: bytes


def der_elements(data: bytes) -> list[DerElement]:
    """The DER elements that follow each other in the bytes. Raises BadPrincipal."""
    elements, at = [], 0
    while at < len(data):
        head = data[at : at + 2]
        if len(head) < 2 or head[0] & 0x1F == 0x1F:
            raise BadPrincipal("the certificate's subject is no DER")
        start, length = at + 2, head[1]
        if length & 0x80:
            size = length & 0x7F
            start += size
            if not 1 <= size <= 4 or start > len(data):
                raise BadPrincipal("the certificate's subject is no DER")
            length = int.from_bytes(data[at + 2 : start], "big")
        end = start + length
        if end > len(data):
            raise BadPrincipal("the certificate's subject is no DER")
        elements.append(DerElement(head[0], data[start:end], data[at:end]))
        at = end
    return elements


def der_children(element: DerElement, tag: int) -> list[DerElement]:
    """The elements inside one that must have the tag. Raises BadPrincipal."""
    if element.tag != tag:
        raise BadPrincipal("the certificate's subject is no DER of a name")
    return der_elements(element.content)


def certificate_fields(certificate: bytes) -> list[DerElement]:
    """What an X.509 certificate's DER says: serial number, signature algorithm, issuer, validity, subject, and more.

    Raises BadPrincipal.
    """
    outer = der_elements(certificate)
    if len(outer) != 1:
        raise BadPrincipal("the certificate is no DER")
    body = der_children(outer[0], DER_SEQUENCE)
    fields = der_children(body[0], DER_SEQUENCE) if body else []
    if fields and fields[0].tag == _EXPLICIT_VERSION:
        del fields[0]
    if len(fields) < 5 or fields[0].tag != _INTEGER:
        raise BadPrincipal("the certificate is no DER of an X.509 certificate")
    return fields


def subject_of_certificate(certificate: bytes) -> bytes:
    """The DER of the subject in an X.509 certificate's DER (``getpeercert(binary_form=True)``). Raises BadPrincipal.

    The certificate is one that the TLS library has already checked; nothing but the subject is looked at.
    """
    return certificate_fields(certificate)[4].whole


def subject_name(subject: bytes) -> str:
    """The RFC 2253 spelling of a name's DER, as Java's ``X500Principal.getName`` gives it. Raises BadPrincipal."""
    if len(subject) > SUBJECT_BYTES_MAX:
        raise BadPrincipal(f"the certificate's subject has {len(subject)} bytes, more than {SUBJECT_BYTES_MAX}")
    outer = der_elements(subject)
    if len(outer) != 1:
        raise BadPrincipal("the certificate's subject is no DER of a name")
    parts = der_children(outer[0], DER_SEQUENCE)
    return ",".join("+".join(_attribute(one) for one in der_children(part, _SET)) for part in reversed(parts))


def _attribute(element: DerElement) -> str:
    pair = der_children(element, DER_SEQUENCE)
    if len(pair) != 2 or pair[0].tag != DER_OID or not pair[0].content:
        raise BadPrincipal("the certificate's subject is no DER of a name")
    name, value = _NAMES.get(pair[0].content), pair[1]
    charset = _CHARSETS.get(value.tag)
    if name is None or charset is None:
        return f"{name or _dotted(pair[0].content)}=#{value.whole.hex()}"
    try:
        return f"{name}={_escaped(value.content.decode(charset))}"
    except UnicodeDecodeError:
        raise BadPrincipal(f"the certificate's subject has a value of {name} that is no text") from None


def _dotted(content: bytes) -> str:
    if content[-1] & 0x80:
        raise BadPrincipal("the certificate's subject has an unfinished OID")
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _escaped(value: str) -> str:
    """Special characters, and spaces at either end, after a backslash; a NUL as two digits."""
    inner = value.strip(" \r")
    lead = len(value) - len(value.lstrip(" \r")) if inner else len(value)
    trail = len(value) - lead - len(inner)
    text = "".join("\\00" if c == "\0" else f"\\{c}" if c in _ESCAPED else c for c in inner)
    return "".join(f"\\{c}" for c in value[:lead]) + text + "".join(f"\\{c}" for c in value[len(value) - trail :])


# ---------------------------------------------------------------- mapping rules


class _Rule(NamedTuple):
    pattern: Any
    replacement: tuple[str | int, ...]
    """Texts, and the numbers of groups to insert."""
    case: str


class PrincipalMapper:
    """``ssl.principal.mapping.rules``: the first rule whose pattern matches the whole name gives the principal's name.

    Rules are separated by commas: ``DEFAULT`` (the name itself) or ``RULE:pattern/replacement/[L|U]`` with ``$1`` for
    the first group. Slashes inside are written ``\\/``. Patterns are RE2's, whose work is proportional to the subject:
    it is the client's, and with Java's or Python's a long one could take hours. Raises BadPrincipal for bad rules.
    """

    def __init__(self, rules: str = "DEFAULT") -> None:
        self._rules = _parse_rules(rules)

    def principal_name(self, subject: str) -> str:
        """The name for a subject in its RFC 2253 spelling; raises NoRuleMatches.

        Also where the result is empty, or begins or ends with a blank.
        """
        if len(subject) <= SUBJECT_BYTES_MAX:
            for rule in self._rules:
                if rule is None and not has_outer_blanks(subject):
                    return subject
                if rule is None:
                    break
                match = rule.pattern.fullmatch(subject)
                if match is not None:
                    name = "".join(p if isinstance(p, str) else match[p] or "" for p in rule.replacement)
                    name = name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
                    if name and not has_outer_blanks(name):
                        return name
                    break
        raise NoRuleMatches("no rule of ssl.principal.mapping.rules gives a name for the certificate's subject")


def _parse_rules(text: str) -> Sequence[_Rule | None]:
    rules: list[_Rule | None] = []
    at = 0
    while at < len(text):
        if text[at] in " \t\r\n,":
            at += 1
        elif re.compile(r"DEFAULT\s*(?:,|\n|$)").match(text, at):
            rules.append(None)
            at += len("DEFAULT")
        elif text.startswith("RULE:", at):
            pattern, at = _until_slash(text, at + len("RULE:"))
            replacement, at = _until_slash(text, at)
            case = text[at] if text[at : at + 1] in {"L", "U"} else ""
            at += len(case)
            if not re.compile(r"\s*(?:,|\n|$)").match(text, at):
                raise BadPrincipal(f"a rule must end after its second slash with nothing, L or U: {text[at:][:40]!r}")
            rules.append(_rule(pattern, replacement, case))
        else:
            raise BadPrincipal(f"neither DEFAULT nor RULE:pattern/replacement/: {text[at:][:40]!r}")
    if not rules:
        raise BadPrincipal("there is no rule: write DEFAULT for the whole distinguished name")
    return rules


def _until_slash(text: str, at: int) -> tuple[str, int]:
    """What stands before the next slash without a backslash, with its escapes, and the place behind that slash."""
    start = at
    while at < len(text):
        if text[at] == "/":
            return text[start:at], at + 1
        at += 2 if text[at] == "\\" else 1
    raise BadPrincipal(f"a rule lacks a slash: {text[start:][:40]!r}")


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as problem:
        reason = problem.args[0].decode(errors="replace")
        raise BadPrincipal(f"the pattern {pattern!r} is none of RE2's: {reason}") from problem
    return _Rule(compiled, _replacement_parts(replacement, compiled.groups), case)


def _replacement_parts(text: str, groups: int) -> tuple[str | int, ...]:
    """A group's number takes as many digits as there are groups for; ``$`` before any other number is literal."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            parts.append(text[at + 1])
            at += 2
            continue
        digits = re.compile(r"\$([0-9]+)").match(text, at)
        if digits is None:
            if text[at] == "$":
                raise BadPrincipal(f"$ must be followed by a group's number in the replacement {text!r}")
            parts.append(text[at])
            at += 1
            continue
        number = digits[1]
        while len(number) > 1 and int(number) > groups:
            number = number[:-1]
        parts.append(int(number) if int(number) <= groups else f"${number}")
        at += 1 + len(number)
    return tuple(parts)
