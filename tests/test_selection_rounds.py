"""PENS and DAC against plain loops over rounds; messages at published settings."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits
from test_protocols import TOY, TOY_LEARNER, run, toy_world

from p2pjax.algorithms._d_cliques import d_cliques
from p2pjax.algorithms._diple import diple
from p2pjax.algorithms._local_only import local_only
from p2pjax.datasets import partition, stacking
from p2pjax.engines.pulling import pull
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.graphs import clusters, generators
from p2pjax.nn import mlp
from p2pjax.selection import aucccr, peer_evaluation
from p2pjax.selection.dac import dac
from p2pjax.selection.l2c import l2c
from p2pjax.selection.panm import panm
from p2pjax.selection.peer_sampling import partial_view
from p2pjax.selection.pens import pens
from p2pjax.selection.similarity import agreement, update_cosine
from p2pjax.selection.sparse import sparse
from p2pjax.simulation._simulate import simulate
from p2pjax.tasks._classification import classification
from p2pjax.tasks.losses import softmax_cross_entropy
from p2pjax.tasks.task import Task, probabilities
from p2pjax.training import agent_loop
from p2pjax.training.learner import Learner, gradient_descent
from p2pjax.types import Ratio, Variables

close = partial(np.testing.assert_allclose, rtol=0, atol=1e-4)


class TestAgainstPlainLoops:
    """Scalar models, ragged agents, all peers permitted; draws come from the keys."""

    targets = np.array([0.0, 0.3, 5.0, 5.2, 0.1, 4.9])
    sizes = (1, 4, 2, 1, 3, 2)
    num_rounds = 12

    def draws(self, t):
        """Gumbel scores of all pairs in the selection of round t."""
        key = jax.random.fold_in(jax.random.key(0), t)
        _, key_select = jax.random.split(key)
        key_draw, _ = jax.random.split(key_select)
        return np.asarray(jax.random.gumbel(key_draw, (6, 5)))

    def sampled(self, t, n, num, logits=None):
        others = [j for j in range(6) if j != n]
        scores = self.draws(t)[n] + (0 if logits is None else logits[others])
        return sorted(others[c] for c in np.argsort(-scores)[:num])

    def averaged(self, h, n, chosen):
        models = [n, *chosen]
        sizes = np.array([self.sizes[j] for j in models], float)
        return (sizes * h[models]).sum() / sizes.sum()

    def play(self, selection):
        algorithm = pull(TOY, TOY_LEARNER, selection, batch_size=4)
        world = toy_world(self.targets, self.sizes)
        states, info = run(algorithm, world, self.num_rounds)
        return np.asarray(states.variables.params["x"]), states.selection_state, info

    def test_pens(self):
        x, kept, info = self.play(pens(num_peers=1, num_candidates=3, second_stage=8))
        start, counts = np.ones(6), np.zeros((6, 6), int)
        for t in range(self.num_rounds):
            h = (start + self.targets) / 2
            close(x[t], h)
            start = np.zeros(6)
            for n in range(6):
                if t + 1 < 8:
                    candidates = self.sampled(t, n, 3)
                    losses = [(h[j] - self.targets[n]) ** 2 / 2 for j in candidates]
                    best = candidates[int(np.argmin(losses))]
                    counts[n, best] += 1
                    assert info.received[t, n] == 3
                else:
                    known = [j for j in range(6) if counts[n, j] > 8 / 6]
                    best = max(
                        known or [j for j in range(6) if j != n],
                        key=lambda j, n=n, t=t: self.draws(t)[n][j - (j > n)],
                    )
                    assert info.received[t, n] == 1
                start[n] = self.averaged(h, n, [best])
            assert (np.asarray(kept[t]) == counts).all()

    def test_dac(self):
        x, state, info = self.play(dac(num_peers=2, sharpness=3.0))
        start = np.ones(6)
        similar, is_met = np.zeros((6, 6)), np.zeros((6, 6), bool)
        for t in range(self.num_rounds):
            h = (start + self.targets) / 2
            close(x[t], h, atol=1e-3)
            old = similar.copy()
            start = np.zeros(6)
            for n in range(6):
                asked = self.sampled(t, n, 2, 3.0 * old[n])
                logits = np.delete(3.0 * old[n], n)
                if (np.sort(logits)[-2] - logits.max()) < -700:
                    asked = [int(old[n].argmax())]
                for j in asked:
                    loss = (h[j] - self.targets[n]) ** 2 / 2
                    similar[n, j], is_met[n, j] = 1 / max(loss, 1e-6), True
                for j in range(6):
                    knowing = [k for k in asked if old[k, j] > 0]
                    if j != n and not is_met[n, j] and knowing:
                        most = max(knowing, key=lambda k, n=n: similar[n, k])
                        similar[n, j] = old[most, j]
                start[n] = self.averaged(h, n, asked)
                assert info.received[t, n] == len(asked)
            np.testing.assert_allclose(
                state.similarity[t], similar, rtol=1e-2, atol=1e-3
            )
            assert (np.asarray(state.is_met[t]) == is_met).all()


NUM_AGENTS = 100


def cumulative(algorithm, world, num_rounds):
    """Messages per agent after each round, `[R]`."""
    inputs = algorithm.plan(np.random.default_rng(0), world, num_rounds)

    @jax.jit
    def rounds(key, inputs, world):
        def one(state, scanned):
            t, inputs = scanned
            key_round = jax.random.fold_in(key, t)
            state, info = algorithm.round(key_round, t, inputs, state, world)
            return state, (info.sent.mean(), info.received.mean())

        numbers = jnp.arange(num_rounds, dtype=jnp.int32)
        return jax.lax.scan(one, algorithm.init(key, world), (numbers, inputs))[1]

    world = jax.tree.map(jnp.asarray, world)
    sent, received = rounds(jax.random.key(0), inputs, world)
    close(sent, received)
    return np.cumsum(np.asarray(sent, float))


def clusters_of_scalars():
    rng = np.random.default_rng(0)
    targets = 4.0 * (np.arange(NUM_AGENTS) % 2) + 0.3 * rng.normal(size=NUM_AGENTS)
    return toy_world(targets)


class TestMessages:
    """Ratios to `sparse` with three peers, 100 agents, 500 and 1000 rounds."""

    def ratios(self, selection):
        algorithm = pull(
            TOY, TOY_LEARNER, selection, batch_size=1, agent_loop=agent_loop.VMAP
        )
        sent = cumulative(algorithm, clusters_of_scalars(), 1000)
        return [sent[t - 1] / (3 * t) for t in (500, 1000)]

    def test_pens(self):
        found = self.ratios(pens())
        close(found, [1.198, 1.099])
        assert np.mean(found) == pytest.approx(1.148, abs=1e-3)

    def test_l2c(self):
        with jax.numpy_dtype_promotion("standard"):
            found = self.ratios(l2c())
        close(found, [1.64, 1.32])
        assert np.mean(found) == pytest.approx(1.48, abs=1e-3)

    @pytest.mark.slow
    def test_dac(self):
        """As many as asked for, unless likelihoods underflow, as on exact scalars."""
        close(self.ratios(dac(sharpness=1e-5)), [1, 1])
        assert max(self.ratios(dac())) < 0.5

    def test_aucccr(self):
        """It is `sparse` on a graph within the groups that it has found."""
        group = np.arange(NUM_AGENTS) % 2
        graph = aucccr.group_graph(np.random.default_rng(0), group, 3)
        assert (np.asarray(graph.mask).sum(-1) == 3).all()

    @pytest.mark.slow
    def test_panm(self):
        first, second = self.ratios(panm())
        assert 1.44 < first < 1.53
        assert 1.37 < second < 1.46

    @pytest.mark.slow
    def test_diple(self):
        """Models that are random in every round: towards all of them the loss falls."""
        task = Task(
            lambda key: Variables({"x": jax.random.normal(key, (40,))}, {}),
            lambda variables, batch, key: (jnp.zeros(()), variables.stats),
            lambda variables, batch: {
                "loss": Ratio(jnp.square(variables.params["x"]).sum(), jnp.ones(()))
            },
        )
        redraw = Learner(
            lambda variables: (),
            lambda key, variables, opt, batch, extra: (
                Variables({"x": jax.random.normal(key, (40,))}, {}),
                opt,
                jnp.zeros(()),
            ),
        )
        algorithm = diple(task, redraw, batch_size=1, agent_loop=agent_loop.VMAP)
        sent = cumulative(algorithm, toy_world([0.0] * NUM_AGENTS), 50)
        assert sent[-1] / (3 * 50) == 6  # the same in every round

    @pytest.mark.slow
    def test_d_cliques(self):
        clique = np.repeat(np.arange(10), 10)
        found = []
        for size in (100, 400):
            world = toy_world([0.0] * NUM_AGENTS, [size] * NUM_AGENTS)
            algorithm = d_cliques(
                TOY, optax.sgd(0.1), clique, batch_size=32, agent_loop=agent_loop.VMAP
            )
            found.append(cumulative(algorithm, world, 1)[-1] / 3)
        close(found, [18.9 * 4 / 3, 18.9 * 13 / 3])
        assert np.mean(found) == pytest.approx(53.6, abs=0.1)


@pytest.mark.slow
class TestRotatedDigits:
    """Sixteen agents, half of which see digits upside down."""

    num_rounds = 40

    def world(self):
        x, y = load_digits(return_X_y=True)
        x = (x * 15).astype(np.uint8).reshape(-1, 8, 8)
        rows = np.random.default_rng(0).permutation(len(y)).reshape(-1)[: 16 * 100]
        rows = rows.reshape(16, 100)
        examples = stacking.Examples(x, y, np.zeros_like(y), 10)
        world = partition.federated_data(
            examples, list(rows[:, :50]), list(rows[:, 50:])
        )
        world = partition.rotate(world, 2 * (np.arange(16) % 2))
        return world._replace(valid=world.train)

    def setting(self):
        module = mlp.MLP((32, 10))
        task = classification(module, (8, 8), softmax_cross_entropy)
        learner = gradient_descent(task, optax.adam(0.01))
        return module, task, learner

    def play(self, selection, graph=None):
        """Share of in-cluster peers among the merged, by round, and final accuracy."""
        module, task, learner = self.setting()
        world = self.world()
        rows = np.random.default_rng(1).integers(0, 50, 16)
        probe = peer_evaluation.Probe(
            probabilities(module),
            {"x": world.test.examples["x"][np.arange(16), rows]},
        )
        algorithm = pull(task, learner, selection, graph, batch_size=10, probe=probe)
        with jax.numpy_dtype_promotion("standard"):
            (last,) = simulate(
                jax.random.key(0),
                algorithm,
                world,
                self.num_rounds,
                eval_every=self.num_rounds,
                evaluate=on_test_sets(task),
            )
        sender, count = last.info.merged
        own = world.cluster[None, :, None]
        inside = count * (world.cluster[sender] == own)
        return inside.sum((1, 2)) / count.sum((1, 2)), last.metrics["accuracy"].mean()

    @pytest.mark.parametrize(
        "selection",
        [
            pens(second_stage=20),
            dac(),
            panm(second_stage=10, matching_every=5),
            panm(similarity=update_cosine(), second_stage=10, matching_every=5),
            partial_view(pens(second_stage=20), 8),
        ],
        ids=["pens", "dac", "panm_loss", "panm_grad", "pens_with_views"],
    )
    def test_agents_find_their_cluster(self, selection):
        share, accuracy = self.play(selection)
        print(share[0], share[-4:].mean(), accuracy)
        assert share[0] < 0.8
        assert share[-4:].mean() > 0.9

    def test_predictions_of_averaged_models_say_little(self):
        """Better than the chance of 7 in 15, but far from finding the cluster."""
        selection = panm(similarity=agreement(), second_stage=10, matching_every=5)
        share, accuracy = self.play(selection)
        print(share[0], share[-10:].mean(), accuracy)
        assert share[-10:].mean() > 0.55

    def test_against_the_baselines(self):
        rng = np.random.default_rng(0)
        graph = generators.directed_regular(16, 3, seed=rng)
        _, blind = self.play(sparse(), graph)
        cluster = self.world().cluster
        share, oracle = self.play(sparse(), clusters.oracle(cluster, 3, seed=rng))
        assert (share == 1).all()
        _, chosen = self.play(pens(second_stage=20))
        print("sparse", blind, "oracle", oracle, "pens", chosen)
        assert oracle > blind and chosen > blind

    def test_aucccr_finds_the_clusters_from_predictions(self):
        module, task, learner = self.setting()
        world = self.world()
        with jax.numpy_dtype_promotion("standard"):
            (last,) = simulate(
                jax.random.key(0),
                local_only(task, learner, batch_size=10),
                world,
                30,
                eval_every=30,
                evaluate=on_test_sets(task),
            )
        examples = {
            name: np.concatenate(leaf[:2]) for name, leaf in world.test.examples.items()
        }
        probe = peer_evaluation.Probe(probabilities(module), examples)
        outputs = peer_evaluation.predictions(
            probe, last.state.variables, agent_loop.IN_PLACE
        )
        features = aucccr.profiles(np.asarray(outputs), examples["y"])
        rng = np.random.default_rng(0)
        # Without a limit on what a group can be worth, one group of all is best.
        assert (aucccr.value_groups(rng, features) == 0).all()
        group = aucccr.value_groups(rng, features, aucccr.root_of_size(8))
        same = world.cluster[:, None] == world.cluster
        assert ((group[:, None] == group) == same).mean() > 0.85
