"""``fleetlog schemas``: the subjects and schemas of a registry, by Confluent's REST protocol."""

from __future__ import annotations

import difflib
import importlib
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import click

from fleetlog.brokers.cli.client import Target, client_options
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.options import need_packages
from fleetlog.brokers.cli.output import CliError, Output, confirm
from fleetlog.brokers.cli.registries import CONTENT, RegistryAccess, known_registry, registry_access, registry_option
from fleetlog.brokers.schemas.formats import AVRO, JSON
from fleetlog.brokers.schemas.protobuf import PROTOBUF
from fleetlog.brokers.schemas.registry import KINDS, LEVELS

DEFAULT_URL: Final = "http://127.0.0.1:8081"
ANSWER_BYTES_MAX: Final = 64 << 20
PAGE: Final = 1_000
INCOMPATIBLE: Final = 1
"""Exit code of a check."""
_SUFFIXES: Final = {".avsc": AVRO, ".avro": AVRO, ".json": JSON, ".proto": PROTOBUF}
_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}


class RegistryClient:
    """Asks one registry, with the login of ``--command-config``. Raises CliError, also for what is refused."""

    def __init__(self, access: RegistryAccess, timeout_s: float) -> None:
        self._url, self._timeout_s, self._opener = access.url, timeout_s, access.opener
        self._headers = {**access.headers, "Content-Type": CONTENT}

    def ask(self, method: str, *path: str, body: Any = None, **query: str) -> Any:
        """The answer to a request. ``path`` is quoted."""
        address = "/".join([self._url, *(quote(part, safe="") for part in path)])
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{address}?{urlencode(query)}", data, self._headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                text = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            raise CliError(f"the registry refuses it: {_reason(error)}") from None
        except OSError as error:
            raise CliError(
                f"no registry answers at {self._url} ({getattr(error, 'reason', None) or error}); --registry names "
                "another, `fleetlog registry` starts one"
            ) from None
        if len(text) > ANSWER_BYTES_MAX:
            raise CliError(f"the registry's answer has more than {ANSWER_BYTES_MAX} bytes")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise CliError(f"what answers at {self._url} is no registry") from None

    def version(self, subject: str, version: str) -> dict[str, Any]:
        """One version of a subject."""
        return dict(self.ask("GET", "subjects", subject, "versions", version))


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        body = json.loads(error.read(100_000))
        return f"{body['message']} ({body['error_code']})"
    except (OSError, ValueError, LookupError, TypeError):
        return f"{error.code} {error.reason}"


def _difference(before: str, after: str, name: str = "", name_after: str = "") -> list[str]:
    """Two schemas as people read them, line by line."""
    lines = pretty(before).splitlines(), pretty(after).splitlines()
    return list(difflib.unified_diff(*lines, name, name_after, lineterm=""))


class SchemaFile(NamedTuple):
    """A schema as a request has it."""

    body: dict[str, Any]
    text: str


def registry_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --registry and the options of clients; the command gets ``client`` and ``out``."""

    @registry_option
    @client_options
    @wraps(function)
    def wrapped(*given: Any, target: Target, registry: str | None = None, **named: Any) -> Any:
        access = registry_access(known_registry(registry, target) or DEFAULT_URL, target)
        return function(*given, client=RegistryClient(access, target.timeout_s), **named)

    return wrapped


def schema_file(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds SUBJECT, FILE and what a schema needs; the command gets ``subject`` and ``schema``."""

    @click.argument("subject")
    @click.argument(
        "file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path), required=False
    )
    @click.option("--text", help="The schema itself, instead of a FILE.")
    @click.option("--type", "kind", type=click.Choice(KINDS), help="Its format.  [default: by .avsc, .json or .proto]")
    @click.option(
        "--reference", "references", multiple=True, metavar="NAME=SUBJECT:VERSION",
        help="A schema that it refers to by that name; may be repeated.",
    )  # fmt: skip
    @wraps(function)
    def wrapped(
        *given: Any, file: Path | None, text: str | None, kind: str | None, references: tuple[str, ...], **named: Any
    ) -> Any:
        return function(*given, schema=read_schema(file, text, kind, references), **named)

    return wrapped


def read_schema(file: Path | None, text: str | None, kind: str | None, references: tuple[str, ...]) -> SchemaFile:
    """The schema in a file (``-`` is standard input), or as a text. Raises click.UsageError."""
    if (file is None) == (text is None):
        raise click.UsageError("give either a FILE (-: standard input) or --text")
    if file is not None:
        try:
            text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            raise click.UsageError(f"{file} is not a text file in UTF-8") from None
        kind = kind or _SUFFIXES.get(file.suffix.lower())
        if kind is None:
            raise click.UsageError(f"{file} ends with none of {', '.join(_SUFFIXES)}: say its --type")
    text, kind = text or "", kind or AVRO
    rows = []
    for one in references:
        name, equals, place = one.partition("=")
        subject, colon, version = place.rpartition(":")
        if not name or not equals or not subject or not colon or not version.lstrip("-").isdecimal():
            raise click.UsageError(f"--reference {one!r} is not NAME=SUBJECT:VERSION")
        rows.append({"name": name, "subject": subject, "version": int(version)})
    return SchemaFile({"schema": text, "schemaType": kind} | ({"references": rows} if rows else {}), text)


