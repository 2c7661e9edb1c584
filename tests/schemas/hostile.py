"""``python -m tests.schemas.hostile 0-999``: schemas of strangers, sent to a registry's HTTP, each within its bounds.

A seed makes a few schemas of one type: nested too deep, with references in circles, enums without end, patterns that
explode, types that double at each level, giant defaults, texts cut and mixed. They are tried against each other at
every level, registered and read. No request may fail in the registry's own code, take more than `CPU_S` of CPU (with
that of the compiler's process), or answer with more than `ANSWER_BYTES`; the process as a whole stays below
`MEMORY_BYTES` beyond what it had, or ends by its limit.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import resource
import string
import sys
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import descriptor_pb2

from fleetlog.brokers.schemas.command import RegistryServer, SchemaStore
from fleetlog.brokers.schemas.registry import LEVELS, Plan, RegistryState

CPU_S: Final = 8.0
ANSWER_BYTES: Final = 2_000_000
MEMORY_BYTES: Final = 600 << 20
_MANY: Final = (10, 300, 5_000, 60_000)
Make = Callable[[random.Random], tuple[str, dict[str, Any]]]
"""The text of a schema, and what else its body has."""


class Violation(AssertionError):
    """A request broke a bound."""


class KeptStore(SchemaStore):
    """Without a topic: what is written is read at once."""

    def __init__(self) -> None:
        self.state = RegistryState()

    def registry(self) -> RegistryState:
        return self.state

    def behind(self) -> str:
        return ""

    def change(self, decide: Callable[[RegistryState], Plan], asked_s: float) -> Any:
        plan = decide(self.state)
        for key, value in plan.records:
            self.state.apply(json.dumps(key).encode(), None if value is None else json.dumps(value).encode())
        return plan.answer


# ---- schemas ---------------------------------------------------------------------------------------------------------


def deep(rng: random.Random, inner: str, opening: str, closing: str) -> str:
    """Something in something, more often than fits or just so often."""
    depth = rng.choice((20, 62, 63, 64, 65, 200, 5_000, 60_000))
    return opening * depth + inner + closing * depth


def name(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_letters, k=rng.choice((1, 8, 8, 300))))


def avro_doubling(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Each record has the one before it twice."""
    levels = rng.choice((5, 18, 25, 60))
    kind: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": rng.choice(("int", "long"))}]}
    for level in range(1, levels):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{level - 1}"}]
        kind = {"type": "record", "name": f"R{level}", "fields": fields[:: rng.choice((1, 1, -1))]}
    return json.dumps(kind), {}


