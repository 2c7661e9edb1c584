"""A schema registry small enough to read: the calls of Confluent's REST interface that readers and writers use."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class FakeRegistry:
    """Keeps schemas in memory. ``user`` is asked for if set; ``broken`` makes it answer with errors."""

    def __init__(self, user: str = "") -> None:
        self.schemas: list[tuple[str, str]] = []  # (type, text) by id - 1
        self.subjects: dict[str, list[int]] = {}
        self.calls: Counter[str] = Counter()
        self.serialized: dict[int, str] = {}
        self.references: dict[int, list[dict[str, Any]]] = {}
        self.guids: dict[str, int] = {}
        """Ids in the default context; -1: the schema is in another one alone, there with the id 1."""
        self.broken = 0
        self.leads_to = ""
        """Another address, to which it sends everybody."""
        self._user = user
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(None)

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, body: Any) -> None:
                registry.calls[self.path] += 1
                code, found = registry.handle(self.path, body, self.headers.get("Authorization", ""))
                code = 302 if registry.leads_to else code
                data = json.dumps(found).encode()
                self.send_response(code)
                if registry.leads_to:
                    self.send_header("Location", registry.leads_to + self.path)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, subject: str, text: str, kind: str = "AVRO") -> int:
        if (kind, text) not in self.schemas:
            self.schemas.append((kind, text))
        number = self.schemas.index((kind, text)) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def handle(self, path: str, body: Any, authorization: str) -> tuple[int, Any]:
        if self._user and authorization != "Basic " + base64.b64encode(self._user.encode()).decode():
            return 401, {"error_code": 401, "message": "wrong credentials"}
        if self.broken:
            self.broken -= 1
            return 503, {"error_code": 503, "message": "not now"}
        path, _, query = path.partition("?")
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"] and 1 <= int(parts[2]) <= len(self.schemas):
            kind, text = self.schemas[int(parts[2]) - 1]
            if query == "format=serialized":
                text = self.serialized.get(int(parts[2]), text)
            more: dict[str, Any] = {} if kind == "AVRO" else {"schemaType": kind}
            return 200, {"schema": text, **more, **self._referring(int(parts[2]))}
        if parts[:2] == ["schemas", "guids"] and parts[2] in self.guids:
            number = self.guids[parts[2]]
            return 200, [{"context": ":.other:", "id": 1}, *([{"context": ".", "id": number}] if number >= 0 else [])]
        if parts[0] == "subjects" and body is not None:
            return 200, {"id": self.add(parts[1], body["schema"], body.get("schemaType", "AVRO"))}
        if parts[0] == "subjects" and parts[1] in self.subjects:
            number = self.subjects[parts[1]][-1]
            kind, text = self.schemas[number - 1]
            row = {"id": number, "schema": text, "schemaType": kind, "version": len(self.subjects[parts[1]])}
            return 200, row | self._referring(number)
        return 404, {"error_code": 40403, "message": "not found"}

    def _referring(self, number: int) -> dict[str, Any]:
        return {"references": self.references[number]} if number in self.references else {}
