"""Keys and values from JSON by the schemas of a registry: the options of ``produce`` and ``records write``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.cli.registries import known_registry, registry_access, registry_option
from fleetlog.brokers.cli.sender import InputRecord

if TYPE_CHECKING:
    from fleetlog.brokers.cli.schema_encoding import Encoder

_SCHEMA = "SUBJECT|ID|SUBJECT:VERSION"


def schema_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what names the schemas of keys and values: ``wanted_encoding`` makes an encoding of it."""
    for option in (
        registry_option,
        click.option("--key-schema-message", metavar="NAME", help="The same for keys."),
        click.option(
            "--schema-message", metavar="NAME", help="The message of a Protobuf schema that has several in its file."
        ),
        click.option("--key-schema", metavar=_SCHEMA, help="The same for keys."),
        click.option(
            "--schema",
            metavar=_SCHEMA,
            help="Values are JSON, checked and written by this schema of the registry; of a SUBJECT by its latest.",
        ),
    ):
        function = option(function)
    return function


class WrongValue(Exception):
    """A key or value that its schema does not take; the text says which and why."""


class RecordEncoding(NamedTuple):
    """What writes keys and values; None: they stay as they are."""

    key: Encoder | None
    value: Encoder | None

    @property
    def parts(self) -> frozenset[str]:
        """The names of those that it writes."""
        return frozenset(name for name, one in self._asdict().items() if one is not None)

    def encoded(self, item: InputRecord) -> InputRecord:
        """The record as it is sent; nulls stay nulls. Raises WrongValue."""
        return item._replace(key=_encoded("key", self.key, item.key), value=_encoded("value", self.value, item.value))


def _encoded(field: str, encoder: Encoder | None, raw: bytes | None) -> bytes | None:
    if encoder is None or raw is None:
        return raw
    from fleetlog.brokers.cli.schema_encoding import EncodeError

    try:
        return encoder(raw)
    except EncodeError as error:
        raise WrongValue(str(error) if field == "value" else f"the key: {error}") from None


def wanted_encoding(target: Target, options: dict[str, Any]) -> RecordEncoding | None:
    """Of ``schema_options``, which are taken out; None if they name no schema. Raises CliError and click's errors."""
    registry = options.pop("registry", None)  # the console's commands have none of their own
    schemas = [options.pop(name) for name in ("key_schema", "schema")]
    messages = [options.pop(name) for name in ("key_schema_message", "schema_message")]
    if "" in schemas:
        raise click.UsageError("the name of a schema must not be empty")
    if any(message and not schema for schema, message in zip(schemas, messages, strict=True)):
        raise click.UsageError("--schema-message goes with --schema, --key-schema-message with --key-schema")
    if not any(schemas):
        return None
    url = known_registry(registry, target)
    if not url:
        raise click.UsageError("--schema needs the schemas of a registry: name it by --registry URL")
    from fleetlog.brokers.cli.schema_encoding import EncodeError, encoder_of  # with all that reads schemas
    from fleetlog.brokers.cli.schema_values import SchemaProblem, SchemaRegistry

    known = SchemaRegistry.of(registry_access(url, target), target.timeout_s)
    encoders: list[Encoder | None] = []
    for name, message in zip(schemas, messages, strict=True):
        try:
            encoders.append(encoder_of(*known.named(name), message or "") if name else None)
        except (SchemaProblem, EncodeError) as error:
            raise CliError(f"schema {name}: {error}") from None
    return RecordEncoding(*encoders)
