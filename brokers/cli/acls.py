"""``fleetlog acls``: access control lists. Names of operations and resources are Kafka's, in any case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import click
from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from fleetlog.brokers.acls.hosts import host_as_acls_have_it
from fleetlog.brokers.acls.image import (
    CLUSTER_NAME,
    WILDCARD,
    AccessControlEntry,
    AclBinding,
    AclOperation,
    InvalidAcl,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    check_binding,
)
from fleetlog.brokers.acls.znodes import OPERATION_NAMES, PERMISSION_NAMES, TYPE_NAMES
from fleetlog.brokers.cli.client import Target, admin, client_options, explain, raise_for_code
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.output import CliError, Output, confirm, count_text, warn
from fleetlog.brokers.logins.principals import BadPrincipal, parse_principal
from fleetlog.wire.errors import ErrorCode

COLUMNS = ["resource", "name", "pattern", "permission", "operation", "principal", "host"]

CHANGE: Final = "change"
_dry_run = click.option("--dry-run", is_flag=True, help="Only show what would change.")
_OPERATIONS = {name: operation for operation, name in OPERATION_NAMES.items()}
_PERMISSIONS = {"--allow": Permission.ALLOW, "--deny": Permission.DENY}
_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}
_PATTERNS = {one.name.lower(): one for one in PatternType if one is not PatternType.UNKNOWN}
_Function = TypeVar("_Function", bound=Callable[..., Any])


class NamedResource(NamedTuple):
    """What the options name; as a filter without a type: everything."""

    type: ResourceType
    name: str | None


def _principals(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            parse_principal(value)
        except BadPrincipal as problem:
            raise click.BadParameter(str(problem)) from None
    return values


def _options(patterns: tuple[str, ...], pattern: str) -> Callable[[_Function], _Function]:
    """The options that all commands share; ``patterns`` are those of --pattern."""
    made = [
        click.option("--topic", multiple=True, metavar="NAME", help="A topic; '*' for all. Repeatable."),
        click.option("--group", multiple=True, metavar="NAME", help="A consumer group; '*' for all. Repeatable."),
        click.option(
            "--transactional-id", multiple=True, metavar="NAME", help="A transactional id, or a sink. Repeatable."
        ),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
        click.option(
            "--pattern",
            type=click.Choice(patterns),
            default=pattern,
            show_default=True,
            help="How the names are meant.",
        ),
        click.option(
            "--principal",
            multiple=True,
            metavar="TYPE:NAME",
            callback=_principals,
            help="For example User:alice; User:* for all. Repeatable.",
        ),
        click.option(
            "--host", multiple=True, metavar="ADDRESS", help="The client's address, or a range: 10.0.0.0/8. Repeatable."
        ),
        click.option(
            "--operation",
            multiple=True,
            type=click.Choice(list(_OPERATIONS), case_sensitive=False),
            help="Repeatable.",
        ),
        click.option("--allow", "permission", flag_value="--allow", help="ACLs that allow."),
        click.option("--deny", "permission", flag_value="--deny", help="ACLs that deny."),
        client_options,
    ]

    def add(function: _Function) -> _Function:
        for one in reversed(made):
            function = one(function)
        return function

    return add


class Wanted(NamedTuple):
    """The options of a command, as the requests have them."""

    resources: list[NamedResource]
    pattern: PatternType
    principals: tuple[str, ...]
    hosts: tuple[str, ...]
    operations: list[AclOperation]
    permission: Permission

    @classmethod
    def of(cls, options: dict[str, Any], *, found: bool = False) -> Wanted:
        """From click's; hosts as ACLs should have them. What is to be ``found`` may be spelled as given, too."""
        hosts = [host_as_acls_have_it(host) for host in options["host"]]
        resources = [NamedResource(kind, name) for option, kind in _KINDS.items() for name in options[option]]
        if options["cluster"]:
            resources.append(NamedResource(ResourceType.CLUSTER, CLUSTER_NAME))
        given = options["permission"]
        return cls(
            resources,
            _PATTERNS[options["pattern"]],
            options["principal"],
            tuple(dict.fromkeys([*hosts, *options["host"]] if found else hosts)),
            [_OPERATIONS[name] for name in options["operation"]],
            Permission.ANY if given is None else _PERMISSIONS[given],
        )

    def filters(self) -> list[dict[str, Any]]:
        """The filters of DescribeAcls and DeleteAcls; what was not given matches everything."""
        return [
            {
                "resource_type_filter": int(resource.type),
                "resource_name_filter": resource.name,
                "pattern_type_filter": int(
                    PatternType.LITERAL if resource.type is ResourceType.CLUSTER else self.pattern
                ),
                "principal_filter": principal,
                "host_filter": host,
                "operation": int(operation),
                "permission_type": int(self.permission),
            }
            for resource in self.resources or [NamedResource(ResourceType.ANY, None)]
            for principal in self.principals or [None]
            for host in self.hosts or [None]
            for operation in self.operations or [AclOperation.ANY]
        ]


