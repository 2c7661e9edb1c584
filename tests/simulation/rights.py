"""An officer who gives rights and takes them away, and a guest who tries each: a right that was taken away is gone.

Each round has a user of its own, so that a request that is late cannot give a right back that a later round relies on.
What the officer is told counts at once at the broker that told it, and on all brokers when each has shown it. The
producers beside them have quotas, so that their connections are muted now and then, also while leaders change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.image import AclOperation, PatternType, Permission, ResourceType
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import OK, PRODUCE, PRODUCE_VERSION, RETRIABLE, Client, Producer, produce_body

if TYPE_CHECKING:
    from tests.simulation.world import World

GUEST = "g1"
INVARIANTS = ("rights at the broker that was asked", "rights on all brokers", "rights in the end", "mutes")
SETTINGS: dict[str, Any] = {
    "given": (
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("super.users", "User:ANONYMOUS"),
    ),
    "quota_window_num": 2,
}
"""All but the guest are ANONYMOUS, which may do everything."""
RATE = 700
"""Bytes per second of the producers: some batches."""
ACL_VERSION, QUOTA_VERSION = 3, 1
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Guest(Producer):
    """One user after the other; each of its values is sent once."""

    number = 0

    def become(self, user: str) -> None:
        """Connections that are opened from now on are that user's."""
        self.hang_up()
        self.world.network.principals[self.name] = f"User:{user}"

    async def attempt(self, broker: int, tp: TopicPartition) -> ErrorCode | None:
        """Send one value there: the error, None where none is known. A refused value must never be shown."""
        value = f"{self.name}-{self.number}"
        self.number += 1
        oracle = self.world.oracle
        oracle.sending(tp, [value])
        body = produce_body(None, -1, 800, tp, self.batch([value], -1, -1, -1))
        raw = await self.exchange(broker, PRODUCE, PRODUCE_VERSION, body, 1.5)
        if raw is None:
            return None
        answer = m.decode_response(PRODUCE, PRODUCE_VERSION, raw).responses[0].partition_responses[0]
        error = ErrorCode(answer.error_code)
        if error is OK:
            oracle.acknowledged(tp, [value], answer.base_offset)
        elif error is DENIED:
            oracle.refused.add(value)
        elif error not in RETRIABLE:
            oracle.violate(f"{self.name} gets {error.name} for {value} in {tp}")
        return error


