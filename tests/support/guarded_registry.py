"""A fleet with ACLs, its issuer, and a schema registry in it, whose callers log in."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.cli.shell import Shell
from tests.support.issuer import Issuer
from tests.support.registry_process import RegistryProcess
from tests.support.secured import BROKER_PASSWORD, BROKER_USER, PASSWORD, SCRAM_MODULE, USER, guarded_fleet, jaas, users

REGISTRY, SECRET = "registry", "of-the-registry-9"
RIGHTS = (
    *(("--topic", "_schemas", "--operation", one) for one in ("Create", "Read", "Write", "DescribeConfigs")),
    ("--transactional-id", "fleetlog-registry", "--operation", "Write"),
    *(("--cluster", "--operation", one) for one in ("Describe", "DescribeConfigs")),
)
"""Those of the registry's own login, as docs/registry.md has them."""
LOGINS = ("--login", "SCRAM-SHA-256", "--login", "OAUTHBEARER")


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


ALICE, ADMIN = basic(USER, PASSWORD), basic(BROKER_USER, BROKER_PASSWORD)


class Guarded:
    """A fleet with ACLs, its issuer, and a registry in it."""

    def __init__(self, directory: Path) -> None:
        self.issuer = Issuer()
        self.fleet = guarded_fleet(directory / "fleet", **self.issuer.settings())
        users(self.fleet, "add", REGISTRY, "--password-stdin", password=SECRET)
        self.fleet.start()
        self.files = {
            user: self._file(directory, user, password)
            for user, password in ((REGISTRY, SECRET), (BROKER_USER, BROKER_PASSWORD))
        }
        for right in RIGHTS:
            self.acl("add", REGISTRY, *right)
        self.log = directory / "registry.log"
        self.registry = self.start()

    def _file(self, directory: Path, user: str, password: str) -> str:
        login = jaas(SCRAM_MODULE, username=user, password=password)
        file = directory / f"{user}.properties"
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={login}\n", "utf-8"
        )
        return str(file)

    def start(self, *options: str) -> RegistryProcess:
        with self.log.open("ab") as log:
            own = ("--command-config", self.files[REGISTRY])
            return RegistryProcess(self.fleet.bootstrap, *LOGINS, *own, *options, log=log)

    def acl(self, word: str, user: str, *right: str) -> None:
        more = ("--yes",) if word == "remove" else ()
        config = ("--command-config", self.files[BROKER_USER])
        Shell(self.fleet).run("acls", word, "--allow", "--principal", f"User:{user}", *right, *more, *config)

    def close(self) -> None:
        self.registry.process.kill()
        self.fleet.close()
        self.issuer.close()
