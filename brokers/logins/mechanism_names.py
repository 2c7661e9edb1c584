"""The SASL mechanisms that brokers and commands have, by name."""

from __future__ import annotations

from typing import Final

from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER
from fleetlog.brokers.logins.plain import PLAIN
from fleetlog.brokers.logins.scram import ScramMechanism

SCRAM_MECHANISMS: Final = {mechanism.value: mechanism for mechanism in ScramMechanism}
PASSWORD_MECHANISMS: Final = (PLAIN, *SCRAM_MECHANISMS)
"""Those by which brokers and commands log in themselves."""
MECHANISMS: Final = (*PASSWORD_MECHANISMS, OAUTHBEARER)
