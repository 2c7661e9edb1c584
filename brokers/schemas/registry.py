"""What a registry knows, as a value: subjects with their versions, ids, levels and modes, read from ``_schemas``.

``apply`` takes the records of the topic in their order. A change is decided by a method that returns the records to be
written and the answer for when they are read back; nothing else changes the state. Keys and values are Confluent's.
Source: the REST protocol and the storage of Confluent's Schema Registry 7.x.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple, TypeVar

from fleetlog.brokers.schema_guids import guid_of, text_of
from fleetlog.brokers.schemas import formats, protobuf
from fleetlog.brokers.schemas.formats import (
    AVRO,
    CHANGES_MAX,
    DEPTH_MAX,
    JSON,
    TEXT_BYTES_MAX,
    Change,
    FormatError,
    ParsedSchema,
)
from fleetlog.brokers.schemas.protobuf import PROTOBUF, CompilersBusy
from fleetlog.brokers.schemas.sorted_map import SortedMap

logger = logging.getLogger(__name__)

KINDS: Final = (AVRO, JSON, PROTOBUF)
REFERENCES_MAX: Final = 200
"""Schemas that one refers to, over all steps."""
SUBJECT_MAX: Final = 1_000
COMPARED_MAX: Final = 1_000
"""Versions that one schema is compared with."""
LEVELS: Final = (
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip
MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
DEFAULT_LEVEL: Final = "BACKWARD"
DEFAULT_MODE: Final = "READWRITE"
DEFAULT_CONTEXT: Final = "."
CONFIG_TYPES: Final = {"compatibilityLevel": str, "normalize": bool, "alias": str, "compatibilityGroup": str}
_INT_MAX: Final = 2**31 - 1
_PARSED_BYTES_MAX: Final = 16_000_000
"""Of the texts of schemas that stay parsed; what is made of one takes some ten times as much."""
_PARSED_BYTES: Final = 1_000

K = TypeVar("K")
V = TypeVar("V")
Record = tuple[dict[str, Any], dict[str, Any] | None]
"""Key and value."""
BARRIER: Final[Record] = {"keytype": "NOOP", "magic": 0}, None
"""Changes nothing: whoever reads it has read all that was written before."""


class RegistryRefusal(Exception):
    """What a request is refused with: Confluent's code, whose first three digits are the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Plan(NamedTuple):
    """What is to be written, in one batch, and what is answered then."""

    records: list[Record]
    answer: Any


class SchemaCounts(NamedTuple):
    """How much there is; ``deleted``: versions that are deleted softly."""

    schemas: int
    subjects: int
    versions: int
    deleted: int


class Stored(NamedTuple):
    """A version of a subject, as its record says. ``fields`` are those that a client sent, but for the text."""

    subject: str
    version: int
    id: int
    kind: str
    text: str
    fields: dict[str, Any]
    deleted: bool

    @property
    def references(self) -> list[dict[str, Any]]:
        """Rows with ``name``, ``subject`` and ``version``."""
        return list(self.fields.get("references") or ())

    @property
    def properties(self) -> dict[str, Any]:
        """Those of its metadata."""
        properties = (self.fields.get("metadata") or {}).get("properties")
        return properties if isinstance(properties, dict) else {}

    @property
    def content(self) -> tuple[str, ...]:
        """What is the same for two versions of the same schema."""
        return self.kind, self.text, text_of(self.fields)

    @property
    def digest(self) -> bytes:
        """Of the content."""
        return hashlib.sha256(text_of(self.content).encode()).digest()

    @property
    def guid(self) -> str:
        """Its id by content, as Confluent's 8.0 makes it but for rules, of which it takes the sorted text of JSON."""
        return str(guid_of(self.text, self.references, self.fields.get("metadata"), self.fields.get("ruleSet")))

    def shown(self) -> dict[str, Any]:
        """The version as the protocol shows it."""
        return {"subject": self.subject, "version": self.version, "id": self.id} | self.described()

    def described(self) -> dict[str, Any]:
        """The schema alone."""
        return ({} if self.kind == AVRO else {"schemaType": self.kind}) | self.fields | {"schema": self.text}

    def record(self, *, deleted: bool) -> Record:
        """Its record in the topic."""
        key = {"keytype": "SCHEMA", "subject": self.subject, "version": self.version, "magic": 1}
        digest = hashlib.md5("".join(self.content).encode(), usedforsecurity=False).hexdigest()
        head = {"subject": self.subject, "version": self.version, "id": self.id, "md5": digest}
        return key, head | self.described() | {"deleted": deleted}

    def tombstone(self) -> Record:
        """What removes its record."""
        return self.record(deleted=True)[0], None