def pretty(text: str) -> str:
    """A schema for people: JSON with a line for each part; what is none as it stands."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text.strip()


@click.group(cls=CommandGroup)
def schemas() -> None:
    """Schemas of a registry: list, versions, show, register, from-model, check, compatibility, diff, delete."""


@schemas.command("list")
@click.option("--prefix", default="", metavar="TEXT", help="Only subjects that begin so.")
@click.option("--deleted", is_flag=True, help="Also those that are deleted softly.")
@registry_options
def list_subjects(*, client: RegistryClient, out: Output, prefix: str, deleted: bool) -> None:
    """List subjects with their latest version."""
    rows: list[Any] = []
    query = {"latestOnly": "true", "deleted": str(deleted).lower(), "limit": str(PAGE)}
    query |= {"subjectPrefix": prefix} if prefix else {}
    while True:
        page = client.ask("GET", "schemas", offset=str(len(rows)), **query)
        rows += [[one["subject"], one.get("schemaType", AVRO), one["version"], one["id"]] for one in page]
        if len(page) < PAGE:
            break
    out.rows(["subject", "type", "version", "id"], rows)


@schemas.command("versions")
@click.argument("subject")
@registry_options
def list_versions(*, client: RegistryClient, out: Output, subject: str) -> None:
    """List the versions of SUBJECT."""
    out.rows(["version"], [[one] for one in client.ask("GET", "subjects", subject, "versions")])


@schemas.command("show")
@click.argument("subject", required=False)
@click.option("--version", default="latest", show_default=True, help="A version's number.")
@click.option("--id", "number", type=click.IntRange(0), help="The schema with this id, instead of a subject's.")
@registry_options
def show_schema(*, client: RegistryClient, out: Output, subject: str | None, version: str, number: int | None) -> None:
    """Print a schema: of a subject's version, or of an id."""
    if (subject is None) == (number is None):
        raise click.UsageError("name either a SUBJECT or an --id")
    schema = (
        client.version(subject, version) if subject is not None else client.ask("GET", "schemas", "ids", str(number))
    )
    out.done(pretty(schema["schema"]), schema)


@schemas.command("register")
@click.option("--normalize", is_flag=True, help="Registered in its normal form.")
@registry_options
@schema_file
def register_schema(*, client: RegistryClient, out: Output, subject: str, schema: SchemaFile, normalize: bool) -> None:
    """Register the schema in FILE (-: standard input) as SUBJECT's next version; the same one keeps its id."""
    query = {"normalize": "true"} if normalize else {}
    answer = client.ask("POST", "subjects", subject, "versions", body=schema.body, **query)
    out.done(f"subject {subject} has the schema with id {answer['id']}", answer)


@schemas.command("from-model")
@click.argument("place", metavar="MODULE:CLASS")
@click.option("--subject", help="[default: the model's title, as RecordNameStrategy has it]")
@click.option("--print", "only_print", is_flag=True, help="Print the schema; no registry is asked.")
@registry_options
def from_model(*, client: RegistryClient, out: Output, place: str, subject: str | None, only_print: bool) -> None:
    """Register the JSON Schema of a pydantic model, which is imported from here: MODULE:CLASS."""
    schema = schema_of_model(place)
    if only_print:
        out.done(json.dumps(schema, indent=2, ensure_ascii=False), schema)
        return
    subject = subject or schema.get("title")
    if not subject:
        raise CliError(f"{place} has no title: name its --subject")
    body = {"schema": json.dumps(schema), "schemaType": JSON}
    answer = client.ask("POST", "subjects", subject, "versions", body=body)
    out.done(f"subject {subject} has the schema with id {answer['id']}", answer | {"subject": subject})


