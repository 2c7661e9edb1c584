"""Deliberate bugs in logins and rights, and the tests that must notice each of them.

As a plugin of pytest (``-p tests.support.security_bugs``) it puts the bug that FLEETLOG_BUG names into the code before
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
from tests.simulation.replacing import Mutation, Replacement, instead, mutated

BUG = "FLEETLOG_BUG"
GROUP_READ = (access.READ, access.GROUP)


class SecurityBug(NamedTuple):
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


SCRAM, ACLS, ACCESS = "tests/logins/test_scram.py", "tests/acls/test_image.py", "tests/api/test_access.py"
TOKENS, LOGINS = "tests/logins/test_token_signatures.py", "tests/logins/test_oauthbearer.py"
ALL_RIGHTS = f"{ACCESS}::test_each_right_is_needed_by_itself"

BUGS = (
    SecurityBug(
        "the nonce of the final message is not compared",
        (instead(scram.ScramServer._verdict, _takes_any_nonce),),
        (f"{SCRAM}::test_the_header_and_the_nonce_of_the_final_message_are_compared_although_the_proof_is_right",),
    ),
    SecurityBug(
        "the header of the final message is not compared",
        (instead(scram.ScramServer._verdict, _takes_any_header),),
        (f"{SCRAM}::test_the_header_and_the_nonce_of_the_final_message_are_compared_although_the_proof_is_right",),
    ),
    SecurityBug(
        "a Deny counts as absent", (instead(acls._rules_of, _denies_nothing),),
        (f"{ACLS}::test_a_deny_wins_wherever_it_stands", f"{ACLS}::test_decisions_equal_the_naive_model"),
    ),
    SecurityBug(
        "a prefix longer than the name applies", (instead(acls._Index.covering, _covers_by_longer_prefixes),),
        (f"{ACLS}::test_a_prefix_longer_than_the_name_does_not_apply",),
    ),
    SecurityBug(
        "TxnOffsetCommit does not ask for the group",
        (instead(access.Access.allows, _allows(28, GROUP_READ)),), (ALL_RIGHTS,),
    ),
    SecurityBug(
        "a replica's fetch does not ask for ClusterAction",
        (instead(access.Access.allows, _allows(1, (access.CLUSTER_ACTION, access.CLUSTER))),), (ALL_RIGHTS,),
    ),
    SecurityBug(
        "a PLAIN login may be for another user", (instead(plain._parts, _takes_any_authorization),),
        ("tests/logins/test_plain.py",),
    ),
    SecurityBug(
        "a token may be for another user", (instead(oauthbearer.OauthBearerServer._step, _refuses_no_user),),
        (f"{LOGINS}::test_an_authorization_id_must_be_the_subject",),
    ),
    SecurityBug(
        "a key is for any algorithm", (instead(token_signatures.SigningKey.fits, _fits_any_algorithm),),
        (f"{TOKENS}::test_a_key_is_for_its_own_kind_of_algorithm",),
    ),
    *(
        SecurityBug(
            f"the claim {claim} is not compared", (instead(token_claims.checked_claims, _ignores(claim)),),
            (f"{TOKENS}::test_a_token_with_a_bad_claim_is_refused_with_the_reason",),
        )
        for claim in ("iss", "aud", "exp")
    ),
)  # fmt: skip

_held = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Before tests are collected: put the bug in, for as long as this process lives."""
    name = os.environ.get(BUG)
    if name:
        (bug,) = [one for one in BUGS if one.name == name]
        _held.enter_context(mutated(Mutation(bug.name, bug.changes, 0)))