class Officer(Client):
    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.guest = Guest(world, GUEST)
        self.holders: dict[str, bool | None] = {}
        """Whether a user of a round has the right in the end; None: that is not known."""

    async def main(self, partitions: Sequence[TopicPartition]) -> None:
        await self._limit_producers()
        for number in range(1_000):
            if self.world.closing:
                return
            user = f"guest-{number}"
            self.guest.become(user)
            if await self._give(user, partitions):
                await self._take(user, partitions)
            await self.pause(0.05, 0.4)

    async def _limit_producers(self) -> None:
        row = m.request_class(49).EntryData
        entity = row.EntityData(version=QUOTA_VERSION, entity_type="client-id", entity_name=None)
        limit = row.OpData(version=QUOTA_VERSION, key="producer_byte_rate", value=float(RATE), remove=False)
        entry = row(version=QUOTA_VERSION, entity=[entity], ops=[limit])
        request = m.request_class(49)(version=QUOTA_VERSION, entries=[entry], validate_only=False)
        while not self.world.closing:
            answer = await self.ask(self.any_broker(), request, QUOTA_VERSION, 5.0)
            if answer is not None and answer.entries[0].error_code == OK:
                return
            await self.pause(0.05, 0.3)

    # ---- one round

    async def _give(self, user: str, partitions: Sequence[TopicPartition]) -> bool:
        """Give the right; whether all brokers have it and no request to give it can come late."""
        kind = m.CreateAclsRequest.AclCreation
        creation = kind(
            version=ACL_VERSION, resource_type=ResourceType.TOPIC, resource_name=partitions[0].topic,
            resource_pattern_type=PatternType.LITERAL, principal=f"User:{user}", host="*",
            operation=AclOperation.WRITE, permission_type=Permission.ALLOW,
        )  # fmt: skip
        request = m.CreateAclsRequest(version=ACL_VERSION, creations=[creation])
        self.holders[user] = None
        broker, lost = await self._told(request)
        if broker is None:
            return False
        self.holders[user] = True
        return await self._holds(user, broker, partitions, allowed=True) and not lost

    async def _take(self, user: str, partitions: Sequence[TopicPartition]) -> None:
        kind = m.DeleteAclsRequest.DeleteAclsFilter
        of_user = kind(
            version=ACL_VERSION, resource_type_filter=ResourceType.ANY, resource_name_filter=None,
            pattern_type_filter=PatternType.ANY, principal_filter=f"User:{user}", host_filter=None,
            operation=AclOperation.ANY, permission_type=Permission.ANY,
        )  # fmt: skip
        self.holders[user] = None
        broker, _ = await self._told(m.DeleteAclsRequest(version=ACL_VERSION, filters=[of_user]))
        if broker is not None:
            self.holders[user] = False
            await self._holds(user, broker, partitions, allowed=False)

    async def _told(self, request: Any) -> tuple[int | None, bool]:
        """The broker that acknowledged the change, if one did, and whether another request may still be executed."""
        lost = False
        while not self.world.closing:
            broker = self.any_broker()
            answer = await self.ask(broker, request, ACL_VERSION, 3.0)
            if answer is not None and _acknowledged(answer):
                return broker, lost
            lost = True
            await self.pause(0.05, 0.3)
        return None, lost

    async def _holds(self, user: str, asked: int, partitions: Sequence[TopicPartition], *, allowed: bool) -> bool:
        """Whether the change was seen on all brokers; the guest tries it at the one that was asked, then anywhere."""
        oracle, verb = self.world.oracle, "may write" if allowed else "may write no more"
        error = await self.guest.attempt(asked, self.rng.choice(partitions))
        if error is not None:
            oracle.checked["rights at the broker that was asked"] += 1
            if (error is DENIED) is allowed:
                oracle.violate(f"b{asked} acknowledged that {user} {verb}, and answers {error.name}")
        for broker in self.world.fleet.brokers:
            if not await self._shown(broker, user, allowed=allowed):
                return False
        for _ in range(self.rng.randint(1, 6)):
            tp = self.rng.choice(partitions)
            broker = await self.leader(tp) if self.rng.random() < 0.7 else self.any_broker()
            error = await self.guest.attempt(broker, tp)
            if error is not None:
                oracle.checked["rights on all brokers"] += 1
                if (error is DENIED) is allowed:
                    oracle.violate(f"all brokers have shown that {user} {verb}, and b{broker} answers {error.name}")
            await self.pause(0.01, 0.3)
        return True

    async def _shown(self, broker: int, user: str, *, allowed: bool) -> bool:
        """Wait until the broker describes the change; False: the run ends before."""
        request = m.DescribeAclsRequest(
            version=ACL_VERSION, resource_type_filter=ResourceType.ANY, resource_name_filter=None,
            pattern_type_filter=PatternType.ANY, principal_filter=f"User:{user}", host_filter=None,
            operation=AclOperation.ANY, permission_type=Permission.ANY,
        )  # fmt: skip
        while not self.world.closing:
            answer = await self.ask(broker, request, ACL_VERSION)
            if answer is not None and answer.error_code == OK and bool(answer.resources) is allowed:
                return True
            await self.pause(0.05, 0.3)
        return False

    # ---- the end

    def wrong(self) -> list[str]:
        """Brokers whose ACLs are not those that were acknowledged, or not those of the others."""
        images = {
            broker.name: broker.services.acls.image.entries
            for broker in self.world.fleet.brokers.values()
            if broker.services is not None and broker.services.acls is not None
        }
        first = next(iter(images.values()), None)
        found = [f"{name} decides by other ACLs than the others" for name, one in images.items() if one != first]
        having = {entry.principal for entries in (first or {}).values() for entry in entries}
        for user, allowed in self.holders.items():
            if allowed is not None and (f"User:{user}" in having) is not allowed:
                found.append(f"{user} {'lacks' if allowed else 'has'} the right, against what was acknowledged")
        return found


def _acknowledged(answer: Any) -> bool:
    """Whether an ACL was made, or all that a filter found were deleted: a deletion that failed is told by its ACL."""
    made = getattr(answer, "results", None)
    if made is not None:
        return bool(made[0].error_code == OK)
    (filtered,) = answer.filter_results
    return filtered.error_code == OK and all(acl.error_code == OK for acl in filtered.matching_acls)
