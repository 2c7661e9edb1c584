"""A small S3 in this process: objects in memory, conditional puts, multipart uploads, and URLs that are signed.

What an anonymous client asks must have a signature in its URL (version 4, of one key), which is verified, and ends:
that is what tests of signed URLs are about. Requests with an Authorization header are the brokers', and are believed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
import time
import uuid
from collections import Counter
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

KEY, SECRET, REGION = "test-key", "test-secret", "us-east-1"
NAME = "bucket"


class S3Server:
    """Serves until it is closed. ``signed`` counts the requests by signed URLs by their status."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.signed: Counter[int] = Counter()
        self.refuse = 0
        """So many requests by signed URLs are refused, as expired ones are."""
        self.late_s = 0.0
        """By so much the clock is ahead."""
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Bound", (_Handler,), {"s3": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that uses it as s3://bucket."""
        return {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self._server.server_address[1]}", "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
        }  # fmt: skip

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    s3: S3Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _begin(self) -> tuple[str, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        body = self._chunked() if "chunked" in self.headers.get("Transfer-Encoding", "") else b""
        body = body or self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = unquote(parts.path).removeprefix(f"/{NAME}").removeprefix("/")
        return name, dict(parse_qsl(parts.query, keep_blank_values=True)), body

    def _chunked(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _problem(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _unsigned(self, query: dict[str, str]) -> str:
        """Why a request is not served; '' for one of the brokers, or with a signature that holds."""
        if "Authorization" in self.headers:
            return ""
        if "X-Amz-Signature" not in query:
            return "AccessDenied"
        given = query.pop("X-Amz-Signature")
        canonical = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
        request = [
            self.command, urlsplit(self.path).path, canonical, f"host:{self.headers['Host']}", "", "host",
            "UNSIGNED-PAYLOAD",
        ]  # fmt: skip
        scope = query["X-Amz-Credential"].partition("/")[2]
        digest = hashlib.sha256("\n".join(request).encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", query["X-Amz-Date"], scope, digest])
        secret = f"AWS4{SECRET}".encode()
        for word in (*scope.split("/"), text):
            secret = hmac.new(secret, word.encode(), hashlib.sha256).digest()
        if secret.hex() != given:
            return "SignatureDoesNotMatch"
        made = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        ends = made + int(query["X-Amz-Expires"])
        with self.s3.lock:
            if self.s3.refuse:
                self.s3.refuse -= 1
                return "AccessDenied"
        return "" if time.time() + self.s3.late_s <= ends else "AccessDenied"

    def do_GET(self) -> None:
        """An object or a part of it, or the list of names."""
        name, query, _ = self._begin()
        by_url = "X-Amz-Signature" in query
        wrong = self._unsigned(query)
        if not name and not wrong:
            self._list(query.get("prefix", ""))
            return
        data = self.s3.objects.get(name)
        status = 403 if wrong else 404 if data is None else 206 if "Range" in self.headers else 200
        if by_url:
            with self.s3.lock:
                self.s3.signed[status] += 1
        if wrong or data is None:
            self._problem(status, wrong or "NoSuchKey")
            return
        first, last = 0, len(data) - 1
        more = {}
        if status == 206:
            begin, _, end = self.headers["Range"].removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
            more["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
        self._answer(status, data[first : last + 1], ETag=_etag(data), Last_Modified=formatdate(usegmt=True), **more)

    def do_HEAD(self) -> None:
        """As for an object."""
        self.do_GET()

    def _list(self, prefix: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size><LastModified>{now}</LastModified>"
            f"<ETag>{_etag(data)}</ETag></Contents>"
            for name, data in sorted(self.s3.objects.items())
            if name.startswith(prefix)
        )
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode())

    def do_PUT(self) -> None:
        """An object, also only if there is none, or a part of an upload."""
        name, query, body = self._begin()
        if wrong := self._unsigned(query):
            self._problem(403, wrong)
        elif "uploadId" in query:
            self.s3.uploads[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, ETag=_etag(body))
        elif self.headers.get("If-None-Match") == "*" and name in self.s3.objects:
            self._problem(412, "PreconditionFailed")
        else:
            self.s3.objects[name] = body
            self._answer(200, ETag=_etag(body))

    def do_POST(self) -> None:
        """The beginning or the end of an upload, or names to delete."""
        name, query, body = self._begin()
        told = f"<Bucket>{NAME}</Bucket><Key>{escape(name)}</Key>"
        if wrong := self._unsigned(query):
            self._problem(403, wrong)
            return
        if "delete" in query:
            kind, told = "DeleteResult", ""
            for named in re.findall("<Key>(.*?)</Key>", body.decode()):
                self.s3.objects.pop(unescape(named), None)
                told += f"<Deleted><Key>{named}</Key></Deleted>"
        elif "uploads" in query:
            upload = uuid.uuid4().hex
            self.s3.uploads[upload] = {}
            kind, told = "InitiateMultipartUploadResult", f"{told}<UploadId>{upload}</UploadId>"
        else:
            parts = self.s3.uploads.pop(query["uploadId"])
            data = b"".join(parts[number] for number in sorted(parts))
            self.s3.objects[name] = data
            kind, told = "CompleteMultipartUploadResult", f"{told}<ETag>{_etag(data)}</ETag>"
        self._answer(200, f"<{kind}>{told}</{kind}>".encode())


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
