"""``fleetlog doctor``: what is wrong with a fleet, why, and what to do. Facts are gathered with deadlines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click
import kafka.errors as kafka_errors
from kafka.protocol.admin import DescribeTransactionsRequest, ListGroupsRequest, ListTransactionsRequest

from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.client import Target, admin, client_options, first_line
from fleetlog.brokers.cli.diagnosis import (
    ALIKE,
    BrokerHealth,
    Finding,
    FleetFacts,
    FleetHealth,
    ListenerCertificate,
    OpenTransaction,
    Severity,
    Thresholds,
    findings_of,
    verdict,
)
from fleetlog.brokers.cli.group_lags import lag_of_groups
from fleetlog.brokers.cli.options import at_least
from fleetlog.brokers.cli.output import CliError, Output, count_text, visible
from fleetlog.brokers.cli.overview import (
    MIN_IN_SYNC,
    PATIENCE_S,
    TIERING_WAITS,
    BrokerOverview,
    Overview,
    fetch_overview,
    read_directories,
    read_domains,
    settings_told,
    topic_settings,
)
from fleetlog.wire import messages

UNCLEAN_SETTING = "unclean.leader.election.enable"
EXIT_WARNINGS, EXIT_ERRORS = 3, 4
UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
TRANSACTIONS_ASKED = 200
"""Open transactions that are looked at."""
LEAST_SPAN_S = 0.3
"""Between the two looks at the sizes of partitions."""
MOST_SPAN_S = 60.0
"""So long a look is remembered by a client that is used again."""
Looked = tuple[float, Mapping[int, BrokerOverview]]
_DEFAULTS = Thresholds()


@click.command()
@click.option("--clock-ms", type=click.IntRange(1), default=_DEFAULTS.clock_ms, show_default=True,
              help="How far apart clocks may be.")  # fmt: skip
@click.option("--zookeeper-ms", type=click.IntRange(1), default=_DEFAULTS.zookeeper_ms, show_default=True,
              help="How long a read of ZooKeeper may take.")  # fmt: skip
@click.option("--transaction-s", type=at_least(0), default=_DEFAULTS.transaction_s, show_default=True,
              help="How long a transaction may be open.")  # fmt: skip
@click.option("--lag-s", type=at_least(0), default=_DEFAULTS.lag_s, show_default=True,
              help="How far behind a group that gets on may be.")  # fmt: skip
@click.option("--certificate-days", type=click.IntRange(1), default=_DEFAULTS.certificate_days, show_default=True,
              help="How long a certificate must last.")  # fmt: skip
@click.option("--sync-ms", type=click.IntRange(1), default=_DEFAULTS.sync_ms, show_default=True,
              help="How long an fsync may take.")  # fmt: skip
@click.option("--loop-ms", type=click.IntRange(1), default=_DEFAULTS.loop_ms, show_default=True,
              help="How late a broker's loop may be.")  # fmt: skip
@click.option("--hot-mb", type=at_least(0), default=_DEFAULTS.hot_mb, show_default=True,
              help="From how many MB a second on a partition may be hot.")  # fmt: skip
@client_options
def doctor(target: Target, out: Output, **limits: Any) -> None:
    """Say what is wrong with the fleet, why, and what to do.

    Looks at brokers, loops, partitions, disks, ZooKeeper, clocks, file limits, certificates, transactions, groups and
    settings. Exit code: 0 if nothing but notes was found, 3 with warnings, 4 with errors, 1 if no broker answers.
    """
    with admin(target) as client:
        facts = gathered(client)
    findings = findings_of(facts, Thresholds(**limits))
    if out.as_json:
        out.value([one._asdict() | {"severity": one.severity.name.lower()} for one in findings])
    else:
        _print(findings, facts)
    worst = max((one.severity for one in findings), default=Severity.NOTE)
    if worst > Severity.NOTE:
        sys.exit(EXIT_ERRORS if worst is Severity.ERROR else EXIT_WARNINGS)


def _print(found: list[Finding], facts: FleetFacts) -> None:
    brokers, partitions = facts.overview.live_brokers(), facts.overview.partitions
    click.echo(f"{count_text(len(brokers), 'broker')} and {count_text(len(partitions), 'partition')} examined")
    for one in found:
        click.echo(f"\n{one.severity.name}  {one.check}: {visible(one.where)}")
        for word, sentence in (("what", one.what), ("why", one.why), ("do", one.todo)):
            click.echo(f"  {word:<7} {visible(sentence)}")
    if not found:
        click.echo("nothing is wrong")


# ---------------------------------------------------------------- gathering


def gathered(client: AdminClient) -> FleetFacts:
    """Ask the fleet. What cannot be asked is noted, not waited for."""
    earlier = client.looked
    overview = fetch_overview(client)
    facts = FleetFacts(overview, time.time_ns() // 1_000_000)
    steps: dict[str, Callable[[AdminClient, FleetFacts], None]] = {
        "clocks, ZooKeeper and certificates": _health, "settings": _settings,
        "failure domains": lambda client, facts: read_domains(client, facts.overview),
        "groups": _groups, "transactions": _transactions, "topic settings": _topics,
    }  # fmt: skip
    for subject, gather in steps.items():
        try:
            gather(client, facts)
        except (kafka_errors.KafkaError, CliError, OSError) as error:
            facts.untold.append((subject, first_line(error) or type(error).__name__))
    try:
        _rates(client, facts, earlier)
    except kafka_errors.KafkaError as error:
        facts.untold.append(("sizes", first_line(error) or type(error).__name__))
    return facts


def judged(client: AdminClient, overview: Overview) -> tuple[FleetFacts, FleetHealth]:
    """How the fleet is, by the part of doctor's checks that takes one more request to each broker."""
    facts = FleetFacts(overview, time.time_ns() // 1_000_000)
    _health(client, facts)
    return facts, verdict(facts)


def _rates(client: AdminClient, facts: FleetFacts, earlier: Looked | None) -> None:
    """How fast partitions have grown since the client's last look at them, or if that was long ago, since the
    overview's; a log that shrinks meanwhile does not grow."""
    later = client.looked
    if later is not None and (earlier is None or not LEAST_SPAN_S <= later[0] - earlier[0] <= MOST_SPAN_S):
        earlier = later
        time.sleep(max(0.0, earlier[0] + LEAST_SPAN_S - time.monotonic()))
        brokers = {broker_id: replace(facts.overview.brokers[broker_id]) for broker_id in _answering(facts)}
        read_directories(client, replace(facts.overview, brokers=brokers))
        later = client.looked
    if earlier is None or later is None:
        return
    for broker_id, broker in later[1].items():
        before = earlier[1].get(broker_id)
        for directory in broker.directories or ():
            for tp, size in directory.sizes.items():
                known = before.size_of(tp) if before is not None else None
                if known is not None:
                    rate = max(0, size - known) / (later[0] - earlier[0])
                    facts.rates[tp] = max(rate, facts.rates.get(tp, 0.0))


def _health(client: AdminClient, facts: FleetFacts) -> None:
    request = messages.DescribeHealthRequest(version=0)
    facts.now_ms = time.time_ns() // 1_000_000
    for broker_id, row in client.ask_each(dict.fromkeys(_answering(facts), request), PATIENCE_S).items():
        if row is None:
            facts.untold.append((f"broker {broker_id}", "it does not know DescribeHealth, or is too slow"))
        elif row.error_code:
            facts.untold.append((f"broker {broker_id}", "this needs the right to describe the cluster"))
        else:
            facts.overview.brokers[broker_id].cut_off = row.zoo_keeper_micros < 0
            facts.health[broker_id] = BrokerHealth(
                row.wall_ms, row.zoo_keeper_micros, row.lease_ms, row.open_files, row.file_limit,
                tuple(ListenerCertificate(one.listener, one.valid_until_ms, one.refusal) for one in row.certificates),
                row.sync_micros,
                row.loop_lag_micros,
                row.loop_lag_max_micros,
            )  # fmt: skip


def _settings(client: AdminClient, facts: FleetFacts) -> None:
    for broker_id, told in settings_told(client, _answering(facts), list(ALIKE)).items():
        facts.settings[broker_id] = {one.name: one.value for one in told.configs}


def _groups(client: AdminClient, facts: FleetFacts) -> None:
    facts.groups, unknown = lag_of_groups(client, brokers=_answering(facts))
    if unknown:
        facts.untold.append(("groups", "; ".join(unknown)))
    listing = dict.fromkeys(_answering(facts), ListGroupsRequest(states_filter=["Empty"], types_filter=[]))
    answers = [one for one in client.ask_each(listing, PATIENCE_S).values() if one is not None]
    facts.empty_groups = {row.group_id for answer in answers for row in answer.groups}


def _transactions(client: AdminClient, facts: FleetFacts) -> None:
    """Each coordinator is asked for its transactions under way, then for these by name."""
    now_ms = time.time_ns() // 1_000_000
    listing = ListTransactionsRequest(state_filters=list(UNDER_WAY), producer_id_filters=[])
    named: dict[int, Any] = {}
    for broker_id, answer in client.ask_each(dict.fromkeys(_answering(facts), listing), PATIENCE_S).items():
        if answer is None or answer.error_code:
            facts.untold.append((f"transactions of broker {broker_id}", "it did not list them"))
        elif answer.transaction_states:
            names = [one.transactional_id for one in answer.transaction_states][:TRANSACTIONS_ASKED]
            named[broker_id] = DescribeTransactionsRequest(transactional_ids=names)
    for answer in client.ask_each(named, PATIENCE_S).values():
        for one in answer.transaction_states if answer is not None else ():
            if one.transaction_start_time_ms >= 0 and one.transaction_state in UNDER_WAY:
                facts.transactions.append(_open_transaction(one, now_ms))


def _open_transaction(row: Any, now_ms: int) -> OpenTransaction:
    partitions = tuple(f"{topic.topic}:{index}" for topic in row.topics for index in sorted(topic.partitions))
    open_s = (now_ms - row.transaction_start_time_ms) / 1000
    return OpenTransaction(
        row.transactional_id, row.transaction_state, open_s, row.transaction_timeout_ms / 1000, partitions
    )  # fmt: skip


def _answering(facts: FleetFacts) -> list[int]:
    """The brokers that have answered before: the others are told already, and are not waited for again."""
    return [broker.id for broker in facts.overview.live_brokers() if broker.directories is not None]


def _topics(client: AdminClient, facts: FleetFacts) -> None:
    topics = sorted({p.topic for p in facts.overview.partitions.values()})
    told = topic_settings(client, topics, UNCLEAN_SETTING, MIN_IN_SYNC, TIERING_WAITS)
    facts.unclean_topics = [name for name, value in told[UNCLEAN_SETTING].items() if value == "true"]
    facts.idle_tiers = [name for name, value in told[TIERING_WAITS].items() if value == "true"]
    facts.min_in_sync = {name: int(value) for name, value in told[MIN_IN_SYNC].items()}
