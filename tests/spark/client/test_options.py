"""The one parser of options: names, readers, bounds, refusals."""

from __future__ import annotations

import pytest

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.options import Option, OptionTable, boolean, one_of, whole_number

TABLE = OptionTable(
    Option("sinkId", required="it names the sink"),
    Option("maxTasks", whole_number(1, 9)),
    Option("includeHeaders", boolean, False),
    Option("sink.mode", one_of("auto", "driver", "executor"), "auto"),
    Option("until", one_of("highWatermark", "end"), "end"),
    refused={"kafka.acks": "exactly once needs all"},
    ignored={"path": ""},
)


def test_names_and_words_are_read_in_any_case() -> None:
    given = {"SINKID": "s", "maxtasks": "3", "IncludeHeaders": "TRUE", "sink.mode": "Driver", "until": "HIGHWATERMARK"}
    assert TABLE.parse({**given, "path": "/x", "kafka.linger.ms": "5"}) == {
        "sinkId": "s",
        "maxTasks": 3,
        "includeHeaders": True,
        "sink.mode": "driver",
        "until": "highWatermark",
    }


def test_defaults_stand_where_nothing_is_given() -> None:
    assert TABLE.parse({"sinkId": "s"}) == {
        "sinkId": "s",
        "maxTasks": None,
        "includeHeaders": False,
        "sink.mode": "auto",
        "until": "end",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option sinkId is required: it names the sink"),
        ({"sinkId": "  "}, "option sinkId is required: it names the sink"),
        ({"maxTasks": "many"}, "option maxTasks: 'many' is not a whole number"),
        ({"maxTasks": "0"}, "option maxTasks: 0 is below 1"),
        ({"maxTasks": "10"}, "option maxTasks: 10 is above 9"),
        ({"includeHeaders": "yes"}, "option includeHeaders: 'yes' is neither true nor false"),
        ({"sink.mode": "fast"}, "option sink.mode: 'fast' is not auto, driver or executor"),
        ({"until": "never"}, "option until: 'never' is not highWatermark or end"),
        ({"kafka.ACKS": "1"}, "option kafka.acks can't be set: exactly once needs all"),
        (
            {"speed": "high"},
            "option speed is unknown; known are kafka.*, includeHeaders, maxTasks, sink.mode, sinkId, until",
        ),
    ],
)
def test_a_message_names_the_option_and_what_is_allowed(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        TABLE.parse({"sinkId": "s", **given} if given else {})
    assert str(caught.value) == message


def test_without_a_connection_other_settings_of_kafka_are_unknown() -> None:
    table = OptionTable(Option("kafka.isolation.level"), kafka=False)
    assert table.parse({"kafka.isolation.level": "x"}) == {"kafka.isolation.level": "x"}
    with pytest.raises(OptionError, match=r"option kafka\.linger\.ms is unknown; known are kafka\.isolation\.level"):
        table.parse({"kafka.linger.ms": "5"})