EVERYTHING: Final = Wanted([], PatternType.ANY, (), (), [], Permission.ANY)


@click.group(cls=CommandGroup)
def acls() -> None:
    """Access control lists: list, add, set, remove. The brokers need authorizer.class.name."""


@acls.command("list")
@_options(("any", "match", "literal", "prefixed"), "any")
def list_acls(target: Target, out: Output, **options: Any) -> None:
    """List ACLs: all, or those that the options name. --pattern match: all that apply to a resource of that name."""
    with admin(target) as client:
        out.rows(COLUMNS, acl_rows(client, Wanted.of(options, found=True)))


@acls.command("add")
@_options(("literal", "prefixed"), "literal")
@_dry_run
def add_acls(target: Target, out: Output, dry_run: bool, **options: Any) -> None:
    """Add an ACL for each resource, principal, host and operation given. Without --host: for all hosts.

    Deny wins over Allow. Read, Write, Delete and Alter allow Describe, too.
    """
    wanted = _complete(options)
    with admin(target) as client:
        if dry_run:
            present = acl_rows(client, Wanted.of(options, found=True))
            planned = [_row_of(one) for one in _creations(wanted)]
            out.rows([CHANGE, *COLUMNS], [["keep" if row in present else "add", *row] for row in planned])
            return
        rows = _create(client, _creations(wanted))
    out.rows(COLUMNS, rows, title="added")


@acls.command("set")
@_options(("literal", "prefixed"), "literal")
@_dry_run
def set_acls(target: Target, out: Output, dry_run: bool, **options: Any) -> None:
    """Have exactly the operations given, for each resource, principal and host; ACLs with others of them go.

    What --allow sets leaves what is denied alone, and the other way round. Without --host: the ACLs for all hosts. What
    is missing is added before anything goes.
    """
    creations = {tuple(_row_of(one)): one for one in _creations(_complete(options))}
    named = Wanted.of(options, found=True)
    with admin(target) as client:
        present = acl_rows(client, named._replace(operations=[], hosts=named.hosts or (WILDCARD,)))
        kept = [row for row in present if tuple(row) in creations]
        adding = {row: one for row, one in creations.items() if list(row) not in present}
        removing = [row for row in present if tuple(row) not in creations]
        if not dry_run and adding:
            _create(client, list(adding.values()))
        if not dry_run and removing:
            _delete(client, [_filter_of(row) for row in removing])
    by_change = {"add": list(map(list, adding)), "remove": removing, "keep": kept}
    out.rows([CHANGE, *COLUMNS], [[change, *row] for change, rows in by_change.items() for row in rows])


def _complete(options: dict[str, Any]) -> Wanted:
    """The options of what is added; raises UsageError where one is missing."""
    wanted = Wanted.of(options)
    for given, what in (
        (wanted.permission is not Permission.ANY, "--allow or --deny"),
        (wanted.resources, "--topic, --group, --transactional-id or --cluster"),
        (wanted.principals, "--principal"),
        (wanted.operations, "--operation"),
    ):
        if not given:
            raise click.UsageError(f"{what} is missing")
    if options["cluster"] and wanted.pattern is PatternType.PREFIXED:
        raise click.UsageError("--cluster is one resource and has no prefix: add its ACLs by themselves")
    return wanted


