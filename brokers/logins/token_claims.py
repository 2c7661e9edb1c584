"""What the claims of a token must say, whatever its signature: who issued it, for whom, when, and about whom.

Source: RFC 7519; BrokerJwtValidator and ClaimValidationUtils of Kafka 4.1. Unlike there, issuer and audience are always
compared, and a token from the future (``iat``) is refused.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fleetlog.brokers.logins.oauthbearer import BadToken, VerifiedToken
from fleetlog.brokers.logins.principals import has_outer_blanks

SUBJECT_CHARACTERS_MAX: Final = 1024
_LATEST_S: Final = 2**40


class TokenRules(NamedTuple):
    """What is expected of a token. One of ``audiences`` must be among the token's."""

    issuer: str
    audiences: frozenset[str]
    skew_s: int = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"


def checked_claims(claims: Mapping[str, Any], rules: TokenRules, wall_ms: int) -> VerifiedToken:
    """The outcome of a token whose signature is right. Raises BadToken.

    The end of what it proves includes the clock skew: a session lasts as long as its token would be accepted.
    """
    issuer, now_s = claims.get("iss"), wall_ms / 1000
    if issuer != rules.issuer:
        raise BadToken(f"its issuer is {_shown(issuer)}, not {rules.issuer!r}")
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or not any(isinstance(one, str) and one in rules.audiences for one in audiences):
        raise BadToken(f"its audience is {_shown(audience)}, not {' or '.join(sorted(map(repr, rules.audiences)))}")
    expires_s = _time(claims, "exp") + rules.skew_s
    if expires_s <= now_s:
        raise BadToken(f"it expired {now_s - expires_s + rules.skew_s:.0f} s ago")
    if _time(claims, "iat") - rules.skew_s > now_s:
        raise BadToken("it was issued in the future (iat): compare the clocks of the issuer and of this broker")
    if "nbf" in claims and _time(claims, "nbf") - rules.skew_s > now_s:
        raise BadToken("it is not valid yet (nbf): compare the clocks of the issuer and of this broker")
    scope = claims.get(rules.scope_claim, "")
    if not isinstance(scope, str) and not (isinstance(scope, list) and all(isinstance(one, str) for one in scope)):
        raise BadToken(f"its claim {rules.scope_claim} is neither a string nor a list of strings")
    return VerifiedToken(_subject(claims, rules.subject_claim), int(expires_s * 1000))


def _time(claims: Mapping[str, Any], name: str) -> float:
    """Seconds since the epoch. Raises BadToken."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadToken(f"its claim {name} is missing or no time")
    if not 0 <= value <= _LATEST_S:
        raise BadToken(f"its claim {name} is no time in seconds since 1970")
    return value


def _subject(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise BadToken(f"its claim {name}, which names the principal, is missing or empty")
    if len(value) > SUBJECT_CHARACTERS_MAX or any(unicodedata.category(one) in {"Cc", "Cs"} for one in value):
        raise BadToken(f"its claim {name} is longer than {SUBJECT_CHARACTERS_MAX} characters or has control characters")
    if has_outer_blanks(value):
        raise BadToken(f"its claim {name}, which names the principal, begins or ends with a blank: {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """A claim in a log line: bounded, and escaped by repr."""
    return "missing" if value is None else f"{str(value)[:200]!r}"
