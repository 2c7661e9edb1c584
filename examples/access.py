"""How the examples reach a fleet: an address, and a file with the settings of a login where the fleet is secured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fleetlog.brokers.properties import parse_properties
from fleetlog.spark.client.settings import kafka_settings, librdkafka_settings

BOOTSTRAP = "bootstrap.servers"


@dataclass(frozen=True)
class FleetAccess:
    """``command_config``: settings by the names of Kafka's Java client. Its passwords reach no command line."""

    bootstrap: str
    command_config: Path | None = None

    @cached_property
    def _settings(self) -> Mapping[str, str]:
        if self.command_config is None:
            return {BOOTSTRAP: self.bootstrap}
        found = parse_properties(self.command_config.read_text("utf-8"), str(self.command_config))
        return {**{name: value for name, (value, _) in found.items()}, BOOTSTRAP: self.bootstrap}

    def librdkafka(self) -> dict[str, str]:
        """Settings of a stock client. Raises OptionError."""
        return librdkafka_settings(kafka_settings(self.spark_options()))

    def spark_options(self) -> dict[str, str]:
        """Options of ``format("fleetlog")``."""
        return {f"kafka.{name}": value for name, value in self._settings.items()}

    def login(self) -> dict[str, str]:
        """All but the address, with ``_`` for ``.``: for the functions of ``fleetlog.spark``."""
        return {name.replace(".", "_"): value for name, value in self._settings.items() if name != BOOTSTRAP}
