"""Deliberate bugs that no history of the simulation shows, and the tests that must notice each of them: logins, rights,
and what replicas do when records are lost already.

As a plugin of pytest (``-p tests.support.planted_bugs``) it puts the bug that FLEETLOG_BUG names into the code before
tests are collected.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from fleetlog.brokers.acls import access
from fleetlog.brokers.acls import image as acls
from fleetlog.brokers.logins import oauthbearer, plain, scram, token_claims, token_signatures
from fleetlog.brokers.replication.partition import FollowerRole
from fleetlog.brokers.replication.replicas import ReplicaManager
from tests.simulation.replacing import Mutation, Replacement, instead, mutated

BUG = "FLEETLOG_BUG"
GROUP_READ = (access.READ, access.GROUP)


class PlantedBug(NamedTuple):
    """A bug, and the tests of which at least one fails with it."""

    name: str
    changes: tuple[Replacement, ...]
    tests: tuple[str, ...]


def _takes_any_nonce(original: Any, self: Any, final: Any) -> Any:
    return original(self, final._replace(nonce=self._nonce))


def _takes_any_header(original: Any, self: Any, final: Any) -> Any:
    return original(self, final._replace(binding=self._first.header.encode()))


def _denies_nothing(original: Any, entries: Any) -> Any:
    return original(frozenset(entry for entry in entries if entry.permission is not acls.Permission.DENY))


def _covers_by_longer_prefixes(self: Any, name: str) -> Any:
    literals = [self.literals[one] for one in {name, acls.WILDCARD} if one in self.literals]
    return literals + [
        rules for prefix, rules in self.prefixes.items() if name.startswith(prefix) or prefix.startswith(name)
    ]


def _allows(api_key: int, pair: tuple[Any, Any]) -> Any:
    def allows(
        original: Any, self: Any, client: Any, operation: Any, resource: Any, name: str, logged: bool = True
    ) -> bool:
        found = original(self, client, operation, resource, name, logged)
        return bool(found) or (client.api_key == api_key and (operation, resource) == pair)

    return allows


def _ignores(claim: str) -> Any:
    def checked_claims(original: Any, claims: Any, rules: Any, wall_ms: int) -> Any:
        expected = {"iss": rules.issuer, "aud": min(rules.audiences), "exp": wall_ms // 1000 + 60}
        return original({**claims, claim: expected[claim]}, rules, wall_ms)

    return checked_claims


def _fits_any_algorithm(self: Any, algorithm: str) -> bool:
    return True


def _refuses_no_user(original: Any, self: Any, response: Any, found: Any) -> Any:
    return original(self, response._replace(authorization=""), found)


def _takes_any_authorization(original: Any, token: bytes) -> Any:
    _, user, password = original(token)
    return "", user, password


def _may_create_unless_it_lost(original: Any, self: Any, tp: Any, state: Any) -> bool:
    return self._continues or bool(original(self, tp, state))


def _may_lose_after_any_unclean_election(original: Any, self: Any) -> bool:
    return self._replica.state.unclean_epoch >= 0 or bool(original(self))


SCRAM, ACLS, ACCESS = "tests/logins/test_scram.py", "tests/acls/test_image.py", "tests/api/test_access.py"
TOKENS, LOGINS = "tests/logins/test_token_signatures.py", "tests/logins/test_oauthbearer.py"
LOST, FOLLOWER = "tests/replication/test_lost_logs.py", "tests/replication/test_follower_role.py"
ALL_RIGHTS = f"{ACCESS}::test_each_right_is_needed_by_itself"

BUGS = (
    PlantedBug(
        "the nonce of the final message is not compared",
        (instead(scram.ScramServer._verdict, _takes_any_nonce),),
        (f"{SCRAM}::test_the_header_and_the_nonce_of_the_final_message_are_compared_although_the_proof_is_right",),
    ),
    PlantedBug(
        "the header of the final message is not compared",
        (instead(scram.ScramServer._verdict, _takes_any_header),),
        (f"{SCRAM}::test_the_header_and_the_nonce_of_the_final_message_are_compared_although_the_proof_is_right",),
    ),
    PlantedBug(
        "a Deny counts as absent", (instead(acls._rules_of, _denies_nothing),),
        (f"{ACLS}::test_a_deny_wins_wherever_it_stands", f"{ACLS}::test_decisions_equal_the_naive_model"),
    ),
    PlantedBug(
        "a prefix longer than the name applies", (instead(acls._Index.covering, _covers_by_longer_prefixes),),
        (f"{ACLS}::test_a_prefix_longer_than_the_name_does_not_apply",),
    ),
    PlantedBug(
        "TxnOffsetCommit does not ask for the group",
        (instead(access.Access.allows, _allows(28, GROUP_READ)),), (ALL_RIGHTS,),
    ),
    PlantedBug(
        "a replica's fetch does not ask for ClusterAction",
        (instead(access.Access.allows, _allows(1, (access.CLUSTER_ACTION, access.CLUSTER))),), (ALL_RIGHTS,),
    ),
    PlantedBug(
        "a PLAIN login may be for another user", (instead(plain._parts, _takes_any_authorization),),
        ("tests/logins/test_plain.py",),
    ),
    PlantedBug(
        "a token may be for another user", (instead(oauthbearer.OauthBearerServer._step, _refuses_no_user),),
        (f"{LOGINS}::test_an_authorization_id_must_be_the_subject",),
    ),
    PlantedBug(
        "a key is for any algorithm", (instead(token_signatures.SigningKey.fits, _fits_any_algorithm),),
        (f"{TOKENS}::test_a_key_is_for_its_own_kind_of_algorithm",),
    ),
    *(
        PlantedBug(
            f"the claim {claim} is not compared", (instead(token_claims.checked_claims, _ignores(claim)),),
            (f"{TOKENS}::test_a_token_with_a_bad_claim_is_refused_with_the_reason",),
        )
        for claim in ("iss", "aud", "exp")
    ),
    PlantedBug(
        "a log that is lost is made anew", (instead(ReplicaManager._may_create, lambda self, tp, state: True),),
        (
            f"{LOST}::test_it_is_not_made_and_everybody_is_told", f"{LOST}::test_its_state_says_so_for_later_starts",
            f"{LOST}::test_a_later_clean_start_does_not_make_it_either",
        ),
    ),
    PlantedBug(
        "a log that is lost is made anew by a start that lost nothing",
        (instead(ReplicaManager._may_create, _may_create_unless_it_lost),),
        (f"{LOST}::test_a_later_clean_start_does_not_make_it_either",),
    ),
    PlantedBug(
        "a follower cuts what is committed without leave", (instead(FollowerRole._may_lose, lambda self: True),),
        (f"{FOLLOWER}::test_without_one_a_follower_keeps_what_is_committed_and_says_so",),
    ),
    PlantedBug(
        "an unclean election gives up what was committed after it, too",
        (instead(FollowerRole._may_lose, _may_lose_after_any_unclean_election),),
        (FOLLOWER,),
    ),
)  # fmt: skip

_held = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Before tests are collected: put the bug in, for as long as this process lives."""
    name = os.environ.get(BUG)
    if name:
        (bug,) = [one for one in BUGS if one.name == name]
        _held.enter_context(mutated(Mutation(bug.name, bug.changes, 0)))