def schema_of_model(place: str) -> dict[str, Any]:
    """The JSON Schema of what a model takes. Its module runs. Raises click.UsageError, CliError."""
    module, colon, path = place.partition(":")
    if not module or not colon or not path:
        raise click.UsageError(f"{place!r} is not MODULE:CLASS, as in shop.models:Order")
    need_packages("a model needs", ("pydantic",), "models")
    from pydantic import TypeAdapter  # before modules of this directory can stand in for its own
    from pydantic.errors import PydanticUserError

    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        imported: Any = importlib.import_module(module)
        model = reduce(getattr, path.split("."), imported)
    except Exception as problem:  # whatever its module does
        raise CliError(f"{place} cannot be imported: {type(problem).__name__}: {problem}") from None
    if not isinstance(model, type):
        raise CliError(f"{place} is no class")
    try:
        schema = TypeAdapter(model).json_schema()
        json.dumps(schema, allow_nan=False)
    except PydanticUserError as problem:
        raise CliError(f"{place} has no JSON Schema: {problem.message}") from None
    except Exception as problem:  # also of the model's own code, or a default that JSON does not have
        raise CliError(f"{place} has no JSON Schema: {type(problem).__name__}: {problem}") from None
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


@schemas.command()
@click.option("--version", help="Against this version alone.  [default: those that the level asks for]")
@registry_options
@schema_file
def check(*, client: RegistryClient, out: Output, subject: str, schema: SchemaFile, version: str | None) -> None:
    """Try whether the schema in FILE may become SUBJECT's next version. Exit code 1 if it may not.

    With --json also what it differs in from the latest one, or from --version.
    """
    path = ("compatibility", "subjects", subject, "versions", *((version,) if version else ()))
    answer = client.ask("POST", *path, body=schema.body, verbose="true")
    told = "\n".join(f"  {one}" for one in answer.get("messages", ()))
    fits = answer["is_compatible"]
    if out.as_json:
        alike = client.ask("GET", "schemas", subjectPrefix=subject, latestOnly="true")
        if version is not None or any(one["subject"] == subject for one in alike):
            before = client.version(subject, version or "latest")
            answer["lines"] = _difference(before["schema"], schema.text, f"version {before['version']}", "this one")
    out.done("compatible" if fits else f"not compatible:\n{told}", answer)
    if not fits:
        click.get_current_context().exit(INCOMPATIBLE)


@schemas.command()
@click.argument("subject", required=False)
@click.option("--set", "level", type=click.Choice(LEVELS, case_sensitive=False), help="From now on.")
@click.option("--unset", is_flag=True, help="Back to the level of all subjects; without SUBJECT, to the default.")
@registry_options
def compatibility(*, client: RegistryClient, out: Output, subject: str | None, level: str | None, unset: bool) -> None:
    """Show or change what SUBJECT's next version must be compatible with; without SUBJECT, that of all subjects."""
    if level is not None and unset:
        raise click.UsageError("--set and --unset do not go together")
    path = ("config", *((subject,) if subject is not None else ()))
    if unset:
        client.ask("DELETE", *path)
    elif level is not None:
        client.ask("PUT", *path, body={"compatibility": level})
    now = client.ask("GET", *path, defaultToGlobal="true")["compatibilityLevel"]
    out.done(f"{'all subjects' if subject is None else subject}: {now}", {"subject": subject, "compatibility": now})


@schemas.command()
@click.argument("subject")
@click.option("--from", "old", default="", metavar="VERSION", help="[default: the one before the other]")
@click.option("--to", "new", default="latest", show_default=True, metavar="VERSION")
@registry_options
def diff(*, client: RegistryClient, out: Output, subject: str, old: str, new: str) -> None:
    """Show what differs between two versions of SUBJECT."""
    after = client.version(subject, new)
    if not old:
        earlier = [one for one in client.ask("GET", "subjects", subject, "versions") if one < after["version"]]
        if not earlier:
            raise CliError(f"subject {subject} has no version before {after['version']}")
        old = str(earlier[-1])
    before = client.version(subject, old)
    names = [f"{subject} version {one['version']}" for one in (before, after)]
    lines = _difference(before["schema"], after["schema"], *names)
    if out.as_json:
        out.value({"from": before["version"], "to": after["version"], "lines": lines})
    for line in () if out.as_json else lines or ["they are the same"]:
        click.secho(line, fg=_COLOURS.get(line[:1]))


@schemas.command()
@click.argument("subject")
@click.option("--version", help="This version alone.")
@click.option("--permanent", is_flag=True, help="For good: what was deleted softly before.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@registry_options
def delete(
    *, client: RegistryClient, out: Output, subject: str, version: str | None, permanent: bool, yes: bool
) -> None:
    """Delete SUBJECT, or a version of it: softly, so that its ids still lead to it, or for good."""
    what = f"subject {subject}" + (f", version {version}" if version else "")
    confirm(f"Delete {what}{' for good: records with its ids cannot be read any more' if permanent else ''}?", yes)
    path = ("subjects", subject, *(("versions", version) if version else ()))
    gone = client.ask("DELETE", *path, permanent=str(permanent).lower())
    out.done(f"{what} is deleted{' for good' if permanent else ''}", {"deleted": gone})
