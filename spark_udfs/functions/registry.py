"""A schema registry by its REST interface: schemas by id, the newest of a subject, registration. Kept per process.

A schema never changes under its id, so a fetched one is kept until the worker process ends; the newest schema of a
subject is fetched on the driver, when a query is planned.
Source: Confluent's schema registry API (v1), its wire format (byte 0, schema id in four bytes, the encoded value).
"""

from __future__ import annotations

import base64
import json
import ssl
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

from fleetlog.spark.client.failures import OptionError, RegistryError
from fleetlog.spark.client.write_settings import REGISTRY_SETTINGS

MAGIC = 0
PREFIX = struct.Struct(">bI")
TIMEOUT_S = 10.0
ATTEMPTS = 3
PAUSE_S = 0.2
AVRO = "AVRO"
MOST_BYTES = 16 << 20
MOST_REFERENCES = 200
CONTENT = "application/vnd.schemaregistry.v1+json"
USER, TOKEN, AUTHORITIES = REGISTRY_SETTINGS


class UnknownSchema(RegistryError):
    """There is no such schema or subject."""


class Schema(NamedTuple):
    """``kind``: AVRO, JSON or PROTOBUF; ``text`` as it was registered.

    ``references``: the texts that it refers to, each behind those that it needs itself.
    """

    id: int
    kind: str
    text: str
    references: tuple[str, ...] = ()


class _SameServer(urllib.request.HTTPRedirectHandler):
    """Follows redirects to the same server alone: a login is sent to the address that is named and to no other one."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """By urllib. Raises RegistryError."""
        here, there = (urllib.parse.urlsplit(url)[:2] for url in (req.full_url, newurl))
        if here != there:
            raise RegistryError(f"{req.full_url}: it leads to {newurl}; name the registry's address itself")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Registry:
    """One registry. ``settings``: those of `REGISTRY_SETTINGS`. Raises OptionError."""

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        given = dict(settings or {})
        unknown = sorted(given.keys() - set(REGISTRY_SETTINGS))
        if unknown:
            raise OptionError(
                f"setting {unknown[0]} of a registry is unknown; known are {', '.join(REGISTRY_SETTINGS)}"
            )
        if not url.startswith(("http://", "https://")):
            raise OptionError(f"a registry's address begins with http:// or https://, not {url!r}")
        self._url = url.rstrip("/")
        self._headers = {"Accept": CONTENT, "Content-Type": CONTENT}
        if given.get(USER):
            self._headers["Authorization"] = "Basic " + base64.b64encode(given[USER].encode()).decode()
        elif given.get(TOKEN):
            self._headers["Authorization"] = f"Bearer {given[TOKEN]}"
        try:
            tls = ssl.create_default_context(cafile=given.get(AUTHORITIES) or None)
        except OSError as problem:
            raise OptionError(f"setting {AUTHORITIES} of a registry: {given[AUTHORITIES]}: {problem}") from None
        self._opener = urllib.request.build_opener(_SameServer(), urllib.request.HTTPSHandler(context=tls))
        self._by_id: dict[int, Schema] = {}

    def schema(self, number: int) -> Schema:
        """The schema of an id. Raises UnknownSchema, RegistryError."""
        schema = self._by_id.get(number)
        if schema is None:
            answer = self._ask("GET", f"/schemas/ids/{number}")
            schema = self._by_id[number] = self._schema(number, answer)
        return schema

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject. Raises UnknownSchema, RegistryError."""
        answer = self._ask("GET", f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        schema = self._schema(int(answer["id"]), answer)
        self._by_id[schema.id] = schema
        return schema

    def register(self, subject: str, kind: str, text: str) -> Schema:
        """Register a schema, or find it; with its id. Raises RegistryError when it does not fit the ones before."""
        body = {"schema": text, **({} if kind == AVRO else {"schemaType": kind})}
        answer = self._ask("POST", f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)
        schema = Schema(int(answer["id"]), kind, text)
        self._by_id[schema.id] = schema
        return schema

    def _schema(self, number: int, answer: Mapping[str, Any]) -> Schema:
        kind, texts = str(answer.get("schemaType", AVRO)), dict[str, str]()
        if answer.get("references") and kind != AVRO:
            raise RegistryError(f"schema {number} of {self._url} refers to others, which only {AVRO} may")
        self._gather(number, answer, texts)
        return Schema(number, kind, str(answer["schema"]), tuple(texts.values()))

    def _gather(self, number: int, answer: Mapping[str, Any], texts: dict[str, str]) -> None:
        """Add what it refers to by name, each behind what that refers to. Raises RegistryError."""
        for row in answer.get("references") or ():
            name = str(row["name"])
            if name in texts:
                continue
            if len(texts) >= MOST_REFERENCES:
                raise RegistryError(f"schema {number} of {self._url} refers to more than {MOST_REFERENCES} others")
            subject = urllib.parse.quote(str(row["subject"]), safe="")
            there = self._ask("GET", f"/subjects/{subject}/versions/{int(row['version'])}")
            texts[name] = ""  # a circle ends here
            self._gather(number, there, texts)
            del texts[name]
            texts[name] = str(there["schema"])

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        for left in reversed(range(ATTEMPTS)):
            try:
                with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                    return json.loads(answer.read(MOST_BYTES))
            except urllib.error.HTTPError as problem:
                text = problem.read(2000).decode(errors="replace")
                if problem.code == 404:
                    raise UnknownSchema(f"{self._url}{path}: {text}") from None
                if problem.code < 500 or not left:
                    raise RegistryError(f"{self._url}{path}: {problem.code} {text}") from None
            except (OSError, ValueError, KeyError) as problem:
                if not left:
                    raise RegistryError(f"{self._url}{path}: {problem}") from problem
            time.sleep(PAUSE_S)
        raise AssertionError("the last attempt returns or raises")


_registries: dict[tuple[str, tuple[tuple[str, str], ...]], Registry] = {}


def shared_registry(url: str, settings: Mapping[str, str]) -> Registry:
    """This process's client of a registry."""
    key = url, tuple(sorted(settings.items()))
    registry = _registries.get(key)
    if registry is None:
        registry = _registries[key] = Registry(url, settings)
    return registry


def split_frame(data: bytes) -> tuple[int, memoryview]:
    """(schema id, encoded value). Raises ValueError for what is not framed so."""
    if len(data) < PREFIX.size or data[0] != MAGIC:
        raise ValueError("not in the registry's format: it begins with a zero byte and a schema id")
    return PREFIX.unpack_from(data)[1], memoryview(data)[PREFIX.size :]


def frame(number: int, value: bytes) -> bytes:
    """The value behind its schema's id."""
    return PREFIX.pack(MAGIC, number) + value
