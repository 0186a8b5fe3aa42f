"""Numbers that no machine can hold are refused in a sentence, before anything is made.

Nothing here takes the memory that it asks for: the free memory is a stand-in, and what
is not refused ends where the first program would be compiled.
"""

import dataclasses
import re
import resource
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from experiment_modules import EXPERIMENTS

import p2pjax as pj
from experiments.engine import command, config, jobs, processes, runner
from experiments.engine.config import Common
from experiments.engine.fields import MOST
from p2pjax import host_memory, memory_estimate
from p2pjax.datasets import stacking
from p2pjax.datasets.loaders import glyphs, har, points, speakers, vsn
from p2pjax.simulation import _simulate
from p2pjax.types import InputError

GB = 10**9
SECONDS = 5  # of this process, in which a value has to be refused

# Small settings, so that what is not refused takes no time: experiment and flags.
SETTINGS = {
    "associative": ("--num_agents=4", "--shared_hidden=100", "--modified=1"),
    "combination": ("--schemes=mean",),
    "combination digits": ("--schemes=mean", "--study=digits", "--hosts=2"),
    "combination texts": (
        *("--schemes=mean", "--study=texts", "--hosts=2", "--num_words=20"),
        *("--min_train=1", "--units=4"),
    ),
    "compare": ("--methods=dpsgd,pens,fedavg",),
    "connections": ("--num_agents=8", "--methods=pens,panm,dac,l2c"),
    "connections text": ("--num_agents=8", "--methods=pens", "--study=text"),
    "connections glyphs": ("--num_agents=8", "--methods=pens", "--dataset=glyphs"),
    "femnist": ("--num_agents=4", "--train_size=20", "--test_size=10", "--levels=80"),
    "fedcurv": ("--methods=fedavg,fedcurv",),
    "fedcurv texts": ("--methods=fedcurv", "--study=texts", "--num_dims=4"),
    "heterogeneity": ("--num_agents=4",),
    "levels": ("--num_agents=4", "--samples=20", "--levels=80", "--methods=fedavg"),
    "levels texts": ("--num_agents=4", "--dataset=speakers", "--levels=80"),
    "mnist": (
        *("--num_agents=4", "--train_size=20", "--test_size=20", "--num_permuted=1"),
        *("--levels=80", "--study=train_size", "--values=20"),
    ),
    "mnist peers": (
        *("--train_size=20", "--test_size=20", "--num_permuted=1", "--levels=80"),
        *("--study=peers", "--values=4"),
    ),
    "multi_task": ("--num_agents=4", "--methods=mt", "--graphs=random"),
    "next_word": ("--num_agents=8", "--methods=dpsgd,p2p_bn"),
    "next_word scaling": ("--study=scaling", "--sizes=8"),
    "protocols": ("--num_agents=4", "--methods=dpsgd", "--train_size=20"),
    "protocols consensus": ("--num_agents=4", "--study=consensus", "--graphs=ring"),
    "robustness": (
        *("--num_agents=4", "--links=1", "--test_size=20", "--rules=gts"),
        *("--attacks=alie", "--num_byzantine=1"),
    ),
    "robustness averaging": (
        *("--num_agents=4", "--links=1", "--study=averaging", "--rules=gts"),
        *("--attacks=alie", "--num_byzantine=1"),
    ),
    "robustness dumbbell": (
        *("--num_agents=4", "--study=dumbbell", "--test_size=20", "--rules=mean"),
    ),
    "robustness separated": (
        *("--num_agents=6", "--num_byzantine=1", "--study=separated"),
        *("--graphs=two_castles", "--test_size=20", "--rules=ios", "--attacks=alie"),
    ),
    "robustness partial": (
        *("--num_agents=10", "--study=partial", "--rules=mean", "--attacks=alie"),
        *("--levels=50",),
    ),
    "robustness selection": (
        *("--num_agents=16", "--study=selection", "--byzantine_share=0.25"),
        *("--degree=1", "--methods=pens", "--attacks=backdoor"),
    ),
    "robustness compression": (
        *("--num_agents=4", "--study=compression", "--test_size=20"),
        *("--graphs=ring", "--formats=exact"),
    ),
    "virtual": ("--num_agents=4", "--size=20", "--methods=virtual,local"),
    "virtual femnist": ("--num_agents=4", "--size=20", "--study=femnist"),
    "virtual har": ("--num_agents=4", "--size=20", "--study=har"),
    "vsn": ("--num_agents=4", "--train_size=20", "--test_size=10", "--levels=80"),
    "vsn gossip": ("--num_agents=8", "--averaging=gossip", "--levels=80"),
}
# Of what all experiments have, those that matter in each of them.
IN_ALL = {"batch_size", "first_run", "num_rounds", "num_runs"}
# What would fill any memory, or take for ever, if it were taken.
REFUSED = {
    "associative": "num_agents num_bits num_hidden block_size",
    "combination": "",
    "combination digits": "hosts train_size",
    "combination texts": "hosts units",
    "compare": "num_agents hidden batch_size degree",
    "connections": "num_agents hidden batch_size degree num_candidates view_size",
    "connections text": "num_agents gru_units",
    "connections glyphs": "num_agents",
    "femnist": "num_agents train_size test_size batch_size network levels",
    "fedcurv": "train_size test_size hidden batch_size num_rounds",
    "fedcurv texts": "num_dims hidden",
    "heterogeneity": "num_agents",
    "levels": "num_agents samples channels hidden batch_size levels",
    "levels texts": "num_agents units batch_size min_train levels",
    "mnist": "num_agents test_size values network batch_size",
    "mnist peers": "train_size values",
    "multi_task": "num_agents length stream feed_forward layers heads batch_size",
    "next_word": "num_agents units batch_size num_rounds degree",
    "next_word scaling": "sizes units",
    "protocols": "num_agents train_size hidden batch_size",
    "protocols consensus": "num_agents num_rounds",
    "robustness": "num_agents num_byzantine links train_size test_size hidden",
    "robustness averaging": "num_agents num_byzantine links dimension",
    "robustness dumbbell": "num_agents extra_edges train_size test_size hidden",
    "robustness separated": "num_agents num_byzantine train_size test_size",
    "robustness partial": "num_agents levels train_size hidden degree",
    "robustness selection": "num_agents degree hidden",
    "robustness compression": "num_agents train_size test_size hidden degree",
    "virtual": "num_agents size network batch_size num_samples num_test_samples",
    "virtual femnist": "num_agents size",
    "virtual har": "num_agents size",
    "vsn": "num_agents train_size test_size network batch_size num_runs num_devices",
    "vsn gossip": "degree num_rounds",
}
NETWORKS = ("100=2147483647=2", "100=100000=100000=2", "64=100000=100000=10")


