"""Schemes in files: posets, nested groups, rates, every error, a study."""

from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from partial_worlds import TASK, PartialWorld, flat
from test_protocols import run

from experiments.averaging.design import choices_of
from experiments.averaging.realisations import realisation
from experiments.engine import reading
from p2pjax.engines.partial_rounds import partial_rounds
from p2pjax.exchange.owner_classes import owner_arrays
from p2pjax.nn import mlp
from p2pjax.partial.averaging import server
from p2pjax.partial.scheme_files import read_scheme
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.partial.sharing import compile_scheme
from p2pjax.training import samplers
from p2pjax.training.agent_loop import VMAP
from p2pjax.types import InputError

ROOT = Path(__file__).parents[1]
NESTED = ROOT / "experiments" / "mnist" / "schemes" / "nested.toml"

# Figure 6 of the paper: r below g and y, both below b.
POSET = """
network = "1=4=4"
agents = 4
cross_model = true
[models.b]
cells = "1-1-1"
members = "all"
[models.g]
cells = "0-1-1"
members = [0, 1, 2]
depends = ["b"]
[models.y]
cells = "0-1-1"
members = [0, 1, 3]
depends = ["b"]
[models.r]
cells = "0-1-1"
members = [0, 1]
depends = ["g", "y"]
"""


@pytest.fixture
def read(tmp_path):
    def read_text(text, **options):
        path = tmp_path / "scheme.toml"
        path.write_text(text)
        return read_scheme(path, **options)

    return read_text


def test_a_poset_across_models(read):
    scheme = read(POSET)
    assert scheme.cross_model and scheme.depends == ((1, 0), (2, 0), (3, 1), (3, 2))
    task = TASK_OF((4, 4), 1)
    plan = compile_scheme(scheme, mlp.wiring(2), task).plan
    assert len(plan.classes) == 5  # as in the spec
    shapes = jax.eval_shape(task.init, jax.random.key(0)).params
    owners = owner_arrays(plan, shapes)["layer_2"]["kernel"]
    wanted = [[0, 1, 2, 3], [1, 1, 4, 3], [2, 4, 2, 3], [3, 3, 3, 3]]
    np.testing.assert_array_equal(owners[0], wanted)
    np.testing.assert_array_equal(owners[2][:2, :2], [[0, 1], [1, 1]])
    assert (owners[2][2:] == -1).all()


def TASK_OF(widths, inputs):  # noqa: N802
    from p2pjax.tasks._classification import classification

    return classification(mlp.MLP(widths), (inputs,))


def test_nested_groups():
    scheme = read_scheme(NESTED)
    assert [model.members for model in scheme.models] == [
        tuple(range(8)),
        (0, 1, 2, 3),
        (4, 5, 6, 7),
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    ]
    # Each on the group that has all of its members.
    assert scheme.depends == ((1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2))
    assert [model.rate for model in scheme.models] == [1.0] * 3 + [0.5] * 4


def test_what_the_study_knows_need_not_be_in_the_file(read):
    text = '[models.all]\ncells = "4-1-2"\nmembers = "all"'
    scheme = read(text, network=(4, 3, 2), num_agents=3)
    assert scheme == Scheme(((4, 3, 2),) * 3, (PartialModel((4, 1, 2), (0, 1, 2)),))
    own = read(f'networks = ["4=3=2", "4=5=2"]\n{text}')
    assert own.networks == ((4, 3, 2), (4, 5, 2))


HEAD = 'network = "4=3=2"\nagents = 3\n'
ALL = '[models.all]\ncells = "4-1-2"\nmembers = "all"\n'
PAIR = '[models.pair]\ncells = "0-1-0"\n'


