"""Pairs of Avro schemas: some by hand, one for each rule, and many drawn, of which the second is a change of the first.

``python -m tests.schemas.avro_pairs`` asks Avro's own library, and writes ``avro.tsv``: whether the new schema reads
the old one's data, whether the old one reads the new one's, and the two as the library writes them.
"""

from __future__ import annotations

import copy
import json
import random
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.kafka_jars.programs import compiled, fetched_jars

TABLE = Path(__file__).parent / "avro.tsv"
DRAWN = 1_400
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DEFAULTS: dict[str, Any] = {
    "null": None, "boolean": True, "int": 1, "long": 2, "float": 1.5, "double": 2.5, "bytes": "b", "string": "s",
}  # fmt: skip


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def by_hand() -> list[tuple[Any, Any]]:
    a, b = field("a", "int"), field("b", "string")
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    fixed = {"type": "fixed", "name": "F", "size": 4}
    tree = record(field("next", ["null", "R"]), field("value", "int"))
    pairs: list[tuple[Any, Any]] = [(old, new) for old in PRIMITIVES for new in PRIMITIVES]
    pairs += [([old, "null"], [new, "null"]) for old in PRIMITIVES[1:] for new in PRIMITIVES[1:]]
    pairs += [(old, ["null", new]) for old in PRIMITIVES for new in PRIMITIVES[1:]]
    pairs += [
        (record(a), record(a, b)),
        (record(a), record(a, {**b, "default": ""})),
        (record(a, b), record(a)),
        (record(a), record(field("c", "int", aliases=["a"]))),
        (record(a, b), record(field("c", "int", aliases=["a", "b"]))),
        (record(a), record(field("c", "long", aliases=["a"], default=1))),
        (record(a), record(a, name="S")),
        (record(a), record(a, name="S", aliases=["R"])),
        (record(a, namespace="x"), record(a, namespace="y")),
        (record(a, namespace="x"), record(a, name="S", aliases=["x.R"])),
        (record(a, namespace="x"), record(a, name="S", namespace="x", aliases=["R"])),
        (enum, {**enum, "symbols": ["A"]}),
        (enum, {**enum, "symbols": ["A"], "default": "A"}),
        (enum, {**enum, "symbols": ["A", "B", "C"]}),
        (enum, {**enum, "name": "X"}),
        (enum, "string"),
        (fixed, {**fixed, "size": 5}),
        (fixed, {**fixed, "name": "G"}),
        (fixed, "bytes"),
        (tree, record(field("next", ["null", "R"]), field("value", "long"))),
        (tree, record(field("next", ["null", "R"]), field("value", "boolean"))),
        (tree, record(field("next", "R"), field("value", "int"))),
        (["null", record(a)], ["null", record(a, b)]),
        (["null", record(a)], ["null", record(a, name="S")]),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}),
        ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}),
        (["int", "string"], ["string"]), (["int"], "int"), ("int", ["int"]), (["int", "long"], "long"),
        (["int", "string"], "string"), (["bytes", "string"], "string"),
        (record(field("e", enum)), record(field("e", {**enum, "symbols": ["B"]}))),
        (record(a), record(a, field("e", {**enum, "default": "A"}))),
        ({"type": "int", "logicalType": "date"}, "int"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, {"type": "bytes", "logicalType": "decimal",
                                                                       "precision": 9, "scale": 2}),
    ]  # fmt: skip
    return pairs


