"""Commands about groups and transactions while a coordinator is loading or moves: they ask again until the timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from fleetlog.brokers.cli import admin_client, sinks
from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.client import Target
from fleetlog.wire.errors import ErrorCode as E


def row(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


GROUP = OffsetFetchRequest.OffsetFetchRequestGroup
# a request of each kind that commands send, and the answer with an error code where the protocol has it
KINDS: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "DescribeGroups": (DescribeGroupsRequest(groups=["g"]), lambda code: row(groups=[row(error_code=code)])),
    "OffsetFetch": (
        OffsetFetchRequest(groups=[GROUP(group_id="g", topics=None)]),
        lambda code: row(error_code=0, groups=[row(error_code=code, topics=[])]),
    ),
    "OffsetCommit": (
        OffsetCommitRequest(group_id="g", topics=[]),
        lambda code: row(topics=[row(partitions=[row(error_code=0), row(error_code=code)])]),
    ),
    "OffsetDelete": (OffsetDeleteRequest(group_id="g", topics=[]), lambda code: row(error_code=code, topics=[])),
    "DeleteGroups": (DeleteGroupsRequest(groups_names=["g"]), lambda code: row(results=[row(error_code=code)])),
    "DescribeTransactions": (
        DescribeTransactionsRequest(transactional_ids=["x"]),
        lambda code: row(transaction_states=[row(error_code=code)]),
    ),
    "ListGroups": (ListGroupsRequest(), lambda code: row(error_code=code, groups=[row(group_id="g")])),
    "ListTransactions": (ListTransactionsRequest(), lambda code: row(error_code=code, transaction_states=[])),
}
LISTS = ("ListGroups", "ListTransactions")


class ScriptedAdmin(AdminClient):
    """The admin client without sockets: ``answers`` come in order, ``asked`` are the brokers that gave them."""

    def __init__(self, *answers: Any, coordinator: int = 2) -> None:
        self.config = {"request_timeout_ms": 60_000}
        self.answers = list(answers)
        self.coordinator = coordinator
        self.asked: list[int] = []
        self.found: list[tuple[int, str]] = []
        self.slept = 0
        self._silent = set()
        self._net = SimpleNamespace(sleep=self.sleep)
        cluster = SimpleNamespace(brokers=list, add_coordinator=self.add_coordinator)
        self._manager = SimpleNamespace(
            cluster=cluster, least_loaded_node=lambda: 1, wait_for=lambda answer, _ms: answer,
            call_soon=lambda work, *given: work(*given),
        )  # fmt: skip
        self._send_to = self.send_to

    async def sleep(self, _seconds: float) -> None:
        self.slept += 1

    def add_coordinator(self, answer: Any, kind: int, key: str, synthesize_node_id: bool) -> int:
        self.found.append((kind, key))
        return int(answer.node_id)

    async def send_to(self, request: Any, node_id: int, request_timeout_ms: float | None = None) -> Any:
        if isinstance(request, FindCoordinatorRequest) and not isinstance(self.answers[0], tuple):
            return row(coordinators=[row(error_code=0, node_id=self.coordinator)])
        self.asked.append(node_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer[0] if isinstance(answer, tuple) else answer

    def answer_of(self, request: Any, node_id: int | None = None) -> Any:
        async def ask() -> Any:
            return await self._send(request, node_id=node_id)

        return asyncio.run(ask())


@pytest.mark.parametrize("code", [E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE])
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_to_a_loading_coordinator_is_repeated(kind: str, code: E) -> None:
    request, answer = KINDS[kind]
    admin = ScriptedAdmin(answer(code), answer(code), answer(0))
    assert admin.answer_of(request, 1) == answer(0)
    assert (admin.asked, admin.slept, admin.found) == ([1, 1, 1], 2, [])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in LISTS])
def test_a_coordinator_that_moved_is_found_again(kind: str) -> None:
    request, answer = KINDS[kind]
    admin = ScriptedAdmin(answer(E.NOT_COORDINATOR), answer(E.COORDINATOR_LOAD_IN_PROGRESS), answer(0))
    assert admin.answer_of(request, 1) == answer(0)
    key = (1, "x") if kind == "DescribeTransactions" else (0, "g")
    assert (admin.asked, admin.found) == ([1, 2, 2], [key])


@pytest.mark.parametrize("kind", KINDS)
def test_other_errors_are_reported_at_once(kind: str) -> None:
    request, answer = KINDS[kind]
    admin = ScriptedAdmin(answer(E.GROUP_AUTHORIZATION_FAILED))
    assert admin.answer_of(request, 1) == answer(E.GROUP_AUTHORIZATION_FAILED)
    assert admin.asked == [1]


def test_finding_a_coordinator_waits_for_its_topic() -> None:
    missing = (row(coordinators=[row(error_code=int(E.COORDINATOR_NOT_AVAILABLE), node_id=-1)]),)
    there = (row(coordinators=[row(error_code=0, node_id=2)]),)
    admin = ScriptedAdmin(missing, there)
    assert admin.answer_of(FindCoordinatorRequest(coordinator_keys=["g"])) == there[0]


def test_at_the_deadline_the_last_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 10.0
        return now_s

    monkeypatch.setattr(admin_client.time, "monotonic", clock)
    request, answer = KINDS["OffsetCommit"]
    admin = ScriptedAdmin(answer(E.COORDINATOR_LOAD_IN_PROGRESS))
    assert admin.answer_of(request, 1) == answer(E.COORDINATOR_LOAD_IN_PROGRESS)
    assert len(admin.asked) == 6


def test_sinks_wait_for_their_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "PAUSE_S", 0.0)
    answers = [
        row(error_code=int(E.COORDINATOR_LOAD_IN_PROGRESS), sinks=[]),
        row(error_code=0, sinks=[row(error_code=int(E.NOT_COORDINATOR))]),
        row(error_code=0, error_message=None, sinks=[row(error_code=0)]),
    ]
    last = answers[-1]
    client: Any = SimpleNamespace(
        find_coordinators=lambda *_: [row(error_code=0, node_id=1)], ask_all=lambda *_: [answers.pop(0)]
    )
    client.ask_coordinator = partial(AdminClient.ask_coordinator, client)
    assert sinks._ask(client, Target("127.0.0.1:1", 60.0), "s", object()) is last