class TakenError(Exception):
    """It came to where a program would be compiled."""


class LateError(BaseException):
    """It took too long."""


@pytest.fixture
def attempt(monkeypatch, tmp_path, capsys):
    """Starts an experiment where 4 GB are free; returns what it says, '' if it runs."""

    def taken(*args):
        raise TakenError

    def late(*args):
        raise LateError

    monkeypatch.setattr(host_memory, "free_bytes", lambda: 4 * GB)
    monkeypatch.setattr(memory_estimate, "estimate", taken)
    monkeypatch.setattr(runner, "_measure", taken)
    before = signal.signal(signal.SIGPROF, late)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 8 * GB
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))

    def start(setting, *flags):
        own = EXPERIMENTS[setting.split()[0]]
        rounds = ("--num_rounds=2", "--eval_every=1", "--verbosity=-1")
        folder = f"--workdir={tmp_path / 'run'}"

        def run():
            chosen = config.parse(
                own.config, [*SETTINGS[setting], *rounds, folder, *flags]
            )
            processes.seat(
                chosen.num_processes, chosen.process_id, chosen.coordinator, False
            )
            command.run(own, command.settle(chosen))

        signal.setitimer(signal.ITIMER_PROF, 60)
        begin = time.process_time()
        try:
            command.guarded(run)
        except TakenError:
            return ""
        except SystemExit as ended:
            seconds = time.process_time() - begin
            said = capsys.readouterr().err
            assert ended.code == 2 and said.count("\n") == 1, said
            assert seconds < SECONDS, said
            assert not (tmp_path / "run").exists()
            return said
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        raise AssertionError("it ran to its end")

    yield start
    resource.setrlimit(resource.RLIMIT_AS, limits)
    signal.signal(signal.SIGPROF, before)


