"""Values of flags that are no numbers, or make no sense, are refused everywhere."""

import dataclasses

import experiment_modules
import pytest

from experiments.engine import config, fields
from experiments.next_word import methods as next_word
from p2pjax.types import InputError

NEITHER = ("nan", "inf", "-inf", "1e999", "")
MAY_BE_NEGATIVE = {"verbosity"}  # -1: warnings only


def kinds():
    return {
        name: found.config for name, found in experiment_modules.EXPERIMENTS.items()
    }


def numeric():
    """Flags that take one number or several, by experiment."""
    for name, kind in kinds().items():
        for field in dataclasses.fields(kind):
            if any(part in str(field.type) for part in ("int", "float")):
                yield name, field.name


def refuses(experiment, *arguments):
    with pytest.raises(InputError, match=arguments[0].partition("=")[0].strip("-")):
        config.parse(kinds()[experiment], arguments)


@pytest.mark.parametrize(("experiment", "flag"), list(numeric()))
def test_item_4_every_number_is_finite_and_in_its_range(experiment, flag):
    for value in NEITHER:
        refuses(experiment, f"--{flag}={value}")
    if flag not in MAY_BE_NEGATIVE:
        refuses(experiment, f"--{flag}=-1")


@pytest.mark.parametrize(
    ("experiment", "flag"),
    [
        ("associative", "threshold=0"),
        ("combination", "target=0"),
        ("combination", "target=1.5"),
        ("next_word", "clients=0"),
        ("next_word", "clients=2.5"),
        ("multi_task", "dropout=1"),
        ("virtual", "fedavg_share=0"),
        ("virtual", "fedavg_share=1.5"),
        ("virtual", "network=784=0=8=10"),
        ("mnist", "network=784=0=8=10"),
        ("mnist", "network=784=300=0"),
        ("femnist", "network=784=0=8=10"),
        ("femnist", "network=0=8=10"),
        ("vsn", "network=100=0=20=1"),
        ("vsn", "network=100"),
    ],
)
def test_item_4_values_that_make_no_sense(experiment, flag):
    refuses(experiment, f"--{flag}")


def test_item_4_more_clients_than_agents():
    def clients(*arguments, num_agents):
        found = config.parse(kinds()["next_word"], arguments)
        contender = next_word.Contender("fedavg", num_agents)
        return next_word._num_clients(found, contender)

    assert clients(num_agents=100) == 10
    assert clients(num_agents=4) == 4
    assert clients("--clients=4", num_agents=4) == 4
    with pytest.raises(InputError, match="at most 4 clients .*--clients=5"):
        clients("--clients=5", num_agents=4)


def test_item_4_the_test_above_can_fail():
    read = fields.number(0.0, "Any.").metadata["read"]
    assert read("-1") == -1


FORMER = [
    ("mnist", "--per_sample", "update", "per_sample"),
    ("mnist", "--noper_sample", "update", "mini_batch"),
    ("femnist", "--shared_init=false", "init", "own"),
    ("associative", "--shared_init", "init", "shared"),
]


@pytest.mark.parametrize(("experiment", "argument", "flag", "value"), FORMER)
def test_former_switches_are_still_taken(experiment, argument, flag, value):
    found = config.parse(kinds()[experiment], [argument])
    assert getattr(found, flag) == (value,)
    assert f"--{flag}={value}\n" in config.as_flags(found)
    with pytest.raises(InputError, match=f"--{flag}, or .* got both"):
        config.parse(kinds()[experiment], [argument, f"--{flag}={value}"])


def test_without_a_former_switch_the_flag_decides():
    assert config.parse(kinds()["mnist"], ["--init=own"]).init == ("own",)
    assert config.parse(kinds()["associative"], []).init == ("own",)