class Draw:
    """Draws schemas, and changes of them. ``made`` counts the names that are taken."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._made = 0

    def schema(self, depth: int = 3) -> Any:
        kind = self._random.choice(
            ("primitive", "primitive", "record", "record", "array", "map", "enum", "fixed", "union")
        )
        if depth == 0 or kind == "primitive":
            return self._random.choice(PRIMITIVES)
        if kind == "array":
            return {"type": "array", "items": self.schema(depth - 1)}
        if kind == "map":
            return {"type": "map", "values": self.schema(depth - 1)}
        if kind == "union":
            others = self._random.sample(PRIMITIVES, self._random.randint(1, 3))
            return others if self._random.random() < 0.5 else [*others, self._record(depth - 1)]
        if kind == "record":
            return self._record(depth)
        self._made += 1
        name = f"N{self._made}"
        if kind == "fixed":
            return {"type": "fixed", "name": name, "size": self._random.randint(1, 3)}
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"][: self._random.randint(1, 3)]}

    def _record(self, depth: int) -> Any:
        self._made += 1
        name = f"N{self._made}"
        fields = [self._field(number, depth) for number in range(self._random.randint(1, 3))]
        if self._random.random() < 0.2:
            fields.append(field("self", ["null", name], default=None))
        return record(*fields, name=name)

    def _field(self, number: int, depth: int) -> Any:
        kind = self.schema(depth - 1) if depth else self._random.choice(PRIMITIVES)
        made = field(f"f{number}", kind)
        if isinstance(kind, str) and self._random.random() < 0.4:
            made["default"] = DEFAULTS[kind]
        return made

    def changed(self, schema: Any) -> Any:
        """A copy with one to three changes somewhere inside."""
        changed = [copy.deepcopy(schema)]
        for _ in range(self._random.randint(1, 3)):
            places = list(_places(changed))
            holder, key = self._random.choice(places)
            holder[key] = self._change(holder[key])
        return changed[0]

    def _change(self, schema: Any) -> Any:
        draw = self._random.random()
        if isinstance(schema, dict) and schema["type"] == "record":
            fields = schema["fields"]
            if draw < 0.3:
                fields.append(self._field(90 + len(fields), 0))
            elif draw < 0.5 and len(fields) > 1:
                fields.pop(self._random.randrange(len(fields)))
            elif draw < 0.6:
                schema["aliases"], schema["name"] = [schema["name"]], f"{schema['name']}x"
                return json.loads(
                    json.dumps(schema).replace(f'"null", "{schema["aliases"][0]}"', f'"null", "{schema["name"]}"')
                )
            elif draw < 0.8:
                renamed = self._random.choice(fields)
                renamed["aliases"], renamed["name"] = [renamed["name"]], f"{renamed['name']}y"
            else:
                self._random.shuffle(fields)
            return schema
        if isinstance(schema, dict) and schema["type"] == "enum":
            schema["symbols"] = ["A", "B", "C", "D"][: self._random.randint(1, 4)]
            return {**schema, "default": "A"} if draw < 0.3 else schema
        if isinstance(schema, dict) and schema["type"] == "fixed":
            return {**schema, "size": self._random.randint(1, 3)}
        if isinstance(schema, list):
            kinds = [branch for branch in PRIMITIVES if branch not in schema]
            if draw < 0.5 and kinds:
                return [*schema, self._random.choice(kinds)]
            return schema[1:] if len(schema) > 1 else schema[0]
        if draw < 0.3 and schema in PRIMITIVES:
            return [schema, *([] if schema == "null" else ["null"])]
        return self._random.choice(PRIMITIVES)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Where schemas stand in a list of one schema: the holder and the index or name."""
    places = []
    if isinstance(value, list):
        for number, branch in enumerate(value):
            places += [(value, number), *_inside(branch)]
    return places


def _inside(schema: Any) -> list[tuple[Any, Any]]:
    if isinstance(schema, list):
        return [place for branch in schema for place in _inside(branch)]
    if not isinstance(schema, dict):
        return []
    if schema["type"] == "record":
        return [
            place
            for one in schema["fields"]
            if "default" not in one
            for place in ((one, "type"), *_inside(one["type"]))
        ]
    key = {"array": "items", "map": "values"}.get(schema["type"])
    return [] if key is None else [(schema, key), *_inside(schema[key])]


def pairs() -> list[tuple[str, str]]:
    """All pairs, as texts."""
    draw = Draw(41)
    drawn = []
    for _ in range(DRAWN):
        old = draw.schema()
        drawn.append((old, draw.changed(old) if draw._random.random() < 0.9 else draw.schema()))
    texts = [(json.dumps(old), json.dumps(new)) for old, new in by_hand() + drawn]
    return list(dict.fromkeys(texts))


def verdicts(texts: list[tuple[str, str]], directory: Path) -> list[str]:
    """A line of the library for each pair."""
    jars = fetched_jars("avro.xml", directory / "jars")
    path = compiled(jars, Path(__file__).parents[1] / "kafka_jars" / "AvroVerdicts.java", directory)
    given = "".join(f"{old}\t{new}\n" for old, new in texts)
    done = subprocess.run(
        ["java", "-cp", path, "AvroVerdicts"], input=given, capture_output=True, text=True, timeout=240, check=True
    )
    return done.stdout.splitlines()


def main() -> None:
    with TemporaryDirectory() as directory:
        lines = verdicts(pairs(), Path(directory))
    TABLE.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
