"""Combinations of what a source leaves open, held against its claims."""

import itertools
import json

import jax
import numpy as np
import pytest
from figure_contents import assert_drawn

from experiments.averaging import pictures
from experiments.averaging.design import WEIGHTS, choices_of, rate_of
from experiments.averaging.realisations import facts_of
from experiments.claims import evidence, ledger, readings
from experiments.keep import kept_study
from experiments.mnist.config import Config
from experiments.mnist.study import make_jobs
from experiments.tables import readings as tables
from p2pjax.nn.mlp import MLP
from p2pjax.partial.private_gossip import expected_error
from p2pjax.types import InputError

CLAIM = """
[study."toy.level"]
rounds = 20
runs = 10
core_hours = 1

[[claim]]
id = "middle-best"
source = "A paper"
place = "1"
statement = "Level 80 is best."
kind = "order"
metric = "accuracy"
setting = "toy"
printed = ""
needs = "nothing"
[[claim.reading]]
name = "common first weights"
[[claim.reading]]
name = "first weights of their own"
studies = { "toy.level" = "toy.level" }
[[claim.part]]
study = "toy.level"
is = "greater"
left = { scheme = "level_80" }
right = [{ scheme = "level_0" }, { scheme = "level_100" }]
each = { batch_size = [50, 500, 800] }
"""
SO = {"level_0": 0.5, "level_80": 0.8, "level_100": 0.6}
NOT_SO = {"level_0": 0.9, "level_80": 0.5, "level_100": 0.8}


def write_design(folder, by_loss):
    """Five runs of three levels at two sizes, in two combinations."""
    lines = [
        {
            "scheme": scheme,
            "setting": {"loss": loss, "init": "own", "level": 0, "batch_size": size},
            "run": run,
            "round": [10, 20],
            "accuracy": [0.1, by_loss[loss, size][scheme] + run / 1000],
        }
        for (loss, size), scheme, run in itertools.product(by_loss, SO, range(5))
    ]
    path = folder / "results" / "toy.design_level"
    path.mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "runs.jsonl").write_text(text)
    (folder / "results" / "claims.toml").write_text(CLAIM)
    return evidence.load(folder / "results")


@pytest.fixture
def studies(tmp_path):
    made = {("a", 50): SO, ("a", 500): SO, ("b", 50): NOT_SO, ("b", 500): SO}
    return write_design(tmp_path, made)


def test_every_combination_is_judged_by_the_rule_of_the_ledger(tmp_path, studies):
    found = ledger.load(tmp_path / "results" / "claims.toml")
    repeated = readings.designs(studies, "toy")
    assert set(repeated) == {"toy.level"} and not readings.designs(studies, "other")
    scores = readings.score(found, repeated)
    first, second = (("loss", "a"), ("init", "own")), (("loss", "b"), ("init", "own"))
    # Of the first reading alone, and of the two sizes that the design has.
    assert scores[first] == (readings.Score("middle-best", "so", 4, 4),)
    assert scores[second] == (readings.Score("middle-best", "partly so", 2, 4),)


def test_tables_say_which_combination_agrees_best(tmp_path, studies):
    (text,) = tables.sections(tmp_path, studies, "toy")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[0].startswith("| loss | init | so | partly so |")
    assert rows[1] == "| a | own | 1 | 0 | 0 | 0 | 0 | 4 of 4 |"
    assert rows[2] == "| b | own | 0 | 1 | 0 | 0 | 0 | 2 of 4 |"
    assert rows[4] == "| `middle-best` | 1 | 1 | 0 | 0 | 0 |"
    assert "All claims are so in 1 of 2 combinations." in text
    assert tables.sections(tmp_path, studies, "other") == []