@pytest.mark.parametrize(
    "text, message",
    [
        ("network = ", "Need a scheme in TOML"),
        (ALL, "Need network and agents"),
        (HEAD, "Need a table"),
        (HEAD + "size = 3\n" + ALL, "got 'size' too"),
        (HEAD + ALL + "width = 3", "in model all, got 'width' too"),
        (HEAD + "[models]\nall = 3", r"Need a table \[models.all\]"),
        (HEAD + '[models.all]\nmembers = "all"', "Need the cells of model all"),
        (HEAD + '[models.all]\ncells = "4=1=2"', "joined by '-'"),
        (HEAD + PAIR, "Need members or groups of model pair"),
        (HEAD + PAIR + "members = [0, 3]", r"among agents 0 to 2, got \[3\]"),
        (HEAD + PAIR + "members = [0, 0]", "names a member twice"),
        (HEAD + PAIR + 'members = "some"', "list of whole numbers as members"),
        (HEAD + PAIR + "members = [true]", "list of whole numbers as members"),
        (HEAD + PAIR + "members = []", "agent that implements model pair, got none"),
        (HEAD + PAIR + "groups = [[0, 1], []]", "agent that implements model pair"),
        (
            HEAD + ALL + PAIR + 'members = [0, 1]\ndepends = ["none"]',
            "depends on none, which is no model of the file: it has all, pair",
        ),
        (
            HEAD
            + PAIR
            + 'members = [0, 1]\ndepends = ["other"]\n'
            + '[models.other]\ncells = "0-1-0"\nmembers = [0, 1]\ndepends = ["pair"]',
            "dependencies without cycles.*0 is pair; 1 is other",
        ),
        (
            HEAD
            + PAIR
            + 'members = [0, 1]\ndepends = ["other"]\n'
            + '[models.other]\ncells = "0-1-0"\nmembers = [1, 2]',
            "depends on other, which no group of all these agents have",
        ),
        (HEAD + ALL.replace("4-1-2", "4-4-2"), "has 3 cells in part 1"),
        (HEAD + ALL.replace("4-1-2", "4-2"), "2 parts, but the networks have 3"),
        (
            HEAD
            + ALL
            + "offsets = [[0, 0, 0], [0, 0, 0], [0, 0, 0]]\n"
            + PAIR
            + "members = [0, 1]\noffsets = [[0, 0, 0], [0, 2, 0]]",
            "overlaps model 0 in part 1 of agent 0.*0 is all; 1 is pair",
        ),
        (HEAD + PAIR + "groups = [[0, 1]]\noffsets = [[0]]", "for offsets"),
        (HEAD + PAIR + "members = [0, 1]\nrate = -1.0", "rate of 0 or more"),
        (HEAD + PAIR + 'members = [0, 1]\nrate = "x"', "Need a number as the rate"),
        (HEAD + PAIR + "members = [0]\nrate = 0.5", "two members or more of a model"),
        (
            HEAD + ALL + "drift_threshold = -1",
            "drift_threshold of 0 or more of model 0",
        ),
        (HEAD + ALL + "drift_threshold = true", "Need a number as the drift_threshold"),
        ("cross_model = 1\n" + HEAD + ALL, "true or false for cross_model"),
        ('networks = ["4=3=2"]\n' + HEAD + ALL, "got both"),
        ("network = '4=3=2'\nagents = 0\n" + ALL, "agents of 1 or more, got 0"),
    ],
)
def test_errors(read, text, message):
    with pytest.raises(InputError, match=message):
        read(text)


def test_files_that_cannot_be_read(tmp_path, read):
    with pytest.raises(InputError, match="No such file"):
        read_scheme(tmp_path / "none.toml")
    with pytest.raises(InputError, match="at most 1048576 bytes"):
        read("#" * 2_000_000)
    (tmp_path / "binary.toml").write_bytes(bytes(range(128, 256)))
    with pytest.raises(InputError, match="in TOML"):
        read_scheme(tmp_path / "binary.toml")
    with pytest.raises(InputError, match="scheme of 4 agents, got one of 3"):
        read(HEAD + ALL, num_agents=4)
    with pytest.raises(InputError, match="4 inputs and 5 outputs"):
        read(HEAD + ALL, network=(4, 3, 5))


def test_drift_thresholds_of_models(read):
    """A number for a model, or for all of its groups; others have none."""
    groups = "groups = [[0, 1], [1, 2]]\ndrift_threshold = 0.5"
    scheme = read(HEAD + ALL + '[models.pair]\ncells = "0-1-0"\n' + groups)
    assert [m.drift_threshold for m in scheme.models] == [None, 0.5, 0.5]
    sharing = compile_scheme(scheme, mlp.wiring(2), TASK_OF((3, 2), 4))
    assert sharing.drift_thresholds == (None, 0.5, 0.5)
    assert not sharing.rates