def values_of(field):
    """Huge ones: more than any flag takes, the most that one takes, and fewer."""
    if field.name == "network":
        return NETWORKS
    if "int" in str(field.type):
        return (str(10**18), str(MOST), str(10**7))
    return ("1e300", "1e9", "1e-300") if "float" in str(field.type) else ()


def huge():
    """Every number of every setting; most of what all have in one of them only."""
    common = {field.name for field in dataclasses.fields(Common)} - IN_ALL
    for setting in SETTINGS:
        for field in dataclasses.fields(EXPERIMENTS[setting.split()[0]].config):
            if values_of(field) and (field.name not in common or setting == "vsn"):
                yield setting, field


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "field"),
    [pytest.param(*one, id=f"{one[0]}-{one[1].name}") for one in huge()],
)
def test_item_10_no_number_takes_long_to_be_refused(attempt, setting, field):
    said = [attempt(setting, f"--{field.name}={value}") for value in values_of(field)]
    if "int" in str(field.type):
        assert said[0]  # 19 digits
    if field.name in REFUSED[setting].split():
        assert said[1], f"--{field.name}={values_of(field)[1]} was taken"


def test_item_10_every_flag_that_must_be_refused_exists():
    assert set(REFUSED) == set(SETTINGS)
    assert {setting.split()[0] for setting in SETTINGS} == set(EXPERIMENTS)
    for setting, flags in REFUSED.items():
        kind = EXPERIMENTS[setting.split()[0]].config
        assert set(flags.split()) <= {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    ("setting", "flags", "said"),
    [
        ("vsn", ("--num_rounds=1000000000000",), "need 2147483647 or less, got 10"),
        ("vsn", ("--num_runs=1000000000000",), "need 10000 or less"),
        ("vsn", (f"--network=100={10**9}=1",), "Need memory of .* smaller networks"),
        ("vsn", ("--batch_size=2000000000",), "fewer examples at once .--batch_size"),
        ("associative", ("--num_hidden=1000000000",), "Need memory of .* 4.0 GB are"),
        ("femnist", ("--num_agents=1000000000",), "take fewer agents or smaller net"),
        ("femnist", ("--train_size=1000000000",), "take fewer agents or examples"),
        ("mnist", ("--values=1000000000",), "Need memory of"),
        ("heterogeneity", ("--num_agents=1000000",), "divergences between 1000000"),
        ("next_word", ("--num_agents=1000000000",), "Need memory of .* TB"),
        ("next_word", ("--first_run=1000000",), "texts of each of 8000008 speakers"),
        ("connections text", ("--gru_units=1000000",), "Need memory of"),
        ("fedcurv", ("--hidden=2000000000",), "Need memory of"),
        ("virtual", ("--num_samples=2000000000",), "Need memory of"),
        ("multi_task", ("--layers=1000",), "need 100 or less"),
        ("multi_task", ("--length=2000000000",), "Need memory of"),
    ],
)
def test_item_10_what_cannot_fit_is_refused_from_shapes_alone(
    attempt, setting, flags, said
):
    assert re.search(said, attempt(setting, *flags))