def avro_wide(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Fields, symbols, branches or aliases without end."""
    count = rng.choice(_MANY)
    names = [f"n{number}" for number in range(count)]
    if rng.random() < 0.3:
        rng.shuffle(names)
    kinds: list[Any] = [
        {"type": "enum", "name": "E", "symbols": names},
        {"type": "record", "name": "R", "fields": [{"name": one, "type": "int", "default": 0} for one in names]},
        [{"type": "fixed", "name": one, "size": 1} for one in names],
        {"type": "record", "name": "R", "aliases": names, "fields": [{"name": "x", "type": "int", "aliases": names}]},
    ]
    return json.dumps(rng.choice(kinds)), {}


def avro_default(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A default that is giant, deep or of no type."""
    values = ["x" * 700_000, 10**4_000, [1] * 50_000]
    kinds: list[Any] = ["string", "bytes", "long", {"type": "array", "items": "int"}, {"type": "map", "values": "R"}]
    field = {"name": "x", "type": rng.choice(kinds), "default": rng.choice(values)}
    return json.dumps({"type": "record", "name": "R", "fields": [field]}), {}


def avro_odd(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Numbers, names and circles that no library expects."""
    number = rng.choice(("1e400", "-1", "1" * 4_000, "1" * 5_000, "NaN", "0.5", "null", "[]", '"3"'))
    mutual = {"type": "record", "name": "B", "fields": [
        {"name": "b", "type": ["null", "A"]}, {"name": "c", "type": {"type": "array", "items": "B"}},
    ]}  # fmt: skip
    bodies = [
        f'{{"type": "fixed", "name": "F", "size": {number}}}',
        f'{{"type": "bytes", "logicalType": "decimal", "precision": {number}, "scale": {number}}}',
        json.dumps({"type": "record", "name": "A", "fields": [{"name": "a", "type": mutual}]}),
        '{"type": {"type": {"type": "string"}}}', '{"type": "record", "name": "int", "fields": []}',
        deep(rng, '"int"', '{"type": "array", "items": ', "}"), deep(rng, '"int"', "[", "]"),
        deep(rng, '"int"', '{"type": ', "}"), f'{{"type": "record", "name": "{name(rng)}", "fields": {number}}}',
        '{"type": "record", "name": "\\ud800", "fields": []}', '["null", "null"]', "{" * 50_000,
    ]  # fmt: skip
    return rng.choice(bodies), {}


def json_doubling(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Each definition leads to the one before it twice, or to itself."""
    levels, word = rng.choice((5, 20, 62, 2_000)), rng.choice(("allOf", "anyOf", "oneOf", "properties", "not"))

    def inner(target: str) -> Any:
        one = {"$ref": f"#/$defs/{target}"}
        twice = [one, {**one, "description": "d"}]
        return {"properties": {"a": one, "b": one}} if word == "properties" else {word: one if word == "not" else twice}

    names = [f"d{level}" for level in range(levels)]
    ends = {"type": rng.choice(("integer", "string", "object"))} if rng.random() < 0.7 else inner(names[-1])
    defs = {one: inner(names[level - 1]) if level else ends for level, one in enumerate(names)}
    return json.dumps({"$defs": defs, "type": "object", "$ref": f"#/$defs/{names[-1]}"}), {}


def json_wide(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Enums, properties, patterns and combinations without end."""
    count = rng.choice(_MANY)
    values: list[Any] = [{"a": number} if rng.random() < 0.1 else number for number in range(count)]
    rng.shuffle(values)
    bodies: list[Any] = [
        {"enum": values}, {"enum": [str(one) for one in values]}, {"type": "array", "prefixItems": [{}] * count},
        {"properties": {f"p{one}": {"type": "string"} for one in range(count)}, "required": [str(v) for v in values]},
        {"patternProperties": {f"^p{one}.*{one}$": {"const": one} for one in range(min(count, 3_000))},
         "properties": {f"p{one}": {"type": "integer"} for one in range(min(count, 3_000))}},
        {rng.choice(("allOf", "anyOf", "oneOf")): [{"const": one} for one in range(count)]},
        {"type": [name(rng) for _ in range(min(count, 500))]}, {"const": [[one] for one in range(count)]},
    ]  # fmt: skip
    return json.dumps(rng.choice(bodies)), {}


def json_odd(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Patterns that explode, references that lead nowhere or in circles, numbers without measure."""
    number = rng.choice(("1e400", "-1", "1" * 4_000, "1" * 5_000, "0", "1e-300", "NaN", "Infinity"))
    pattern = rng.choice(("(a+)+$", "(a|a)*$", "a{1,1000}{1,1000}", "(((a*)*)*)*b", "(?=x)y", "[", "\\p{L}" * 5_000))
    dialect = rng.choice(("x", 7, "http://json-schema.org/draft-04/schema#"))
    reference = rng.choice(("#", "#/a/b", "#/%24defs/x", "http://127.0.0.1:1/x", "file:///etc/passwd", "#/$defs/~0~2",
                            "urn:x", "#/$defs/a/$ref", "a" * 50_000))  # fmt: skip
    bodies = [
        json.dumps({"patternProperties": {pattern: {"pattern": pattern}}, "properties": {"a" * 40: {}}}),
        json.dumps({"$ref": reference, "$defs": {"a": {"$ref": reference}}, "$id": rng.choice(("x", "#", ":"))}),
        json.dumps({"$dynamicRef": "#x", "$dynamicAnchor": "x", "allOf": [{"$recursiveRef": "#"}]}),
        f'{{"multipleOf": {number}, "minimum": {number}, "maxLength": {number}, "maxItems": {number}}}',
        json.dumps({"$schema": dialect, "default": "x" * 600_000}),
        deep(rng, "{}", '{"items": ', "}"), deep(rng, "{}", '{"allOf": [', "]}"), deep(rng, "1", '{"default": [', "]}"),
        deep(rng, "{}", '{"properties": {"a": ', "}}"), '{"type": "object", ' * 9_000, '{"a": 1, "a": 2}', "true", "[]",
    ]  # fmt: skip
    return rng.choice(bodies), {}


def proto_wide(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Fields, values, messages and ranges without end."""
    count = rng.choice(_MANY[:3])
    numbers = list(range(1, count + 1))
    parts = [
        "message M {" + "".join(f"int32 f{n} = {n};" for n in numbers if not 19_000 <= n < 20_000) + "}",
        "enum E { Z = 0;" + "".join(f"V{n} = {n};" for n in numbers) + "}",
        "".join(f"message M{n} {{ M{max(n - 1, 1)} a = 1; M{max(n - 1, 1)} b = 2; }}" for n in numbers),
        "message M { reserved " + ", ".join(f"{n}" for n in numbers) + "; reserved 200000 to max; }",
        "message M { oneof o {" + "".join(f"string s{n} = {n};" for n in numbers if not 19_000 <= n < 20_000) + "} }",
        "message M { map<string, M> m = 1; string s = 2 [default = \"" + "x" * 500_000 + '"]; }',
    ]  # fmt: skip
    return 'syntax = "proto3";\n' + rng.choice(parts), {}


def proto_odd(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Messages in messages, comments and texts without an end, imports of what is not there."""
    bodies = [
        deep(rng, "int32 x = 1;", "message M { ", " }"), "/*" * 100_000,
        'message M { string s = 1; } "' + "x" * 100_000,
        f"message {name(rng)} {{ int32 a = {rng.choice((0, -1, 2**29, 2**64, 19_500))}; }}",
        'import "/etc/passwd";', 'import "../../x.proto";',
        'import "google/protobuf/any.proto"; message M { google.protobuf.Any a = 1; }',
        "option (x) = { a: { b: " * 3_000, 'extend google.protobuf.FileOptions { string x = 50000; }',
        "\0" * 1_000, "syntax = " * 9_000, "message M { M m = 1; repeated M n = 2; oneof o { M p = 3; } }",
    ]  # fmt: skip
    head = rng.choice(('syntax = "proto3";\n', 'syntax = "proto2";\n', 'edition = "2023";\n', ""))
    return head + rng.choice(bodies), {}


def proto_descriptor(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A file descriptor as Python's serializer sends it, with bytes changed."""
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3", package=name(rng))
    message = file.message_type.add(name="M")
    for number in range(1, rng.choice((2, 50, 3_000))):
        message.field.add(name=f"f{number}", number=number, type=rng.randrange(1, 19), label=rng.randrange(1, 4))
    nested = message
    for _ in range(rng.choice((0, 10, 70, 90))):
        nested = nested.nested_type.add(name="N")
    raw = bytearray(file.SerializeToString())
    for _ in range(rng.choice((0, 0, 1, 5))):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return base64.b64encode(bytes(raw)).decode(), {}


MAKERS: Final[dict[str, tuple[Make, ...]]] = {
    "AVRO": (avro_doubling, avro_wide, avro_default, avro_odd, avro_odd),
    "JSON": (json_doubling, json_wide, json_odd, json_odd),
    "PROTOBUF": (proto_wide, proto_odd, proto_descriptor),
}


def made(rng: random.Random, kind: str) -> dict[str, Any]:
    """The body of a request; sometimes cut, or with a part of itself in the middle."""
    text, more = rng.choice(MAKERS[kind])(rng)
    if rng.random() < 0.15 and text:
        first, last = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        text = rng.choice((text[:first], text[:first] + text[last:], text[:last] + text[first:]))
    return {"schema": text[:1_000_000], "schemaType": kind, **more}


# ---- requests --------------------------------------------------------------------------------------------------------


def cpu_s() -> float:
    """Of this process and of those that it has waited for."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


async def _answer(server: RegistryServer, method: str, path: str, query: str, body: bytes) -> tuple[int, bytes]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method, "raw_path": path.encode(), "query_string": query.encode(), "headers": [],
    }  # fmt: skip
    await server(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


def run(seed: int) -> dict[str, float]:
    """What the requests of a seed are answered with, by status, and the most CPU that one took. Raises Violation."""
    rng = random.Random(seed)
    kind = rng.choice(tuple(MAKERS))
    return send([made(rng, kind) for _ in range(2)], rng, f"seed {seed}")


def send(bodies: list[dict[str, Any]], rng: random.Random, whose: str) -> dict[str, float]:
    """The same of two schemas, which are tried, registered and read."""
    counted = {"cpu_s": 0.0}
    asyncio.run(_requests(RegistryServer(KeptStore()), bodies, rng, whose, counted))
    return counted


async def _requests(
    server: RegistryServer, bodies: list[dict[str, Any]], rng: random.Random, whose: str, counted: dict[str, float]
) -> None:
    level = json.dumps({"compatibility": rng.choice(LEVELS)}).encode()
    normalize = rng.choice(("", "normalize=true"))
    asked = [("PUT", "/config", "", level)]
    for body in (*bodies, bodies[0]):
        raw = json.dumps(body).encode()
        asked += [
            ("POST", "/compatibility/subjects/s/versions", f"verbose=true&{normalize}", raw),
            ("POST", "/subjects/s/versions", normalize, raw), ("POST", "/subjects/s", normalize, raw),
        ]  # fmt: skip
    circle = [{"name": "a", "subject": "s", "version": 1}, {"name": "b", "subject": "t", "version": 1}]
    referring = json.dumps({**bodies[1], "references": circle[: rng.randrange(1, 3)]}).encode()
    asked += [
        ("POST", "/subjects/t/versions", "", referring), ("POST", "/compatibility/subjects/t/versions", "", referring),
        ("GET", "/subjects/s/versions/latest", "format=serialized", b""), ("GET", "/schemas", "", b""),
    ]  # fmt: skip
    for method, path, query, body in asked:
        before_s = cpu_s()
        status, answer = await _answer(server, method, path, query, body)
        took_s = cpu_s() - before_s
        counted["cpu_s"] = max(counted["cpu_s"], took_s)
        counted[str(status)] = counted.get(str(status), 0) + 1
        what = f"{whose}: {method} {path} with {body[:100]!r} ({len(body)} bytes)"
        if status >= 500:
            raise Violation(f"{what} is answered with {answer[:300]!r}")
        if took_s > CPU_S:
            raise Violation(f"{what} took {took_s:.1f} s of CPU")
        if len(answer) > ANSWER_BYTES:
            raise Violation(f"{what} is answered with {len(answer)} bytes")


def main() -> int:
    first, _, last = sys.argv[1].partition("-")
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    resource.setrlimit(resource.RLIMIT_AS, (begun + 2 * MEMORY_BYTES + (1 << 30),) * 2)
    total: dict[str, float] = {}
    failed = 0
    for seed in range(int(first), int(last) + 1):
        try:
            counted = run(seed)
        except Violation as violation:
            failed += 1
            print(violation, flush=True)
            continue
        for word, number in counted.items():
            total[word] = max(total.get(word, 0), number) if word == "cpu_s" else total.get(word, 0) + number
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - begun
    told = ", ".join(f"{word}: {number:g}" for word, number in sorted(total.items()))
    print(f"{told}, {grown >> 20} MiB more, {failed} failed")
    return 1 if failed or grown > MEMORY_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