def test_rates_of_models():
    """A step of each model is as many times as long; what is local keeps its own."""

    class World(PartialWorld):
        rates = (1.0, 1.0)

        def method(self, average, **options):
            models = tuple(
                model._replace(rate=rate)
                for model, rate in zip(self.MODELS, self.rates, strict=True)
            )
            scheme = Scheme(((2, 3, 2),) * self.SIZE, models, self.DEPENDS)
            self.sharing = compile_scheme(scheme, mlp.wiring(2), TASK)
            return partial_rounds(
                TASK,
                optax.sgd(0.5),
                samplers.cyclic_window(1),
                self.sharing,
                average,
                average_every=2,
                agent_loop=VMAP,
                shared_init=False,
            )

    def step(rates):
        world = World()
        world.rates = rates
        method = world.method(server(world.SIZE))
        data = world.world()
        start = jax.jit(method.init)(jax.random.key(0), data).variables.params
        states, _ = run(method, data, 1, inputs=())
        one = jax.tree.map(lambda leaf: leaf[0], start)
        owners = flat(owner_arrays(world.sharing.plan, one), world.SIZE)
        new = flat(states.variables.params, world.SIZE)[0]
        return owners, new - flat(start, world.SIZE)

    owners, plain = step((1.0, 1.0))
    _, rated = step((0.25, 0.0))
    factor = np.select([owners == 0, owners == 1], [0.25, 0.0], 1.0)
    np.testing.assert_allclose(rated, factor * plain, rtol=1e-4, atol=1e-7)
    assert np.abs(plain[owners == 1]).max() > 1e-4


class TestStudies:
    """The example file on the command line, averaged by a gossip per model."""

    SMALL = (
        f"--flagfile={ROOT}/experiments/mnist/flags/nested_per_model.flags",
        f"--scheme_file={NESTED}",
        "--levels=0",
        "--noscore_before",
        "--train_size=10",
        "--test_size=20",
        "--batch_size=5",
        "--num_runs=1",
        "--num_rounds=2",
        "--eval_every=2",
    )

    @pytest.mark.slow  # test_flagfiles_build builds it
    def test_nested_groups_with_a_gossip_per_model(self, run_once):
        folder = run_once(*self.SMALL, experiment="mnist")
        rows = {row["scheme"]: row for row in reading.rows(folder, ("accuracy",))}
        assert set(rows) == {"level_0", "nested"}
        # Exchanges of two messages in 5 cycles: 8 of the language, 2 x 4, 4 x 2; in
        # each of two rounds, by eight agents.
        assert rows["nested"]["messages"] == 2 * 2 * 5 * (8 + 8 + 8) / 8
        assert rows["level_0"]["messages"] == 0
        assert 0 < rows["nested"]["bytes"] < 2 * 2 * 5 * 3 * 4 * 2000
        assert "scheme_file" in rows["nested"]["setting"]

    @pytest.mark.parametrize(
        "args, message",
        [
            (("--study=peers", "--values=8"), "Need --study=level or convergence"),
            (("--num_agents=6",), "scheme of 6 agents, got one of 8"),
            (("--averaging=server",), "per_model or private for --cycles"),
            (("--averaging=private", "--view_size=4"), "per_model for --view_size"),
            (("--privacy_level=2",), "private for --privacy_level"),
        ],
    )
    def test_refusals(self, parse, args, message):
        from experiments.mnist.study import make_jobs

        with pytest.raises(InputError, match=message):
            make_jobs(parse(*self.SMALL, *args, experiment="mnist"))

    def test_thresholds_make_averaging_dynamic(self, parse, tmp_path):
        """Also where the study has no --drift; rows count each of the models."""
        from experiments.mnist.study import make_jobs

        text = NESTED.read_text().replace("rate = 0.5", "drift_threshold = 0.1")
        (tmp_path / "drifts.toml").write_text(text)
        args = (
            f"--scheme_file={tmp_path / 'drifts.toml'}",
            "--study=convergence",
            "--network=64=24=12=10",
            "--num_agents=8",
            "--num_permuted=4",
        )
        jobs = make_jobs(parse(*self.SMALL[2:], *args, experiment="mnist"))
        method, data = jobs[-1].program.algorithm, jobs[-1].make_data()
        state = jax.eval_shape(method.init, jobs[-1].key, data)
        inputs = method.plan(np.random.default_rng(0), data, 1)
        now = jax.tree.map(lambda leaf: leaf[0], inputs)
        t = jax.numpy.int32(0)
        _, info = jax.eval_shape(method.round, jobs[-1].key, t, now, state, data)
        assert info.models.messages.shape == (8, 7)

    def test_all_realisations(self, parse):
        for args in (
            ("--averaging=private", "--privacy_level=2"),
            ("--view_size=4", "--tolerance=0.1"),
        ):
            config = parse(*self.SMALL, *args, experiment="mnist")
            ((_, choices),) = choices_of(config)
            assert realisation(config, choices, 8).among is not None