def test_item_10_36_gb_of_sensors(attempt, monkeypatch):
    """They were at 9 GB after two minutes."""

    def drawn(*args, **more):
        raise AssertionError("examples are made")

    monkeypatch.setattr(vsn, "synthetic", drawn)
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 24 * GB)
    sizes = ("--train_size=50", "--test_size=340")
    assert attempt("vsn", "--num_agents=100000", *sizes) == (
        "Need memory of 36.2 GB (models 2.4 GB, optimizers and messages 0 kB, data "
        "31.2 GB, training, evaluation and checkpoints 2.4 GB, programs 100.0 MB), but "
        "24.0 GB are free: take fewer agents or examples.\n"
    )


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: vsn.synthetic(10**6, 10**4), "10000 examples of each of 1000000 sen"),
        (lambda: har.synthetic(10**6, 10**4), "10000 examples of each of 1000000 peo"),
        (lambda: glyphs.glyphs(10**9, 10), "10 images of each of 1000000000 writers"),
        (lambda: speakers.speakers(10**9), "30 texts of each of 1000000000 speakers"),
        (lambda: points.world(np.random.default_rng(0), 10**10, 400), "30000000400 po"),
    ],
)
def test_item_10_generated_data_ask_for_room_first(make, what):
    with pytest.raises(InputError, match=f"Need .* TB of memory for {what}"):
        make()


def test_item_10_stacks_ask_for_room_first(monkeypatch):
    """The longest agent makes all others as long."""
    rows = [np.arange(1000), *(np.arange(1) for _ in range(999))]
    arrays = {"x": np.zeros((1000, 10, 10), np.uint8)}
    assert stacking.stack_rows(arrays, rows[:10]).examples["x"].shape[:2] == (10, 1000)
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 10**7)
    stacking.stack_rows(arrays, rows[:10])
    with pytest.raises(InputError, match=r"Need 100.0 MB .* 1000 examples for each of"):
        stacking.stack_rows(arrays, rows)
    with pytest.raises(InputError, match=r"Need 100.0 MB .* 1000 agents"):
        stacking.stack_agents([{"x": arrays["x"][own]} for own in rows])


def test_item_10_what_the_host_draws_for_all_rounds(monkeypatch):
    drawn = []

    def plan(rng, data, num_rounds):
        drawn.append(num_rounds)
        return {"sender": np.zeros((num_rounds, 100), np.int32)}

    method = pj.Algorithm(None, plan, None, None, None, "nothing")
    data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 10**8)
    _simulate.prepare(jax.random.key(0), method, data, 200_000)
    assert drawn == [2, 200_000]
    with pytest.raises(InputError, match="120.0 MB .* draws for 300000 rounds"):
        _simulate.prepare(jax.random.key(0), method, data, 300_000)
    assert drawn[-1] == 2


def test_item_10_data_of_many_runs(parse, monkeypatch):
    """Those that wait are kept only if they are small, or refused if all must wait."""
    chosen, made = parse("--num_runs=9"), []

    def make_data(run):
        made.append(run)
        part = pj.Split({"x": np.zeros((2, 50))}, np.zeros(2, np.int32))  # 808 bytes
        return pj.FederatedData(part, part, part, np.zeros(2, np.int32))

    monkeypatch.setattr(host_memory, "free_bytes", lambda: 60_000)
    monkeypatch.setattr(jobs, "free_bytes", lambda: 60_000)
    data = jobs.kept(chosen, make_data)
    for run in (0, 1, 2, 0, 1, 2):
        data(run)
    assert made == [0, 1, 2, 2]  # two of 2432 bytes are below a tenth
    assert set(jobs.of_all_runs(chosen, make_data)) == set(range(9))
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 19_000)
    with pytest.raises(InputError, match="Need 19 kB of memory for the data of 8 more"):
        jobs.of_all_runs(chosen, make_data)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((10**6, 10**6, 10**6), np.int8),
        lambda: jax.numpy.zeros(10**14, np.int8).block_until_ready(),
    ],
)
def test_item_10_arrays_that_no_one_foresaw(capsys, make):
    with pytest.raises(SystemExit) as ended:
        command.guarded(make)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("Need more memory than there is (")
    assert said.count("\n") == 1 and "take fewer agents or examples" in said


def test_item_10_other_errors_of_jax_stay_as_they_are():
    def fail():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError):
        command.guarded(fail)


def test_item_10_layers_that_are_as_wide_as_others():
    """Two layers of 64 cells were taken for one."""
    found = config.parse(EXPERIMENTS["compare"].config, ["--hidden=64,64"])
    assert found.hidden == (64, 64)
