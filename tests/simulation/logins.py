"""A registrar who gives out passwords and takes them away, and lodgers that log in by them, again and again.

Each round has a user of its own, so that a change that comes late spoils no later round. Lodgers log in by SCRAM,
renew the login on the same connection (KIP-368) or let their session end, and pause in the middle of a login, so that
its password may go meanwhile. What a broker knows when a message leaves for it is read from the broker itself: one that
has known a password and knows it no more serves no login, no renewal and no request by it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fleetlog.wire.messages as m
from fleetlog.brokers.logins.listener_settings import ListenerLogins
from fleetlog.brokers.logins.scram import (
    ITERATIONS_MIN,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    credential_of,
    random_text,
    salted_password,
)
from fleetlog.brokers.server.login import sasl_listener
from fleetlog.wire.errors import ErrorCode
from tests.simulation.clients import OK, Client

if TYPE_CHECKING:
    from fleetlog.brokers.logins.sasl import SaslListener
    from fleetlog.brokers.logins.users import ScramUsers
    from tests.simulation.network import Wire
    from tests.simulation.world import World

MECHANISM, CODE = ScramMechanism.SHA_256, 1
SESSION_MS: Final = 700
LODGERS: Final = ("l1", "l2")
INVARIANTS: Final = (
    "logins by passwords that count", "logins by passwords that are gone", "passwords in the end",
)  # fmt: skip
"""What thousands of histories must show often. Requests over a connection that should be closed are rare: it is."""
REFUSED = ErrorCode.SASL_AUTHENTICATION_FAILED
_MARGIN_S = 0.002


def logins_of(users: ScramUsers) -> SaslListener:
    """How lodgers log in at a broker."""
    logins = ListenerLogins((MECHANISM.value,), {}, {MECHANISM.value: SESSION_MS})
    return sasl_listener(logins, users, b"a secret of the fleet")


class Account(NamedTuple):
    """A user with one password; with another one it is another account."""

    user: str
    password: str
    salt: bytes
    salted: bytes

    @property
    def credential(self) -> ScramCredential:
        """What brokers keep of it."""
        return credential_of(MECHANISM, self.salted, self.salt, ITERATIONS_MIN)


def account_of(user: str, password: str) -> Account:
    """With a salt that follows from both."""
    salt = f"salt of {user} and {password}".encode()
    return Account(user, password, salt, salted_password(MECHANISM, password, salt, ITERATIONS_MIN))


class Lodger(Client):
    """Logs in, asks, renews its login; tells the oracle what it was served."""

    def __init__(self, registrar: Registrar, name: str) -> None:
        super().__init__(registrar.world, name)
        self._registrar = registrar
        self._ends: dict[int, tuple[Wire, float]] = {}
        self.world.network.logging_in.add(name)

    async def stay(self, account: Account) -> None:
        """At one broker after the other, as long as the round lasts."""
        while account in self._registrar.open and not self.world.closing:
            broker = self.any_broker()
            await self._visit(broker, account)
            self.hang_up()
            await self.pause(0.01, 0.1)

    async def _visit(self, broker: int, account: Account) -> None:
        if not await self.log_in(broker, account):
            return
        for _ in range(self.rng.randint(0, 2)):
            await self.pause(0.0, 0.2)
            await self.request(broker, account)
        roll = self.rng.random()
        if roll < 0.6 and not await self.log_in(broker, account):
            return
        if roll > 0.8:
            await self.pause(SESSION_MS / 1000, SESSION_MS / 1000 + 0.2)
        for _ in range(self.rng.randint(1, 2)):
            await self.pause(0.0, 0.2)
            await self.request(broker, account)

    async def log_in(self, broker: int, account: Account) -> bool | None:
        """Log in, or renew that; None: there was no answer."""
        registrar, oracle = self._registrar, self.world.oracle
        client = ScramClient(MECHANISM, account.user, account.password, random_text(self.rng.getrandbits))
        known = registrar.knows(broker, account)
        handshake = await self.ask(broker, m.request_class(17)(version=1, mechanism=MECHANISM.value), 1)
        if handshake is None or handshake.error_code != OK:
            return None
        begun = self._connection(broker)
        challenge = await self._token(broker, client.first())
        if challenge is None or challenge.error_code != OK:
            return None
        await self.pause(0.0, self.rng.choice((0.0, 0.3)))
        final = client.final(bytes(challenge.auth_bytes))
        if self._connection(broker) is not begun:
            return None  # it would be the first message of another one
        gone = registrar.has_gone(broker, account)
        answer = await self._token(broker, final)
        if answer is None:
            oracle.checked["logins by passwords that are gone"] += gone
            return None
        if answer.error_code == OK:
            client.check(bytes(answer.auth_bytes))
            self._ends[broker] = (self._wires[broker], self.loop.time() + answer.session_lifetime_ms / 1000)
            registrar.shown(broker, account)
            if gone:
                oracle.violate(f"{self.name} logs in at b{broker} by a password of {account.user} that is gone there")
        elif answer.error_code != REFUSED:
            oracle.violate(f"{self.name} is answered {ErrorCode(answer.error_code).name} at b{broker}")
        elif known and registrar.knows(broker, account) == known:
            oracle.violate(f"b{broker} knows the password of {account.user} and refuses {self.name}")
        oracle.checked["logins by passwords that are gone"] += gone
        oracle.checked["logins by passwords that count"] += bool(known)
        return bool(answer.error_code == OK)

    async def request(self, broker: int, account: Account) -> None:
        """Ask for something that needs a login."""
        wire, oracle = self._connection(broker), self.world.oracle
        of, ends = self._ends.get(broker, (None, 0.0))
        if wire is None or of is not wire:
            return
        gone, late = self._registrar.has_gone(broker, account), self.loop.time() > ends + _MARGIN_S
        oracle.checked["requests after a password has gone"] += gone
        oracle.checked["requests after the session's end"] += late
        served = await self.ask(broker, m.MetadataRequest(version=12, topics=[]), 12) is not None
        if served and gone:
            oracle.violate(f"b{broker} serves {self.name}, whose password of {account.user} is gone there")
        if served and late:
            oracle.violate(f"b{broker} serves {self.name} {self.loop.time() - ends:.3f} s after its session's end")

    def _connection(self, broker: int) -> Wire | None:
        wire = self._wires.get(broker)
        return wire if wire is not None and wire.open else None

    async def _token(self, broker: int, token: bytes) -> Any:
        return await self.ask(broker, m.request_class(36)(version=2, auth_bytes=token), 2)


class Registrar(Client):
    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.lodgers = [Lodger(self, one) for one in LODGERS]
        self.open: set[Account] = set()
        """With which lodgers try to log in now."""
        self._valid: dict[str, Account | None] = {}
        """What is the user's in the end, of those where that is known."""
        self._known: set[tuple[int, int, Account]] = set()

    # ---- what brokers know

    def _place(self, broker: int, account: Account) -> tuple[int, int, Account]:
        return broker, self.world.fleet.brokers[broker].starts, account

    def knows(self, broker: int, account: Account) -> int:
        """The number of the broker's process if it knows the password; else 0."""
        one = self.world.fleet.brokers[broker]
        if one.services is None or one.users.credential(MECHANISM, account.user) != account.credential:
            return 0
        self.shown(broker, account)
        return one.starts

    def shown(self, broker: int, account: Account) -> None:
        """The broker has known it."""
        self._known.add(self._place(broker, account))

    def has_gone(self, broker: int, account: Account) -> bool:
        """Whether the broker's process has known the password and knows it no more."""
        serves = self.world.fleet.brokers[broker].services is not None
        return serves and not self.knows(broker, account) and self._place(broker, account) in self._known

    async def _until_gone(self, account: Account) -> None:
        """The change has come to all brokers."""
        brokers = self.world.fleet.brokers
        while not self.world.closing:
            if all(one.services is not None and not self.knows(broker, account) for broker, one in brokers.items()):
                return
            await self.pause(0.02, 0.1)

    # ---- rounds

    async def main(self) -> None:
        for number in range(1_000):
            if self.world.closing:
                return
            user = f"lodger-{number}"
            first, second = account_of(user, "first"), account_of(user, "second")
            if not await self._tell(user, first):
                continue  # a request that was given up may give the password back
            self.open = {first}
            staying = [lodger.run(lodger.stay(first)) for lodger in self.lodgers]
            await self.pause(0.1, 0.8)
            await self._tell(user, self.rng.choice((None, second)))
            await self._until_gone(first)
            await self.pause(0.0, 0.3)
            self.open = set()
            await asyncio.gather(*staying)

    async def _tell(self, user: str, account: Account | None) -> bool:
        """Give the user that password, None: take its password away; whether no request for it can come late."""
        request = m.request_class(51)
        deletions = [request.ScramCredentialDeletion(name=user, mechanism=CODE)]
        upsertions: list[Any] = []
        if account is not None:
            deletions = []
            upsertions = [
                request.ScramCredentialUpsertion(
                    name=user, mechanism=CODE, iterations=ITERATIONS_MIN, salt=account.salt,
                    salted_password=account.salted,
                )
            ]  # fmt: skip
        self._valid.pop(user, None)
        lost = False
        while not self.world.closing:
            answer = await self.ask(
                self.any_broker(), request(version=0, deletions=deletions, upsertions=upsertions), 0, 3.0
            )
            error = None if answer is None else ErrorCode(answer.results[0].error_code)
            if error is OK or (lost and account is None and error is ErrorCode.RESOURCE_NOT_FOUND):
                self._valid[user] = account
                return not lost
            lost = True
            await self.pause(0.05, 0.3)
        return False

    # ---- the end

    def wrong(self) -> list[str]:
        """Brokers that do not know the passwords that were acknowledged last, or know others."""
        found = []
        for broker in self.world.fleet.brokers.values():
            for user, account in self._valid.items():
                credential = broker.users.credential(MECHANISM, user)
                if credential != (None if account is None else account.credential):
                    found.append(f"{broker.name} has another password of {user} than was acknowledged last")
        return found
