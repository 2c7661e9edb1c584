"""The registry in a fleet with logins and ACLs: who may do what, asked by HTTP and by Confluent's own client."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError

from tests.cli.shell import Shell
from tests.support.certificates import Authority, replaced
from tests.support.guarded_registry import ADMIN, ALICE, LOGINS, REGISTRY, Guarded, basic
from tests.support.secured import BROKER_PASSWORD, BROKER_USER, PASSWORD, USER
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    found = Guarded(tmp_path_factory.mktemp("guarded"))
    yield found
    found.close()


TEXT = {"schema": '{"type":"record","name":"R","fields":[]}'}


def test_a_subject_is_a_topic_of_the_acls(guarded: Guarded) -> None:
    ask = guarded.registry.ask
    hers, own = "/subjects/hers-value", "/subjects/own-value"
    assert ask("GET", "/") == {}, "whoever looks whether it lives needs no login"
    for login in ({}, basic(USER, "wrong"), basic("nobody", "x"), {"Authorization": "Basic x"}):
        assert ask("GET", "/subjects", **login) == 401
        assert ask("POST", f"{own}/versions", TEXT, **login) == 401
    number = ask("POST", f"{own}/versions", TEXT, **ADMIN)["id"]
    ask("POST", f"{hers}/versions", {"schema": '"long"'}, **ADMIN)
    assert ask("GET", "/subjects", **ALICE) == []
    assert ask("GET", "/schemas", **ALICE) == []
    assert ask("GET", f"/schemas/ids/{number}/subjects", **ALICE) == []
    for method, path, body in (
        ("GET", f"{own}/versions/1", None), ("GET", f"{own}/versions", None), ("POST", own, TEXT),
        ("POST", f"{own}/versions", TEXT), ("DELETE", own, None), ("DELETE", f"{own}/versions/1", None),
        ("GET", f"/schemas/ids/{number}", None), ("GET", f"/schemas/ids/{number}/schema", None),
        ("POST", f"/compatibility{own}/versions/latest", TEXT), ("GET", "/config/own-value", None),
        ("PUT", "/config/own-value", {"compatibility": "NONE"}), ("PUT", "/config", {"compatibility": "NONE"}),
        ("PUT", "/mode", {"mode": "READONLY"}), ("DELETE", "/mode", None), ("PUT", "/mode/:.c:", {"mode": "IMPORT"}),
        ("GET", f"{own}/metadata", None), ("GET", f"{own}/versions/1/referencedby", None), ("GET", "/config", None),
    ):  # fmt: skip
        assert ask(method, path, body, **ALICE) == 40301, (method, path)
    topic = ("--topic", "schemas:own-")
    guarded.acl("add", USER, *topic, "--pattern", "prefixed", "--operation", "Read")
    eventually(lambda: ask("GET", "/subjects", **ALICE) == ["own-value"], "the ACL is followed")
    assert ask("GET", f"/schemas/ids/{number}", **ALICE)["schema"] == TEXT["schema"]
    assert [row["subject"] for row in ask("GET", "/schemas", **ALICE)] == ["own-value"]
    assert ask("POST", own, TEXT, **ALICE)["id"] == number
    assert ask("POST", f"{own}/versions", TEXT, **ALICE) == 40301
    holder = {"schema": '"R"', "references": [{"name": "R", "subject": "own-value", "version": 1}]}
    held = ask("POST", "/subjects/hers-holder/versions", holder, **ADMIN)["id"]
    assert ask("GET", f"{own}/versions/1/referencedby", **ADMIN) == [held]
    assert ask("GET", f"{own}/versions/1/referencedby", **ALICE) == [], "what may not be described is not listed"
    assert ask("DELETE", "/subjects/hers-holder", **ADMIN) == [1]
    refers = TEXT | {"references": [{"name": "x", "subject": "hers-value", "version": 1}]}
    assert ask("POST", f"/compatibility{own}/versions", refers, **ALICE) == 40301, "what it refers to is read, too"
    guarded.acl("add", USER, *topic, "--pattern", "prefixed", "--operation", "All")
    eventually(lambda: ask("PUT", "/config/own-value", {"compatibility": "NONE"}, **ALICE) != 40301, "all of it")
    assert ask("PUT", "/mode/own-more", {"mode": "IMPORT"}, **ALICE) == 40301, "ids are everybody's"
    assert ask("PUT", "/config/own-alias", {"alias": "hers-value"}, **ALICE) == {"alias": "hers-value"}
    assert ask("GET", "/subjects/own-alias/versions/1", **ALICE) == 40301, "an alias gives no rights"
    assert ask("DELETE", "/subjects/own-alias", **ALICE) == 40301
    assert ask("DELETE", own, **ALICE) == [1]
    guarded.acl("remove", USER, *topic, "--pattern", "prefixed")
    eventually(lambda: ask("GET", own + "/versions", **ALICE) == 40301, "rights that are taken away are gone")
    assert f"Principal = User:{USER} is Denied Operation = Write" in guarded.log.read_text()
    assert f"User:{USER} is Allowed Operation = Delete" in guarded.log.read_text()
    assert PASSWORD not in guarded.log.read_text()


def test_a_stock_client_logs_in_by_password_and_by_token(guarded: Guarded) -> None:
    guarded.acl("add", "bob", "--topic", "schemas:tokens", "--operation", "Write", "--operation", "Read")
    admin = guarded.registry.client(**{"basic.auth.user.info": f"{BROKER_USER}:{BROKER_PASSWORD}"})
    number = admin.register_schema("tokens", Schema('"int"', "AVRO"))
    guarded.issuer.user = "bob"
    bearer = {
        "bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.logical.cluster": "any",
        "bearer.auth.identity.pool.id": "any",
    }  # fmt: skip
    bob = guarded.registry.client(**bearer, **{"bearer.auth.token": guarded.issuer.token(sub="bob")})
    ask, token = guarded.registry.ask, {"Authorization": f"Bearer {guarded.issuer.token(sub='bob')}"}
    eventually(lambda: ask("GET", "/subjects", **token) == ["tokens"], "the ACL is followed")
    assert bob.register_schema("tokens", Schema('"int"', "AVRO")) == number
    forged = guarded.issuer.token(sub="bob")[:-4] + "AAAA"
    other = guarded.registry.client(**bearer, **{"bearer.auth.token": forged})
    with pytest.raises(SchemaRegistryError) as refused:
        other.register_schema("tokens", Schema('"int"', "AVRO"))
    assert refused.value.http_status_code == 401


def test_the_command_line_logs_in_as_at_the_brokers(guarded: Guarded) -> None:
    shell = Shell(guarded.fleet)
    own, url = ("--command-config", guarded.files[BROKER_USER]), guarded.registry.url
    number = guarded.registry.ask("POST", "/subjects/listed/versions", TEXT, **ADMIN)["id"]
    rows = shell.json("schemas", "list", "--prefix", "listed", "--registry", url, *own)
    assert [(row["subject"], row["id"]) for row in rows] == [("listed", number)]
    assert "(401)" in shell.fails("schemas", "list", "--registry", url)
    assert "use https" in shell.fails("schemas", "list", "--registry", "http://192.0.2.1:8081", *own)


def test_logins_that_fail_keep_nobody_waiting(guarded: Guarded) -> None:
    """Many wrong passwords at once: some are tried, the others refused at once; who is known is answered meanwhile."""
    ask = guarded.registry.ask
    assert ask("GET", "/subjects", **ADMIN) != 401
    with ThreadPoolExecutor(40) as pool:
        wrong = [pool.submit(ask, "GET", "/subjects", **basic(USER, f"no-{number}")) for number in range(40)]
        begun_s = time.monotonic()
        assert isinstance(ask("GET", "/subjects", **ADMIN), list)
        assert time.monotonic() - begun_s < 20
        codes = {answer.result() for answer in wrong}
    assert codes == {401, 503}


def test_a_body_of_a_stranger_is_not_read(guarded: Guarded) -> None:
    address = urlsplit(guarded.registry.url)
    with socket.create_connection((address.hostname, address.port), 60) as connection:
        head = "POST /subjects/s/versions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1900000\r\n\r\n"
        connection.sendall(head.encode())
        assert b"401" in connection.recv(1000).splitlines()[0]


def test_brokers_that_are_away_let_nobody_in(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    try:
        ask = guarded.registry.ask
        assert ask("POST", "/subjects/s/versions", TEXT, **ADMIN)["id"] == 1
        for broker in guarded.fleet.brokers:
            broker.pause()
        assert ask("GET", "/subjects", **basic(USER, PASSWORD)) == 50001
        assert ask("GET", "/subjects", **ADMIN) == ["s"], "who was known a moment ago reads on"
        for broker in guarded.fleet.brokers:
            broker.resume()
        eventually(lambda: ask("GET", "/subjects", **basic(USER, PASSWORD)) == [], "the login is checked again")
    finally:
        guarded.close()


def test_tls_and_what_needs_it(guarded: Guarded, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    pair = authority.pair("/CN=registry")
    files = tmp_path / "registry.pem", tmp_path / "registry.key"
    for file, text in zip(files, pair, strict=True):
        file.write_text(text)
    served = guarded.start("--tls-certificate", str(files[0]), "--tls-key", str(files[1]))
    try:
        assert served.url.startswith("https://")
        served.tls = ssl.create_default_context(cadata=authority.pem)
        assert isinstance(served.ask("GET", "/subjects", **ADMIN), list)
        other = Authority(tmp_path, "other")
        for file, text in zip(files, other.pair("/CN=registry"), strict=True):
            replaced(str(file), text)
        served.tls = ssl.create_default_context(cadata=other.pem)

        def answer() -> Any:
            with contextlib.suppress(URLError):
                return served.ask("GET", "/subjects", **ADMIN)
            return None

        assert isinstance(
            eventually(answer, "the renewed certificate is served", good=lambda given: given is not None), list
        )
    finally:
        served.process.kill()
    shell, config = Shell(guarded.fleet), ("--command-config", guarded.files[REGISTRY])
    refused = shell.run("registry", "--listen", "0.0.0.0", *LOGINS, *config, code=2)
    assert "--tls-certificate" in refused.stderr
    assert "without --login" in shell.fails("registry", *config)
    assert "know users" in shell.run("registry", *LOGINS, code=2).stderr