class ParsedSchemas:
    """The schemas that were used last, as they are parsed. For any thread: each step leaves a whole table."""

    def __init__(self) -> None:
        self.rows: dict[Any, tuple[ParsedSchema, int]] = {}

    def get(self, kind: str, text: str, references: Mapping[str, str], normalize: bool) -> ParsedSchema:
        """Raises FormatError."""
        key = kind, text, tuple(references.items()), normalize
        row = self.rows.pop(key, None)
        if row is None:
            schema = _parsed(kind, text, references, normalize)
            size = _PARSED_BYTES + len(text) + sum(map(len, references.values())) + 2 * len(schema.identity)
            row = schema, size
            kept = list(self.rows.items())
            excess = sum(size for _, (_, size) in kept) + size - _PARSED_BYTES_MAX
            for oldest, (_, freed) in kept:
                if excess <= 0:
                    break
                self.rows.pop(oldest, None)
                excess -= freed
        self.rows[key] = row
        return row[0]


_parsed_schemas: Final = ParsedSchemas()


def _parsed(kind: str, text: str, references: Mapping[str, str], normalize: bool) -> ParsedSchema:
    parsers = {AVRO: formats.parse_avro, JSON: formats.parse_json_schema, PROTOBUF: protobuf.parse_protobuf}
    if kind not in parsers:
        raise FormatError(f"its type {kind[:40]} is none of {', '.join(KINDS)}")
    try:
        text.encode()
        schema = parsers[kind](text, references, normalize)
        schema.text.encode()
    except UnicodeEncodeError:
        raise FormatError("it has half of a surrogate pair, which is no character") from None
    return schema


def parse(kind: str, text: str, references: Mapping[str, str], normalize: bool = False) -> ParsedSchema:
    """The schema of a text; ``references`` has the texts that it needs by name, each behind those it needs itself.

    Raises RegistryRefusal: 42201, 42209.
    """
    size = sum(len(one.encode("utf-8", "surrogatepass")) for one in (text, *references.values()))
    if size > TEXT_BYTES_MAX:
        raise RegistryRefusal(42209, f"a schema with its references may have {TEXT_BYTES_MAX} bytes, not {size}")
    try:
        return _parsed_schemas.get(kind, text, references, normalize)
    except CompilersBusy as error:
        raise RegistryRefusal(50002, str(error)) from None
    except FormatError as error:
        raise RegistryRefusal(42209 if error.too_large else 42201, f"Invalid schema: {error}") from None
    except RecursionError:
        raise RegistryRefusal(42209, "Invalid schema: it is nested too deeply") from None


def changes(old: ParsedSchema, new: ParsedSchema) -> list[Change]:
    """Why data that was written by ``old`` cannot be read by ``new``; empty if it can. Raises RegistryRefusal."""
    if old.kind != new.kind:
        return [("TYPE_CHANGED", f"{old.kind} to {new.kind}")]
    comparers: dict[str, Callable[[Any, Any], Iterator[Change]]] = {
        AVRO: formats.avro_changes, JSON: formats.json_changes, PROTOBUF: protobuf.protobuf_changes,
    }  # fmt: skip
    try:
        return list(dict.fromkeys(comparers[new.kind](old.model, new.model)))[:CHANGES_MAX]
    except (FormatError, RecursionError) as error:
        text = str(error) if isinstance(error, FormatError) else "they are nested too deeply"
        raise RegistryRefusal(42209, f"the schemas cannot be compared: {text}") from None
    except (TypeError, AttributeError, ValueError, KeyError, ZeroDivisionError) as error:
        # JSON Schema: a reference may lead to what no validator has seen
        logger.warning("schemas that cannot be compared: %r", error)
        raise RegistryRefusal(42201, "Invalid schema: a reference leads to what is no schema") from None


def context_of(subject: str | None) -> str:
    """The context of a subject, ``.ctx`` of ``:.ctx:name``; of others the default one."""
    match = re.match(r":(\.[^:]*):", subject or "")
    return match[1] if match else DEFAULT_CONTEXT


def qualified(subject: str, context: str = DEFAULT_CONTEXT) -> str:
    """The subject's one name: without the default context, and in ``context`` if it names none."""
    if subject.startswith(":.:"):
        subject = subject[3:]
    elif not subject.startswith(":.") and context != DEFAULT_CONTEXT:
        subject = f":{context}:{subject}"
    return subject


_NONE: Final[SortedMap[int, Stored]] = SortedMap()