class TestChoices:
    def test_one_combination_is_in_no_setting(self, parse):
        ((setting, choices),) = choices_of(parse("--study=level", experiment="mnist"))
        assert setting == {}
        assert choices[:5] == (
            "squared_error",
            "shared",
            "glorot",
            "per_sample",
            "server",
        )

    def test_all_combinations_are_compared(self, parse):
        found = choices_of(
            parse(
                "--loss=squared_error,cross_entropy",
                "--init=shared,own",
                "--weights=glorot,uniform",
                "--update=per_sample,mini_batch",
                experiment="mnist",
            )
        )
        settings = [tuple(setting.values()) for setting, _ in found]
        assert len(set(settings)) == 16
        assert settings == [choices[:4] for _, choices in found]

    def test_parts_of_a_design_say_what_they_are(self, parse):
        ((setting, _),) = choices_of(
            parse("--design", "--init=own", experiment="mnist")
        )
        assert setting == {
            "loss": "squared_error",
            "init": "own",
            "weights": "glorot",
            "update": "per_sample",
            "averaging": "server",
        }

    def test_cycles_mean_nothing_to_a_server(self, parse):
        found = choices_of(
            parse(
                "--averaging=server,per_model,private",
                "--cycles=1,5",
                "--privacy_level=2",
                experiment="mnist",
            )
        )
        assert [setting for setting, _ in found] == [
            {"averaging": "server"},
            {"averaging": "per_model", "cycles": 1},
            {"averaging": "per_model", "cycles": 5},
            {"averaging": "private", "cycles": 1},
            {"averaging": "private", "cycles": 5},
        ]

    def test_rates_of_mini_batches(self, parse):
        config = parse(
            "--update=per_sample,mini_batch",
            "--loss=squared_error,cross_entropy",
            "--squared_error_rate=7",
            experiment="mnist",
        )
        rates = {c[0] + c[3]: rate_of(config, c) for _, c in choices_of(config)}
        assert rates == {
            "squared_errorper_sample": 0.1,
            "squared_errormini_batch": 7,
            "cross_entropyper_sample": 0.1,
            "cross_entropymini_batch": 0.1,
        }

    @pytest.mark.parametrize(
        "args, message",
        [
            (("--squared_error_rate=3",), "--update=mini_batch for"),
            (("--rate_grid=1,2", "--learning_rate=1"), "got both"),
            (
                ("--averaging=server,pairs", "--cycles=3"),
                "got --averaging=server,pairs",
            ),
        ],
    )
    def test_refusals(self, parse, args, message):
        with pytest.raises(InputError, match=message):
            choices_of(parse(*args, experiment="mnist"))


def test_private_averaging_reports_its_error_and_its_bounds(parse):
    config = parse(
        "--averaging=server,private", "--cycles=5", "--corrupt=0.2", experiment="mnist"
    )
    (_, server), (_, private) = choices_of(config)
    assert facts_of(config, server) == {}
    facts = facts_of(config, private)
    assert facts["expected_error"] == expected_error(3, 5, 2.0, 1.0)
    assert facts["privacy_direct"] == pytest.approx(0.2**3)


def test_periods_stand_beside_drifts(parse):
    args = ("--network=64=4=10", "--train_size=20", "--levels=80", "--values=0,50")
    config = parse("--study=drift", "--periods=1,3", *args, experiment="mnist")
    jobs = make_jobs(config)
    settings = [job.setting for job in jobs]
    assert settings == [
        {"level": 80, "period": 1},
        {"level": 80, "period": 3},
        {"level": 80, "drift": 0.0},
        {"level": 80, "drift": 0.5},
    ]
    assert "after every 3 rounds" in jobs[1].program.algorithm.round_is
    with pytest.raises(InputError, match="--study=drift for --periods"):
        make_jobs(parse(*args, "--periods=2", "--values=5", experiment="mnist"))
    with pytest.raises(InputError, match="no --drift for"):
        make_jobs(parse("--study=drift", "--drift=1", *args, experiment="mnist"))


@pytest.mark.parametrize("is_design", [False, True])
def test_parts_of_a_design_are_kept_together(is_design, tmp_path):
    def part(init):
        flags = {"init": init, "seed": "0"} | ({"design": ""} if is_design else {})
        return kept_study.FinishedRun(tmp_path / init, flags, [{"run": 0}], None)

    parts = [part("shared"), part("own")]
    if not is_design:
        with pytest.raises(InputError, match="differ in --init"):
            kept_study.merged_flags(parts)
        return
    assert "--init=shared,own" in kept_study.merged_flags(parts)


def test_uniform_weights_are_from_minus_one_to_one():
    kernel_init, bias_init = WEIGHTS["uniform"]
    network = MLP((40, 3), kernel_init=kernel_init, bias_init=bias_init)
    made = network.init(jax.random.key(0), np.ones((1, 60), np.float32))["params"]
    kernel, bias = made["layer_1"]["kernel"], made["layer_1"]["bias"]
    assert -1 <= kernel.min() < -0.95 and 0.95 < kernel.max() <= 1
    assert abs(kernel.std() - 3**-0.5) < 0.02 and np.abs(bias).max() > 0.5


def test_figures_of_ways_of_averaging(tmp_path):
    """A panel per scheme that sends; who sends nothing is a level line in it."""
    ways = {"server": ({}, 50), "per_model": ({"cycles": 1}, 80)}
    ways |= {"per_model_5": ({"cycles": 5}, 400)}
    rows = [
        {
            "scheme": scheme,
            "setting": {"averaging": way.removesuffix("_5"), **more, "batch_size": 9},
            "run": 0,
            "round": 3,
            "accuracy": 0.5,
            "bytes": 0 if scheme == "level_0" else sent,
        }
        for scheme in ("level_0", "level_80")
        for way, (more, sent) in ways.items()
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text)
    config = Config(averaging=("server", "per_model"), cycles=(1, 5))
    pictures.of_combinations(config, tmp_path, "level", "averaging level (%)")
    sent, said = "bytes sent by an agent", "accuracy, mean over agents"
    assert_drawn(tmp_path, "accuracy_by_traffic", sent, said, "per model", "level 80")
    assert_drawn(
        tmp_path, "accuracy_by_cycles", "cycles of gossip", said, "level 80, server"
    )