def _creations(wanted: Wanted) -> list[Any]:
    """What CreateAcls takes; raises CliError for what it would refuse, with its words."""
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=int(resource.type),
            resource_name=resource.name,
            resource_pattern_type=int(wanted.pattern),
            principal=principal,
            host=host,
            operation=int(operation),
            permission_type=int(wanted.permission),
        )
        for resource in wanted.resources
        for principal in wanted.principals
        for host in wanted.hosts or (WILDCARD,)
        for operation in wanted.operations
    ]
    for one in creations:
        pattern = ResourcePattern(ResourceType(one.resource_type), one.resource_name, wanted.pattern)
        entry = AccessControlEntry(one.principal, one.host, AclOperation(one.operation), wanted.permission)
        try:
            check_binding(AclBinding(pattern, entry))
        except InvalidAcl as problem:
            raise CliError(f"acls: {explain(ErrorCode.INVALID_REQUEST, str(problem))}") from None
    return creations


def _create(client: Any, creations: list[Any]) -> list[list[str]]:
    """Add these; returns their rows. Raises CliError."""
    answer = client.ask_any(CreateAclsRequest(creations=creations))
    rows = []
    for created, result in zip(creations, answer.results, strict=True):
        raise_for_code("acls", result.error_code, result.error_message)
        if result.error_message:
            warn(result.error_message)
        rows.append(_row_of(created))
    return rows


def _row_of(created: Any) -> list[str]:
    return _row(created.resource_type, created.resource_name, created.resource_pattern_type, created)


def _filter_of(row: list[str]) -> dict[str, Any]:
    """What DeleteAcls takes for one row and no other."""
    kind, name, pattern, permission, operation, principal, host = row
    resource = NamedResource(next(one for one, text in TYPE_NAMES.items() if text == kind), name)
    allowed = next(one for one, text in PERMISSION_NAMES.items() if text == permission)
    one = Wanted([resource], _PATTERNS[pattern], (principal,), (host,), [_OPERATIONS[operation]], allowed)
    return one.filters()[0]


def _delete(client: Any, filters: list[dict[str, Any]]) -> list[list[str]]:
    """Remove what the filters match; returns the rows. Raises CliError."""
    kind = DeleteAclsRequest
    answer = client.ask_any(kind(filters=[kind.DeleteAclsFilter(**one) for one in filters]))
    removed = []
    for result in answer.filter_results:
        raise_for_code("acls", result.error_code, result.error_message)
        for one in result.matching_acls:
            raise_for_code(f"{TYPE_NAMES[one.resource_type]} {one.resource_name}", one.error_code, one.error_message)
            removed.append(_row(one.resource_type, one.resource_name, one.pattern_type, one))
    return _each_once(removed)


@acls.command("remove")
@_options(("any", "match", "literal", "prefixed"), "any")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def remove_acls(target: Target, out: Output, yes: bool, **options: Any) -> None:
    """Remove the ACLs that the options name; what is not given matches everything."""
    wanted = Wanted.of(options, found=True)
    if not any((wanted.resources, wanted.principals, wanted.hosts, wanted.operations)):
        raise click.UsageError("name a resource, a principal, a host or an operation: without one all ACLs would go")
    with admin(target) as client:
        rows = acl_rows(client, wanted)
        if not rows:
            raise CliError("no ACL matches; see `fleetlog acls list`")
        confirm(f"Remove {count_text(len(rows), 'ACL')}?", yes)
        removed = _delete(client, wanted.filters())
    out.rows(COLUMNS, removed, title="removed")


def acl_rows(client: Any, wanted: Wanted) -> list[list[str]]:
    """The rows of the ACLs that are asked for."""
    rows = []
    for resource in described_acls(client, wanted):
        pattern = resource.resource_type, resource.resource_name, resource.pattern_type
        rows += [_row(*pattern, acl) for acl in resource.acls]
    return _each_once(rows)


def described_acls(client: Any, wanted: Wanted, what: str = "acls") -> Iterator[Any]:
    """The resources of DescribeAcls' answers, each with its ACLs. Raises CliError, which names ``what``."""
    for one in wanted.filters():
        answer = client.ask_any(DescribeAclsRequest(**one))
        raise_for_code(what, answer.error_code, answer.error_message)
        yield from answer.resources


def _each_once(rows: list[list[str]]) -> list[list[str]]:
    return [list(row) for row in sorted(set(map(tuple, rows)))]


def _row(kind: int, name: str, pattern: int, acl: Any) -> list[str]:
    return [
        TYPE_NAMES[ResourceType(kind)],
        name,
        PatternType(pattern).name.lower(),
        PERMISSION_NAMES[Permission(acl.permission_type)],
        OPERATION_NAMES[AclOperation(acl.operation)],
        acl.principal,
        acl.host,
    ]
