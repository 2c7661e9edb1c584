"""The command line of ``python -m perf``: which brokers a suite measures, and what it keeps."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from perf import __main__ as command
from perf import peers
from perf.build import ROOT
from perf.options import Options, add_arguments, options_of
from perf.targets.fleetlog import Fleetlog


def parsed(*words: str) -> Options:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return options_of(parser.parse_args(words))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Another source tree, as far as options look into it."""
    (tmp_path / "other" / "brokers" / "cli").mkdir(parents=True)
    (tmp_path / "other" / "brokers" / "cli" / "main.py").touch()
    return tmp_path / "other"


def test_without_arguments_this_tree_is_measured_and_the_results_are_kept() -> None:
    options = parsed()
    assert (options.tree, options.compares_trees, options.keeps) == (ROOT, False, True)
    assert (options.warmup_s, options.measure_s, options.rounds) == (1.0, 4.0, 5)


def test_zero_seconds_of_warmup_are_not_taken_for_the_default() -> None:
    options = parsed("--short", "--warmup", "0", "--seconds", "9")
    assert (options.warmup_s, options.measure_s, options.rounds) == (0.0, 9.0, 2)


@pytest.mark.parametrize("words", [("--only", "fetch"), ("--only", "fetch,produce")])
def test_parts_are_not_kept(words: tuple[str, ...]) -> None:
    options = parsed(*words)
    assert not options.keeps
    assert options.wanted("fetch 64 KiB")
    assert not options.wanted("start")


def test_another_tree_is_not_kept(tree: Path) -> None:
    options = parsed("--tree", str(tree))
    assert options.tree == tree
    assert options.compares_trees
    assert not options.keeps


def test_a_relative_name_of_this_tree_is_this_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "perf")
    assert not parsed("--tree", "..").compares_trees


def test_a_directory_without_brokers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--tree", str(tmp_path))
    assert "is no source tree of fleetlog" in capsys.readouterr().err


@pytest.mark.parametrize("brokers", [1, 3])
def test_peers_stand_beside_kafka(brokers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "Kafka", lambda *args: args)  # the real one needs its jars
    theirs, ours = peers.compared(parsed("--brokers", str(brokers), "--dir", str(tmp_path)))
    assert theirs == (brokers, tmp_path)
    assert isinstance(ours, Fleetlog)
    assert (ours.label, ours.tree, len(ours.brokers)) == ("fleetlog", ROOT, brokers)


def test_with_another_tree_peers_are_its_brokers_and_those_of_this_tree(tree: Path, tmp_path: Path) -> None:
    theirs, ours = peers.compared(parsed("--tree", str(tree), "--dir", str(tmp_path)))
    assert isinstance(theirs, Fleetlog)
    assert isinstance(ours, Fleetlog)
    assert [(one.label, one.tree) for one in (theirs, ours)] == [("other tree", tree), ("fleetlog", ROOT)]


def test_peers_of_two_brokers_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["perf", "peers", "--brokers", "2"])
    with pytest.raises(SystemExit):
        command.main()
    assert "1 or 3 brokers" in capsys.readouterr().err
