"""Our authorizer and principal mapping beside Kafka's own, on the same random ACLs and questions."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetlog.brokers.acls.decisions import AclRules
from fleetlog.brokers.acls.hosts import BadRange, range_of
from fleetlog.brokers.acls.image import (
    OPERATIONS,
    AccessControlEntry,
    AclFilter,
    AclImage,
    AclOperation,
    Entries,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    entries_with,
)
from fleetlog.brokers.logins.principals import NoRuleMatches, PrincipalMapper

pytestmark = [pytest.mark.kafka_jars]

SETS = 200
QUESTIONS = 50
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
PRINCIPALS = ("User:alice", "User:bob", "User:CN=c,O=d")
HOSTS = ("10.0.0.1", "10.0.0.2")
RANGES = ("10.0.0.0/31", "10.0.0.2/32", "10.9.9.9/8", "11.0.0.0/8", "::/0")


@pytest.fixture
def kafka(classpath: str) -> Callable[[list[str]], list[str]]:
    def ask(lines: list[str]) -> list[str]:
        source = Path(__file__).parent / "Decisions.java"
        command = [
            "java",
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            "-Dfile.encoding=UTF-8",
            "-cp",
            classpath,
            str(source),
        ]
        text = "".join(f"{line}\n" for line in lines)
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()

    return ask


def name_from(chance: random.Random) -> str:
    """Few letters, so that many names are prefixes of others."""
    return chance.choice(["*", *("".join(chance.choices("ab", k=chance.randint(1, 4))) for _ in range(5))])


def random_acls(chance: random.Random) -> dict[ResourcePattern, Entries]:
    found: dict[ResourcePattern, Entries] = {}
    for _ in range(chance.randint(0, 12)):
        kind = chance.choice([PatternType.LITERAL, PatternType.PREFIXED])
        pattern = ResourcePattern(chance.choice(TYPES), name_from(chance), kind)
        entry = AccessControlEntry(
            chance.choice([*PRINCIPALS, "User:*"]),
            chance.choice([*HOSTS, "*", *RANGES]),
            chance.choice(OPERATIONS),
            chance.choice([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
        )
        found[pattern] = entries_with(found.get(pattern, frozenset()), [entry])
    return found


def names(*parts: ResourceType | PatternType | AclOperation | Permission | str | None) -> str:
    return "\t".join(part if isinstance(part, str) else "" if part is None else part.name for part in parts)


def random_filter(chance: random.Random) -> AclFilter:
    return AclFilter(
        chance.choice([ResourceType.ANY, *TYPES]),
        chance.choice([None, name_from(chance), name_from(chance)]),
        chance.choice([PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED]),
        chance.choice([None, "User:*", *PRINCIPALS]),
        chance.choice([None, "*", *HOSTS, *RANGES]),
        chance.choice([AclOperation.ANY, AclOperation.ANY, *OPERATIONS]),
        chance.choice([Permission.ANY, Permission.ALLOW, Permission.DENY]),
    )


def test_decisions_are_kafkas(kafka: Callable[[list[str]], list[str]]) -> None:
    chance = random.Random(15)
    lines: list[str] = []
    ours: list[str] = []
    for _ in range(SETS):
        acls = random_acls(chance)
        lines += [names("acl", *pattern, *entry) for pattern, entries in acls.items() for entry in entries]
        default = chance.random() < 0.3
        lines.append(f"load\tUser:root;User:bob{'' if chance.random() < 0.2 else 'x'}\t{str(default).lower()}")
        super_users = set(lines[-1].split("\t")[1].split(";"))
        rules = AclRules(AclImage(acls), super_users, default)
        for _ in range(QUESTIONS):
            principal, host = chance.choice(PRINCIPALS), chance.choice(HOSTS)
            operation, kind = chance.choice(OPERATIONS[1:]), chance.choice(TYPES)
            # No resource is called "*".
            name = name_from(chance).replace("*", "b")
            lines.append(names("ask", principal, host, operation, kind, name))
            ours.append("ALLOWED" if rules.allows(principal, host, operation, kind, name) else "DENIED")
        for principal in PRINCIPALS:
            lines.append(names("any", principal, HOSTS[0], AclOperation.WRITE, ResourceType.TOPIC))
            allowed = rules.allows_any(principal, HOSTS[0], AclOperation.WRITE, ResourceType.TOPIC)
            ours.append("ALLOWED" if allowed else "DENIED")
        for _ in range(5):
            asked = random_filter(chance)
            lines.append(names("filter", *asked))
            matching = rules.image.matching(asked).items()
            ours.append("|".join(sorted(names(*p, *one).replace("\t", ":") for p, found in matching for one in found)))
    theirs = kafka(lines)
    questions = [line for line in lines if not line.startswith(("acl", "load"))]
    assert len(theirs) == len(ours) == SETS * (QUESTIONS + 8)
    different = [found for found in zip(questions, ours, theirs, strict=True) if found[1] != found[2]]
    assert different == []
    assert min(ours.count("ALLOWED"), ours.count("DENIED")) > SETS


def range_from(chance: random.Random) -> str:
    """Ranges, right ones and wrong ones; none with a zone, brackets or a sign, which only Java takes."""
    address = chance.choice(
        ["10.0.0.1", "0.0.0.0", "255.255.255.255", "10.0.0.256", "10.0.0", "010.1.0.0", "h", "*", ""]
    )
    longer = chance.choice(
        ["::", "::1", "2001:db8::7", "2001:DB8:0:0:0:0:0:1", "1::2::3", "::ffff:10.0.0.1", "g::", ":"]
    )
    bits = chance.choice([str(chance.randint(0, 140)), "08", "", "-1", "8/8", "x", "255.0.0.0", "8 "])
    return f"{chance.choice([address, longer])}/{bits}"


def test_ranges_are_kafkas(kafka: Callable[[list[str]], list[str]]) -> None:
    chance = random.Random(44)
    asked = sorted({range_from(chance) for _ in range(2000)})
    hosts = [*HOSTS, "255.255.255.255", "0:0:0:0:0:0:0:1", "2001:db8:0:0:0:0:0:9"]
    ours = []
    for host in asked:
        try:
            known = range_of(host)
        except BadRange:
            ours.append("bad")
            continue
        assert known is not None
        entry = AccessControlEntry(PRINCIPALS[0], host, AclOperation.READ, Permission.ALLOW)
        rules = AclRules(AclImage({ResourcePattern(ResourceType.TOPIC, "t"): frozenset([entry])}))
        within = [rules.allows(PRINCIPALS[0], one, AclOperation.READ, ResourceType.TOPIC, "t") for one in hosts]
        ours.append(" ".join(one for one, is_in in zip(hosts, within, strict=True) if is_in))
    theirs = kafka(["\t".join(["range", host, *hosts]) for host in asked])
    assert [one for one in zip(asked, ours, theirs, strict=True) if one[1] != one[2]] == []
    assert len(asked) // 4 < ours.count("bad") < len(asked)


RULES = (
    "DEFAULT",
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT",
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1@$2/L,RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
    r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/L",
    r"RULE:CN=([^,]+)\/([^,]+).*/$2\/$1x\$/ , DEFAULT",
    r"RULE:^CN=(a)(b)?,.*$/$1-$2/,RULE:^.*$/none/L",
)
SUBJECTS = (
    "CN=Duke,OU=ServiceUsers,O=Org,C=US",
    "CN=Duke/Host,OU=Users,O=Org",
    "cn=zoe,ou=people,dc=example,dc=com",
    "OU=none",
    "CN=a,O=x",
    "CN=ab,O=x",
    r"CN=a\,b,O=c",
)


def test_mapped_names_are_kafkas(kafka: Callable[[list[str]], list[str]]) -> None:
    cases = [(rules, subject) for rules in RULES for subject in SUBJECTS]
    theirs = kafka([f"name\t{rules}\t{subject}" for rules, subject in cases])
    ours = []
    for rules, subject in cases:
        try:
            ours.append(PrincipalMapper(rules).principal_name(subject))
        except NoRuleMatches:
            ours.append("")
    assert list(zip(cases, ours, strict=True)) == list(zip(cases, theirs, strict=True))