class RegistryState:
    """The state. ``apply`` is for one thread at a time; a copy costs nothing, and stays as it is."""

    def __init__(self) -> None:
        self._subjects: SortedMap[str, SortedMap[int, Stored]] = SortedMap()
        self._places: SortedMap[tuple[str, int, str, int], None] = SortedMap()
        """Context, id, subject, version."""
        self._by_guid: SortedMap[tuple[str, str, int], None] = SortedMap()
        self._contents: SortedMap[tuple[str, bytes], int] = SortedMap()
        self._holders: SortedMap[tuple[str, int, str, int], None] = SortedMap()
        """Subject and version that are referred to, subject and version that refer to them."""
        self._highest: SortedMap[str, int] = SortedMap()
        self._configs: SortedMap[tuple[str, ...], dict[str, Any]] = SortedMap()
        self._modes: SortedMap[tuple[str, ...], str] = SortedMap()

    # ---- records ---------------------------------------------------------------------------------------------------

    def apply(self, key_text: bytes | None, value_text: bytes | None) -> None:
        """Take a record of the topic; one that is not of this format changes nothing."""
        try:
            key, value = json.loads(key_text or b"null"), None if value_text is None else json.loads(value_text)
            kind, subject = key["keytype"], key.get("subject")
            if not isinstance(subject, str | None):
                raise ValueError("its subject is no text")
            if kind == "SCHEMA":
                self._apply_schema(qualified(key["subject"]), int(key["version"]), value)
            elif kind == "DELETE_SUBJECT" and value is not None:
                for stored in self._subjects.get(qualified(value["subject"]), _NONE).values():
                    if stored.version <= value["version"]:
                        self._keep(stored._replace(deleted=True))
            elif kind == "CONFIG":
                known = (
                    {}
                    if value is None
                    else {word: one for word, one in value.items() if isinstance(one, CONFIG_TYPES.get(word, object))}
                )
                self._configs = _put(self._configs, _whose(subject), None if value is None else known)
            elif kind == "MODE":
                self._modes = _put(self._modes, _whose(subject), None if value is None else str(value["mode"]))
            elif kind == "NOOP" and isinstance(value, dict):
                for context, number in value["ids"].items():
                    self._raise_highest(context, int(number))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            logger.warning("a record of _schemas is not understood, and is left out: %s", error)

    def _apply_schema(self, subject: str, version: int, value: Any) -> None:
        if value is None:
            self._drop(subject, version)
            return
        fields: dict[str, Any] = {}
        if value.get("references"):
            fields["references"] = [
                {"name": str(row["name"]), "subject": str(row["subject"]), "version": int(row["version"])}
                for row in value["references"]
            ]
        fields |= {word: value[word] for word in ("metadata", "ruleSet") if isinstance(value.get(word), dict)}
        fields = {word: one for word, one in fields.items() if one}
        kind = str(value.get("schemaType") or AVRO)
        if not isinstance(value["schema"], str):
            raise ValueError("its schema is no text")
        self._keep(
            Stored(subject, version, int(value["id"]), kind, value["schema"], fields, bool(value.get("deleted")))
        )

    def _keep(self, stored: Stored) -> None:
        before = self._subjects.get(stored.subject, _NONE).get(stored.version)
        if before is not None and (before.id, before.content) != (stored.id, stored.content):
            self._drop(stored.subject, stored.version)
        context, at = context_of(stored.subject), (stored.subject, stored.version)
        versions = self._subjects.get(stored.subject, _NONE).with_item(stored.version, stored)
        self._subjects = self._subjects.with_item(stored.subject, versions)
        self._places = self._places.with_item((context, stored.id, *at), None)
        self._by_guid = self._by_guid.with_item((stored.guid, *at), None)
        for row in stored.references:
            self._holders = self._holders.with_item((*_referred(row, context), *at), None)
        self._contents = self._contents.with_item((context, stored.digest), stored.id)
        self._raise_highest(context, stored.id)

    def _raise_highest(self, context: str, number: int) -> None:
        if number > self._highest.get(context, 0):
            self._highest = self._highest.with_item(context, number)

    def _drop(self, subject: str, version: int) -> None:
        versions = self._subjects.get(subject, _NONE)
        stored = versions.get(version)
        if stored is None:
            return
        context, at = context_of(subject), (subject, version)
        self._subjects = _put(self._subjects, subject, versions.without(version) or None)
        self._by_guid = self._by_guid.without((stored.guid, *at))
        for row in stored.references:
            self._holders = self._holders.without((*_referred(row, context), *at))
        self._places = self._places.without((context, stored.id, *at))
        if not self._places_of(context, stored.id):
            self._contents = self._contents.without((context, stored.digest))

    def _places_of(self, context: str, number: int, most: int = 1) -> list[tuple[str, int]]:
        """The first places of an id: subjects and versions."""
        places = takewhile(lambda at: at[:2] == (context, number), self._places.keys((context, number, "", 0)))
        return [at[2:] for at in islice(places, most)]

    def highest_ids(self) -> Record:
        """A record that keeps the highest ids where compaction removes what had them.

        Its key is a NOOP's in another order, so that no NOOP takes its place.
        """
        return {"magic": 0, "keytype": "NOOP"}, {"ids": dict(self._highest.items())}

    def copy(self) -> RegistryState:
        """The same state, which later records do not change."""
        other = RegistryState()
        vars(other).update(vars(self))
        return other

    def highest_id(self, context: str) -> int:
        """The highest id that was ever given in a context."""
        return self._highest.get(context, 0)

    def counts(self) -> SchemaCounts:
        """Looks at each version."""
        schemas = len({at[:2] for at in self._places})
        live = [[one.deleted for one in versions.values()] for versions in self._subjects.values()]
        versions = sum(rows.count(False) for rows in live)
        return SchemaCounts(schemas, sum(not all(rows) for rows in live), versions, sum(map(len, live)) - versions)

    # ---- questions -------------------------------------------------------------------------------------------------

    def contexts(self, shown: Callable[[str], bool]) -> list[str]:
        """The contexts that have a subject which is ``shown``, and the default one."""
        return sorted({DEFAULT_CONTEXT, *(context_of(subject) for subject in self._subjects if shown(subject))})

    def names_of(self, subject: str) -> tuple[str, ...]:
        """The subject, and the one that it is an alias of."""
        alias = self._configs.get(_whose(subject), {}).get("alias")
        return (subject,) if not alias else (subject, alias)

    def subjects(self, prefix: str = "", *, deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """Names of subjects that begin so; ``:*:`` stands for all contexts."""
        listed = []
        anywhere = prefix.startswith(":*:")
        for subject, versions in self._subjects.items(None if anywhere else prefix):
            if anywhere and not subject.removeprefix(f":{context_of(subject)}:").startswith(prefix[3:]):
                continue
            if not anywhere and not subject.startswith(prefix):
                break
            gone = all(stored.deleted for stored in versions.values())
            if gone if deleted_only else deleted or not gone:
                listed.append(subject)
        return listed

    def versions(self, subject: str, *, deleted: bool = False, deleted_only: bool = False) -> list[int]:
        """Versions of a subject. Raises RegistryRefusal: 40401."""
        rows = self._rows(subject)
        shown = [one.version for one in rows if (one.deleted if deleted_only else deleted or not one.deleted)]
        if not shown:
            raise RegistryRefusal(40401, f"Subject '{subject}' not found.")
        return shown

    def version(self, subject: str, version: str, *, deleted: bool = False) -> Stored:
        """One version, by its number or ``latest``. Raises RegistryRefusal: 40401, 40402, 42202."""
        number = parse_version(version)
        rows = [one for one in self._rows(subject) if deleted or not one.deleted]
        if not rows:
            raise RegistryRefusal(40401, f"Subject '{subject}' not found.")
        chosen = rows[-1] if number < 0 else next((one for one in rows if one.version == number), None)
        if chosen is None:
            raise RegistryRefusal(40402, f"Version {number} not found.")
        return chosen

    def by_id(self, number: int, subject: str = "") -> Stored:
        """A schema by its id, in the subject's context; without one, or where that has none, in any that has the
        subject. Raises RegistryRefusal: 40403."""
        context = context_of(subject)
        places = self._places_of(context, number)
        if not places and subject and context == DEFAULT_CONTEXT:
            names = [f":{one}:{subject}" for one in self._highest]
            places = [at for one in names for at in self._places_of(context_of(one), number, _INT_MAX) if at[0] == one]
        if not places:
            raise RegistryRefusal(40403, f"Schema {number} not found")
        return self._at(*places[0])

    def _at(self, subject: str, version: int) -> Stored:
        stored = self._subjects.get(subject, _NONE).get(version)
        assert stored is not None, "an index leads to what is there"
        return stored

    def by_guid(self, guid: str, shown: Callable[[str], bool]) -> list[Stored]:
        """The versions with this content in subjects that are ``shown``. Raises RegistryRefusal: 40403."""
        guid = guid.lower()
        places = takewhile(lambda at: at[0] == guid, self._by_guid.keys((guid, "", 0)))
        rows = [self._at(subject, version) for _, subject, version in places if shown(subject)]
        if not rows:
            raise RegistryRefusal(40403, f"Schema {guid[:40]} not found")
        return rows

    def places(self, number: int, subject: str = "", *, deleted: bool = False) -> list[tuple[str, int]]:
        """Where an id stands: subjects and versions. Raises RegistryRefusal: 40403."""
        context = context_of(self.by_id(number, subject).subject)
        return [at for at in self._places_of(context, number, _INT_MAX) if deleted or not self._at(*at).deleted]

    def all(self, prefix: str, *, deleted: bool, latest: bool) -> list[Stored]:
        """Versions of all subjects that begin so."""
        rows: list[Stored] = []
        for subject in self.subjects(prefix, deleted=deleted):
            own = [one for one in self._rows(subject) if deleted or not one.deleted]
            rows += own[-1:] if latest else own
        return rows

    def referenced_by(self, subject: str, version: str, shown: Callable[[str], bool]) -> list[int]:
        """Ids of the schemas in subjects that are ``shown`` which refer to a version. Raises RegistryRefusal."""
        at = self.version(subject, version, deleted=True)
        return sorted({one.id for one in self._referring(at) if shown(one.subject)})

    def _referring(self, at: Stored) -> Iterator[Stored]:
        mine = at.subject, at.version
        for holder in takewhile(lambda holder: holder[:2] == mine, self._holders.keys((*mine, "", 0))):
            one = self._at(*holder[2:])
            if not one.deleted:
                yield one

    def _rows(self, subject: str) -> list[Stored]:
        versions = self._subjects.get(subject)
        if versions is None:
            versions = self._subjects.get(self._configs.get(_whose(subject), {}).get("alias") or "", _NONE)
        return list(versions.values())

    def config(self, subject: str | None, *, default: bool = False) -> dict[str, Any]:
        """The settings of a subject or, with ``default``, those that hold for it. Raises RegistryRefusal: 40408."""
        config = self._configs.get(_whose(subject))
        if config is None and subject is not None and not default:
            raise RegistryRefusal(40408, f"Subject '{subject}' does not have subject-level compatibility configured")
        if config is None and subject is not None:
            config = self._configs.get(_whose(f":{context_of(subject)}:")) or self._configs.get(_whose(None))
        return {"compatibilityLevel": DEFAULT_LEVEL} | (config or {})

    def mode(self, subject: str | None, *, default: bool = False) -> str:
        """The mode of a subject or, with ``default``, the one that holds for it. Raises RegistryRefusal: 40409."""
        if self._modes.get(_whose(None)) == "READONLY_OVERRIDE" and default:
            return "READONLY_OVERRIDE"
        mode = self._modes.get(_whose(subject))
        if mode is None and subject is not None and not default:
            raise RegistryRefusal(40409, f"Subject '{subject}' does not have subject-level mode configured")
        if mode is None and subject is not None:
            mode = self._modes.get(_whose(f":{context_of(subject)}:")) or self._modes.get(_whose(None))
        return mode or DEFAULT_MODE

    # ---- schemas ---------------------------------------------------------------------------------------------------

    def parsed(self, stored: Stored) -> ParsedSchema:
        """A stored version as it is compared. Raises RegistryRefusal."""
        return parse(stored.kind, stored.text, self._resolved(stored.references, context_of(stored.subject)))

    def _resolved(self, rows: list[dict[str, Any]], context: str) -> dict[str, str]:
        """The texts that references lead to, by name, each behind those that it needs. Raises RegistryRefusal."""
        texts: dict[str, str] = {}
        waiting = [(row, context, False) for row in reversed(rows)]
        steps = 0
        while waiting:
            row, holder, ready = waiting.pop()
            steps += 1
            if steps > 2 * REFERENCES_MAX:
                raise RegistryRefusal(42201, f"Invalid schema: more than {REFERENCES_MAX} schemas are referred to")
            if row["name"] in texts:
                continue
            try:
                stored = self.version(qualified(row["subject"], holder), str(row["version"]))
            except RegistryRefusal as error:
                raise RegistryRefusal(42201, f"Invalid schema: reference {row['name']!r}: {error}") from None
            if ready or not stored.references:
                texts[row["name"]] = stored.text
            else:
                inside = context_of(stored.subject)
                waiting += [(row, holder, True), *((inner, inside, False) for inner in reversed(stored.references))]
        return texts

    def _candidate(self, subject: str, body: Mapping[str, Any], normalize: bool) -> tuple[Stored, ParsedSchema]:
        """What a request's body describes, with neither version nor id. Raises RegistryRefusal."""
        text, kind = body.get("schema"), body.get("schemaType") or AVRO
        if not isinstance(text, str) or not text.strip():
            raise RegistryRefusal(42201, "Invalid schema: the request has no schema")
        if kind not in KINDS:
            name = f" {kind[:40]}" if isinstance(kind, str) else ""
            raise RegistryRefusal(42201, f"Invalid schema type{name}; there are {', '.join(KINDS)}")
        fields: dict[str, Any] = {}
        if body.get("references"):
            fields["references"] = self._reference_rows(body["references"], context_of(subject))
        for word in ("metadata", "ruleSet"):
            if body.get(word):
                if not isinstance(body[word], dict):
                    raise RegistryRefusal(42201, f"Invalid schema: {word} must be an object")
                _check_nesting(word, body[word])
                fields[word] = body[word]
        if not isinstance((fields.get("metadata") or {}).get("properties") or {}, dict):
            raise RegistryRefusal(42201, "Invalid schema: the metadata's properties must be an object")
        normalize = normalize or bool(self.config(subject, default=True).get("normalize"))
        texts = self._resolved(fields.get("references", []), context_of(subject))
        model = parse(kind, text, texts, normalize)
        return Stored(subject, 0, 0, kind, model.text, fields, deleted=False), model

    def _reference_rows(self, rows: Any, context: str) -> list[dict[str, Any]]:
        if not isinstance(rows, list) or len(rows) > REFERENCES_MAX:
            raise RegistryRefusal(42201, f"Invalid schema: references are a list of at most {REFERENCES_MAX} rows")
        checked = []
        for row in rows:
            if (
                not isinstance(row, dict)
                or not all(isinstance(row.get(word), str) for word in ("name", "subject"))
                or not isinstance(row.get("version", -1), int | str)
            ):
                raise RegistryRefusal(42201, "Invalid schema: a reference has a name, a subject and a version")
            at = self.version(qualified(row["subject"], context), str(row.get("version", -1)))
            checked.append({"name": row["name"], "subject": row["subject"], "version": at.version})
        return checked

    def _same(self, candidate: Stored, model: ParsedSchema, *, deleted: bool) -> Stored | None:
        """The newest version of the subject that is the same schema."""
        rows: list[Stored] = [one for one in self._rows(candidate.subject)[::-1] if deleted or not one.deleted]
        for one in rows:
            if one.content == candidate.content:
                return one
        for one in rows:
            if (one.kind, one.fields) == (candidate.kind, candidate.fields):
                try:
                    if self.parsed(one).identity == model.identity:
                        return one
                except RegistryRefusal:  # what another registry took, and this one does not
                    continue
        return None

    def look_up(self, subject: str, body: Mapping[str, Any], *, normalize: bool, deleted: bool) -> dict[str, Any]:
        """The version of a subject that is this schema. Raises RegistryRefusal: 40401, 40403, 42201."""
        self.versions(subject, deleted=deleted)
        same = self._same(*self._candidate(subject, body, normalize), deleted=deleted)
        if same is None:
            raise RegistryRefusal(40403, "Schema not found")
        return same.shown()

    def register(self, subject: str, body: Mapping[str, Any], *, normalize: bool) -> Plan:
        """A new version of a subject, or the one that is there. Raises RegistryRefusal: 409, 422xx.

        In mode IMPORT a version that is there makes way for the one that is sent, as Confluent's registry has it.
        """
        check_subject(subject)
        number, version = _number_of(body, "id"), _number_of(body, "version")
        mode = self._writable(subject)
        candidate, model = self._candidate(subject, body, normalize)
        same = self._same(candidate, model, deleted=False)
        if same is not None and number in (0, same.id) and version in (0, same.version):
            return Plan([], {"id": same.id})
        if (mode == "IMPORT") != (number > 0):
            state = "in import mode" if mode == "IMPORT" else "not in import mode"
            raise RegistryRefusal(42205, f"Subject {subject} is {state}")
        context = context_of(subject)
        if mode == "IMPORT":
            places = self._places_of(context, number)
            if places and self._at(*places[0]).content != candidate.content:
                raise RegistryRefusal(42205, f"Overwrite new schema with id {number} is not permitted.")
        else:
            problems = self._problems(candidate, model)
            if problems:
                details = ", ".join(problems)
                raise RegistryRefusal(
                    409,
                    "Schema being registered is incompatible with an earlier schema for subject "
                    f'"{subject}", details: [{details}]',
                )
            number = self._contents.get((context, candidate.digest), 0) or self._highest.get(context, 0) + 1
        versions = self._subjects.get(subject, _NONE)
        following = (versions.last() or 0) + 1
        if number > _INT_MAX or (not version and following > _INT_MAX):
            raise RegistryRefusal(50001, "there is no number left for another schema")
        if mode != "IMPORT" and version not in (0, following):
            raise RegistryRefusal(42201, f"Version is not one more than previous version: {following} is the next one")
        stored = candidate._replace(version=version or following, id=number)
        replaced = versions.get(stored.version)
        kept = [self.highest_ids()] if replaced is not None and replaced.id != number else []
        return Plan([*kept, stored.record(deleted=False)], {"id": number})

    def try_out(self, subject: str, body: Mapping[str, Any], version: str | None, *, normalize: bool) -> list[str]:
        """What is in the way of a schema, for one version or all that the level asks for. Raises RegistryRefusal."""
        candidate, model = self._candidate(subject, body, normalize)
        if version is None:
            return self._problems(candidate, model)
        number = parse_version(version)
        rows = [one for one in self._rows(subject) if not one.deleted]
        if number > 0:
            rows = [self.version(subject, version)]
        return self._problems(candidate, model, rows[-1:])

    def _problems(self, candidate: Stored, model: ParsedSchema, against: list[Stored] | None = None) -> list[str]:
        config = self.config(candidate.subject, default=True)
        level = config["compatibilityLevel"]
        rows = [one for one in self._rows(candidate.subject) if not one.deleted] if against is None else against
        if (group := config.get("compatibilityGroup")) is not None:
            rows = [one for one in rows if one.properties.get(group) == candidate.properties.get(group)]
        if against is None and not level.endswith("_TRANSITIVE"):
            rows = rows[-1:]
        if level != "NONE" and len(rows) > COMPARED_MAX:
            raise RegistryRefusal(
                42209, f"{level} compares with {len(rows)} versions, and {COMPARED_MAX} is the most: delete old ones"
            )
        told: list[str] = []
        for one in [] if level == "NONE" else reversed(rows):
            other = self.parsed(one)
            listed: list[Change] = []
            if level.startswith(("BACKWARD", "FULL")):
                listed += changes(other, model)
            if level.startswith(("FORWARD", "FULL")):
                listed += changes(model, other)
            if listed:
                told += [f"{{errorType:'{rule}', description:'at {path}'}}" for rule, path in dict.fromkeys(listed)]
                told += [f"{{oldSchemaVersion: {one.version}}}", f"{{compatibility: '{level}'}}"]
                break
        return told

    # ---- changes ---------------------------------------------------------------------------------------------------

    def _writable(self, subject: str) -> str:
        mode = self.mode(subject, default=True)
        if mode.startswith("READONLY"):
            raise RegistryRefusal(42205, f"Subject {subject} is in read-only mode")
        return mode

    def delete_version(self, subject: str, version: str, *, permanent: bool) -> Plan:
        """Delete a version: so that it is not shown, or for good. Raises RegistryRefusal."""
        self._writable(subject)
        stored = self.version(subject, version, deleted=True)
        if parse_version(version) < 0 and not permanent:
            stored = self.version(subject, version)
        self._check_not_referenced([stored])
        about = f"Subject '{subject}' Version {stored.version} was"
        if permanent and not stored.deleted:
            raise RegistryRefusal(40407, f"{about} not deleted first before being permanently deleted")
        if not permanent and stored.deleted:
            raise RegistryRefusal(40406, f"{about} soft deleted. Set permanent=true to delete permanently")
        records = [self.highest_ids(), stored.tombstone()] if permanent else [stored.record(deleted=True)]
        return Plan(records, stored.version)

    def delete_subject(self, subject: str, *, permanent: bool) -> Plan:
        """Delete all versions of a subject. Raises RegistryRefusal."""
        self._writable(subject)
        rows = self._rows(subject)
        live = [one for one in rows if not one.deleted]
        if not rows:
            raise RegistryRefusal(40401, f"Subject '{subject}' not found.")
        if permanent:
            if live:
                raise RegistryRefusal(
                    40405, f"Subject '{subject}' was not deleted first before being permanently deleted"
                )
            return Plan([self.highest_ids(), *(one.tombstone() for one in rows)], [one.version for one in rows])
        if not live:
            raise RegistryRefusal(
                40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
            )
        self._check_not_referenced(live)
        name = live[0].subject
        key = {"keytype": "DELETE_SUBJECT", "subject": name, "magic": 0}
        records: list[Record] = [(key, {"subject": name, "version": live[-1].version})]
        records += [_setting("CONFIG", name, None)] if _whose(name) in self._configs else []
        records += [_setting("MODE", name, None)] if _whose(name) in self._modes else []
        return Plan(records, [one.version for one in live])

    def _check_not_referenced(self, rows: list[Stored]) -> None:
        for one in rows:
            if any(other.subject != one.subject or other.version != one.version for other in self._referring(one)):
                raise RegistryRefusal(
                    42206, f"One or more references exist to the schema {one.subject}, version {one.version}."
                )

    def set_config(self, subject: str | None, body: Mapping[str, Any]) -> Plan:
        """Change settings of a subject, a context or all. Raises RegistryRefusal: 42203."""
        given = {("compatibilityLevel" if word == "compatibility" else word): value for word, value in body.items()}
        unknown = [word for word, value in given.items() if word not in CONFIG_TYPES and value is not None]
        if unknown:
            raise RegistryRefusal(
                42203, f"{unknown[0][:80]!r} is no setting of this registry: {', '.join(sorted(CONFIG_TYPES))}"
            )
        for word, kind in CONFIG_TYPES.items():
            if given.get(word) is not None and not isinstance(given[word], kind):
                raise RegistryRefusal(42203, f"{word} must be {'true or false' if kind is bool else 'a text'}")
        level = given.get("compatibilityLevel")
        if level is not None and level not in LEVELS:
            raise RegistryRefusal(42203, f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}")
        merged = {
            word: value
            for word, value in (self._configs.get(_whose(subject), {}) | given).items()
            if value is not None and word in CONFIG_TYPES
        }
        if subject is not None:
            check_subject(subject, setting=True)
            self._writable(subject)
        answer = {("compatibility" if word == "compatibilityLevel" else word): value for word, value in merged.items()}
        return Plan([_setting("CONFIG", subject, merged)], answer)

    def delete_config(self, subject: str | None) -> Plan:
        """Forget settings; the answer has them. Raises RegistryRefusal: 40408."""
        before = self.config(subject)
        return Plan([_setting("CONFIG", subject, None)] if _whose(subject) in self._configs else [], before)

    def set_mode(self, subject: str | None, body: Mapping[str, Any], *, force: bool) -> Plan:
        """Change the mode of a subject, a context or all. Raises RegistryRefusal: 42204, 42205."""
        mode = body.get("mode")
        if mode not in MODES:
            raise RegistryRefusal(42204, f"Invalid mode. Valid values are {', '.join(MODES)}")
        if subject is not None:
            check_subject(subject, setting=True)
        if mode == "IMPORT" and not force and self.mode(subject, default=True) != "IMPORT":
            whole = subject is None or subject.endswith(":")
            if self.subjects(subject or "", deleted=True) if whole else self._subjects.get(subject or ""):
                raise RegistryRefusal(42205, "Cannot import since found existing subjects")
        return Plan([_setting("MODE", subject, {"mode": mode})], {"mode": mode})

    def delete_mode(self, subject: str | None) -> Plan:
        """Forget a mode; the answer has it. Raises RegistryRefusal: 40409."""
        before = self.mode(subject)
        return Plan([_setting("MODE", subject, None)] if _whose(subject) in self._modes else [], {"mode": before})


def _put(table: SortedMap[K, V], key: K, value: V | None) -> SortedMap[K, V]:
    """The table with the value; None: without the key."""
    return table.without(key) if value is None else table.with_item(key, value)


def _whose(subject: str | None) -> tuple[str, ...]:
    """The key of a setting: of a subject or a context; None: of all."""
    return () if subject is None else (subject,)


def _referred(row: Mapping[str, Any], context: str) -> tuple[str, int]:
    """The subject and version that a reference leads to, from a schema in that context."""
    return qualified(row["subject"], context), row["version"]


def _check_nesting(word: str, value: Any) -> None:
    try:
        formats.check_nesting(text_of(value))
    except (FormatError, RecursionError):
        raise RegistryRefusal(42209, f"Invalid schema: {word} is nested deeper than {DEPTH_MAX} levels") from None


def _setting(kind: str, subject: str | None, value: dict[str, Any] | None) -> Record:
    return {"keytype": kind, "subject": subject, "magic": 0}, value


def _number_of(body: Mapping[str, Any], word: str) -> int:
    """A positive number of a body; 0 where it has none."""
    value = body.get(word)
    if value is None or value == -1:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _INT_MAX:
        raise RegistryRefusal(
            42202 if word == "version" else 42207, f"the {word} must be a number from 1 to {_INT_MAX}"
        )
    return value


def parse_version(text: str) -> int:
    """The number of a version; -1 is the latest. Raises RegistryRefusal: 42202."""
    if text in {"latest", "-1"}:
        return -1
    if not re.fullmatch("[0-9]{1,10}", text) or not 0 < int(text) <= _INT_MAX:
        raise RegistryRefusal(
            42202,
            f"The specified version '{text[:40]}' is not a valid version id. Allowed values are between "
            f'[1, 2^31-1] and the string "latest"',
        )
    return int(text)


def check_subject(subject: str, *, setting: bool = False) -> None:
    """Raise RegistryRefusal, 42208, for what cannot be a subject; a setting may be of a context, ``:.ctx:``."""
    context = context_of(subject)
    local = subject.removeprefix(f":{context}:")
    plain = all(character.isprintable() for character in subject) and len(subject) <= SUBJECT_MAX
    if not plain or local in {"__GLOBAL", "__EMPTY"} or (not local and not setting) or local.startswith(":."):
        raise RegistryRefusal(42208, f"The specified subject '{subject[:80]}' is not a valid subject.")
