"""The equality table: every tolerance, what has none, the page and the command."""

import json
import re

import jax
import numpy as np
import pytest
from experiment_modules import ROOT, run_tool

import p2pjax as pj
from experiments.equality import __main__ as command
from experiments.equality import page, registry
from experiments.equality.comparison import (
    APART,
    KINDS,
    PACKAGES,
    VECTORS,
    Comparison,
    Row,
    compared,
    largest_difference,
    missing,
)
from p2pjax.exchange import attacks, robust
from p2pjax.types import InputError

KEPT = page.load(ROOT / "results" / "equality.json")


def case(one):
    marks = [pytest.mark.slow] if one.is_slow or one.package == "byzfl" else []
    return pytest.param(one, id=one.name, marks=marks)


@pytest.mark.filterwarnings("ignore")  # those of others
@pytest.mark.parametrize("one", [case(one) for one in registry.COMPARISONS])
def test_equal(one):
    reason = missing(one.package)
    if reason:
        pytest.skip(reason)
    row = compared(one)
    assert row.holds, f"{row.difference} apart"


def names_of(*kinds):
    return {
        name
        for one in registry.COMPARISONS
        if one.kind in kinds
        for name in re.findall(r"(\w+)(?: \(.*?\))?(?:, |$)", one.subject)
    }


def test_every_method_is_compared_or_has_a_reason():
    found = names_of("methods")
    assert {name for name in pj.METHODS if name not in found} == {
        name for name in registry.WITHOUT if name in pj.METHODS
    }
    assert found - set(pj.METHODS) == {"global_merge"}


def test_every_rule_attack_and_graph_is_compared_or_has_a_reason():
    rules = {"balance", "bucketing", "centered_clipping", "clipped_gossip", "cs_plus"}
    rules |= {"geometric_median", "gts", "ios", "krum", "median", "multi_krum", "nna"}
    rules |= {"nnm", "self_centered_clipping", "trimmed_mean", "ubar"}
    machinery = {"Received", "Rule", "apply", "check_rule", "convex"}
    machinery |= {"received_from_members"}
    assert rules | machinery == set(robust.__all__)
    assert names_of("rules") == rules
    who = {"Attack", "alie_scale", "attached", "byzantine_neighbors", "report"}
    who |= {"spread", "uniform"}
    hostile = set(attacks.__all__) - who
    assert hostile - names_of("attacks") == hostile & set(registry.WITHOUT)
    tools = {"COMMUNICATION", "Topology", "as_graph", "as_topology", "from_edge_list"}
    tools |= {"is_doubly_stochastic", "report", "weights"}
    left = set(pj.graphs.__all__) - tools - names_of("graphs")
    reasons = {name.removesuffix(" graph") for name in registry.WITHOUT}
    assert left == reasons & set(pj.graphs.__all__)


def test_comparisons_are_well_formed():
    names = [one.name for one in registry.COMPARISONS]
    assert len(set(names)) == len(names)
    for one in registry.COMPARISONS:
        assert one.kind in KINDS and one.package in {*PACKAGES, VECTORS}
        assert "|" not in f"{one.subject}{one.other}{one.problem}{one.convention}"
        assert one.tolerance <= 1e-4
    assert {one.kind for one in registry.COMPARISONS} == set(KINDS)


def test_committed_page_and_rows_are_those_of_the_registry():
    text = (ROOT / "docs" / "equality.md").read_text()
    assert text == page.render(KEPT), "run python -m experiments.equality"
    known = {one.name: one for one in registry.COMPARISONS}
    assert set(KEPT) == set(known)
    for name, row in KEPT.items():
        one = known[name]
        kept = one.problem, one.convention, one.differs, one.tolerance, one.kind
        assert kept == (
            row.problem,
            row.convention,
            row.differs,
            row.tolerance,
            row.kind,
        )
        assert row.holds and np.isfinite(row.difference)
        assert bool(row.version) == (one.package != VECTORS)


def made(run, **options):
    return Comparison("a", "methods", "b", VECTORS, "two numbers", run, **options)


def test_differences():
    one = made(lambda: (np.ones(2), np.array([1.0, 1.5])))
    row = compared(one)
    assert row.difference == 0.5 and not row.holds
    assert compared(one._replace(differs="another rule")).holds
    assert not compared(made(lambda: (1.0, 1.0), differs="none")).holds
    assert 0 < APART < 1
    assert largest_difference({"a": [1, 2]}, {"a": [1, 4]}) == 2
    wide = compared(made(lambda: (jax.numpy.ones(1) / 3, np.ones(1) / 3)))
    assert wide.difference == 0  # in float64


@pytest.mark.parametrize(
    "ours, theirs, message",
    [
        ({"a": 1.0}, {"b": 1.0}, "the same tree"),
        ([], [], "one or more"),
        (np.ones(2), np.ones(3), "equal shapes"),
        (np.ones(0), np.ones(0), "equal shapes"),
        (np.array([np.nan]), np.ones(1), "got NaN"),
    ],
)
def test_what_cannot_be_compared_is_no_success(ours, theirs, message):
    with pytest.raises(ValueError, match=message):
        largest_difference(ours, theirs)


def test_missing_packages_have_a_command(monkeypatch):
    monkeypatch.setitem(PACKAGES, "numpy", ("no_such_module", "pip install it"))
    assert missing("numpy") == "numpy is not installed: pip install it"
    assert missing(VECTORS) == ""


def two(monkeypatch, other=1.0):
    rows = (
        made(lambda: (1.0, other)),
        Comparison("c", "graphs", "d", "numpy", "one", lambda: (2.0, 2.0)),
    )
    monkeypatch.setattr(registry, "COMPARISONS", rows)


def test_command_keeps_what_it_cannot_run(tmp_path, monkeypatch, capsys):
    two(monkeypatch)
    flags = [f"--results={tmp_path}", f"--docs={tmp_path}"]
    run_tool(command.Options, command.main, *flags)
    run_tool(command.Options, command.main, *flags, "--check")
    first = json.loads((tmp_path / "equality.json").read_text())
    assert [row["subject"] for row in first["rows"]] == ["a", "c"]
    assert first["command"] == command.COMMAND
    monkeypatch.setitem(PACKAGES, "numpy", ("no_such_module", "pip install it"))
    run_tool(command.Options, command.main, *flags, "--kinds=graphs")
    assert "skipped  c | d | numpy: numpy is not" in capsys.readouterr().out
    assert json.loads((tmp_path / "equality.json").read_text()) == first
    (tmp_path / "equality.md").write_text("other")
    with pytest.raises(SystemExit):
        run_tool(command.Options, command.main, *flags, "--check")
    assert "is not what" in capsys.readouterr().err


def test_command_fails_where_numbers_differ(tmp_path, monkeypatch, capsys):
    two(monkeypatch, other=1.5)
    flags = [f"--results={tmp_path}", f"--docs={tmp_path}", "--packages=vectors"]
    with pytest.raises(SystemExit):
        run_tool(command.Options, command.main, *flags)
    assert "Need equal numbers, got others: a | b" in capsys.readouterr().err
    text = (tmp_path / "equality.md").read_text()
    assert "1 of 2 comparisons were run" in text and "- c: d (numpy)" in text
    with pytest.raises(SystemExit):
        run_tool(command.Options, command.main, "all")
    assert "Need no arguments but flags, got 'all'" in capsys.readouterr().err


def test_rows_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "equality.json"
    assert page.load(path) == {}
    path.write_text("[")
    with pytest.raises(InputError, match="is broken"):
        page.load(path)
    assert all(isinstance(row, Row) for row in KEPT.values())
