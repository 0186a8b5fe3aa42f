"""Attacks against published numbers and plain loops; placement, poison, refusals."""

import itertools
import json
from functools import partial
from pathlib import Path
from statistics import NormalDist

import attacks_reference as reference
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from p2pjax.exchange import attacks, mixing
from p2pjax.exchange.attacks.attackers import byzantine_mask
from p2pjax.exchange.attacks.base import Scene, at_scale, hostile_slots
from p2pjax.exchange.attacks.checks import check_asynchronous
from p2pjax.exchange.attacks.honest_graph import (
    check_byzantine_neighbors,
    warn_if_honest_disconnected,
)
from p2pjax.exchange.attacks.line_search import honest_peers, line_search
from p2pjax.exchange.attacks.placement import attached_weights
from p2pjax.graphs import as_graph, complete, metropolis_hastings, ring, star
from p2pjax.types import InputError, Peers

VECTORS = json.loads(
    (Path(__file__).parent / "vectors/adversity_attacks.json").read_text()
)
KNOWN, WORLDS = VECTORS["attacks"], VECTORS["averaging_two_worlds"]
SEARCHED = KNOWN["line_search evals=16 start=0 delta=1 ratio=.8"]
FIRST_STEPS = WORLDS["first two steps, seed 0, f=3, spectral, sound"]
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-6)
# Compilation is most of the time these tests take.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def attached_scene(adjacency, rows, num_attached, attack):
    """All agents are honest, with attackers beside each of them."""
    graph = as_graph(np.asarray(adjacency))
    peers = attached_weights(graph, num_attached)
    is_byzantine = np.zeros(len(rows), bool)
    prepared = attack.prepare and attack.prepare(graph, is_byzantine, None)
    return Scene(
        jnp.asarray(rows),
        jnp.asarray(is_byzantine),
        peers,
        hostile_slots(peers, is_byzantine, num_attached),
        jax.random.key(0),
        prepared=prepared,
    )


def sent(attack, scene, hostile=None):
    """What is sent to each receiver, or by each sender."""
    hostile = attack.hostile(scene) if hostile is None else hostile
    return np.broadcast_to(at_scale(hostile, attack.scale), scene.rows.shape)


@pytest.fixture
def known_scene():
    return lambda attack: attached_scene(
        KNOWN["adjacency"], np.array(KNOWN["X"]), KNOWN["f"], attack
    )


BESIDE = attacks.attached(KNOWN["f"])
ATTACKS = {
    "sign_flip of the mean": attacks.sign_flip(BESIDE, of="mean"),
    "foe eps=.1 omniscient": attacks.foe(BESIDE, scale=0.1),
    "alie omniscient z=1.5 (+)": attacks.alie(BESIDE, scale=1.5),
    "alie omniscient z=1.5 (-)": attacks.alie(BESIDE, scale=1.5, sign=-1),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_published_omniscient(name, known_scene):
    attack = ATTACKS[name]
    close(sent(attack, known_scene(attack)), np.tile(KNOWN[name], (6, 1)))


def test_published_local(known_scene):
    alie = attacks.alie(BESIDE, scale=1.5, sign=-1, local=True)
    foe = attacks.foe(BESIDE, scale=0.1, local=True)
    for attack, name in ((alie, "alie z=1.5 (-)"), (foe, "foe eps=.1")):
        expected = [KNOWN["local"][str(i)][name] for i in range(6)]
        close(sent(attack, known_scene(attack)), expected)


def test_published_dissensus(known_scene):
    attack = attacks.dissensus(BESIDE, scale=1.5)
    expected = [KNOWN["dissensus eps=1.5"][str(i)] for i in range(6)]
    close(sent(attack, known_scene(attack)), expected)
    unit = attacks.dissensus(BESIDE, scale=1.5, unit_weights=True)
    close(sent(unit, known_scene(unit)), expected)  # all weights are equal


def test_published_spectral(known_scene):
    attack = attacks.spectral(BESIDE, scale=1.0)
    scene = known_scene(attack)
    close(np.abs(scene.prepared), np.abs(KNOWN["fiedler"]))
    expected = [KNOWN["spectral direction"][str(i)] for i in range(6)]
    close(attack.hostile(scene).direction, expected)
    other = scene._replace(prepared=-scene.prepared)
    close(sent(attack, other), sent(attack, scene), atol=1e-14)


def test_published_graphs():
    found = attacks.report(
        np.array(KNOWN["adjacency"]), ATTACKS["foe eps=.1 omniscient"]
    )
    close(found["mu_2"], KNOWN["laplacian_eigenvalues"][1])
    close(found["lambda_max"], KNOWN["laplacian_eigenvalues"][-1])
    assert found["max_byzantine_neighbors"] == 1 == found["honest_parts"]
    worlds = attacks.report(reference.two_worlds(), attacks.foe(attacks.attached(3)))
    close(worlds["mu_2"], WORLDS["mu2"])
    close(worlds["lambda_max"], WORLDS["lambda_max"])
    assert worlds["max_byzantine_neighbors"] == 3
    assert (reference.two_worlds().sum(1) == KNOWN["two_worlds_26_8"]["degree"]).all()


@pytest.mark.parametrize("row", KNOWN["alie_z"], ids=lambda row: f"{row['n']}")
def test_published_z(row):
    if row["paper_and_He"] > 0:
        close(attacks.alie_scale(row["n"], row["m"]), row["paper_and_He"])
    else:
        sentence = r"Need a positive z for ALIE, got 0: give scale, or use the line"
        with pytest.raises(InputError, match=sentence):
            attacks.alie_scale(row["n"], row["m"])


@pytest.mark.parametrize("row", KNOWN["alie_z"], ids=lambda row: f"{row['n']}")
def test_z_of_other_libraries(row):
    """Wu et al. and byzpy divide by other numbers; such a z is given as `scale`."""
    n, m = row["n"], row["m"]
    needed = n // 2 + 1 - m
    for name, share in (("Wu", (n - needed) / (n - 1)), ("byzpy", (n - needed) / n)):
        z = NormalDist().inv_cdf(share)
        close(z, row[name], atol=1e-6)
        assert z > row["paper_and_He"] + 0.1
        assert attacks.alie((0,), z).scale == z


OBJECTIVE = []  # the one that is searched now, of scales in numpy


@partial(jit, static_argnums=0)
def search(num_agents):
    """Compiled once for all objectives of so many receivers."""
    shape = jax.ShapeDtypeStruct((num_agents,), np.float64)

    def objective(scale):
        return jax.pure_callback(lambda s: OBJECTIVE[-1](np.asarray(s)), shape, scale)

    return line_search(objective, num_agents)


def searched(attack, scene, rule, num_attached, weights, step):
    """Factors, objectives and new models, with a rule in numpy and the rest in JAX.

    Weights are the own one, that of each neighbour and that of each attacker.
    """
    base, direction = map(np.asarray, attack.hostile(scene))
    rows, own, beside, byzantine = np.asarray(scene.rows), *weights
    is_heard = np.asarray(mixing.is_peer(scene.peers))
    heard = [
        ids[h] for ids, h in zip(np.asarray(scene.peers.ids), is_heard, strict=True)
    ]

    def new_models(scale):
        """And those without attackers."""
        message = base + scale[:, None] * direction
        new, honest = [], []
        for i, x in enumerate(rows):
            m, w = rows[heard[i]], np.full(len(heard[i]), beside)
            honest.append(reference.target(rule, x, m, w, own, step))
            m = np.concatenate([m, np.tile(message[i], (num_attached, 1))])
            w = np.append(w, np.full(num_attached, byzantine))
            new.append(reference.RULES[rule](x, m, w, num_attached, step))
        return np.array(new), np.array(honest)

    def objective(scale):
        new, honest = new_models(scale)
        return ((new - honest) ** 2).sum(1)

    OBJECTIVE.append(objective)
    scale = np.asarray(search(len(rows)))
    return scale, objective(scale), new_models(scale)[0]


@pytest.mark.parametrize("case", SEARCHED)
def test_published_line_search(case, known_scene):
    rule, name = case.split("|")
    attack = getattr(attacks, name)(BESIDE)
    w = KNOWN["weight_of_every_edge"]
    scale, value, new = searched(attack, known_scene(attack), rule, 1, (w, w, w), 1.0)
    close(value, SEARCHED[case]["J"])
    close(new, SEARCHED[case]["out"])
    if rule not in ("cs_plus", "clipped_gossip"):  # whose objectives have flat parts
        close(scale, SEARCHED[case]["factor"])


NAMES = {"cs+": "cs_plus", "gts": "gts", "cg": "clipped_gossip", "ios": "ios"}


@pytest.mark.parametrize(
    "short",
    [n if n == "cs+" else pytest.param(n, marks=pytest.mark.slow) for n in NAMES],
)
def test_published_averaging_in_two_worlds(short):
    rule, attack = NAMES[short], attacks.spectral(attacks.attached(3))
    rows = np.random.default_rng(0).normal(size=(26, 5)) / np.sqrt(5)
    close(rows[[0, 13]], FIRST_STEPS["x0 of agents 0 and 13"])
    lambda_max = attacks.report(reference.two_worlds(), attack)["lambda_max"]
    weights = (1 / 24,) * 3 if rule == "ios" else (0.0, 1.0, 1.0)
    for expected in FIRST_STEPS[short]:
        scene = attached_scene(reference.two_worlds(), rows, 3, attack)
        scale, _, rows = searched(attack, scene, rule, 3, weights, 1 / lambda_max)
        close(rows[0], expected["agent 0"])
        close(rows[13], expected["agent 13"])
        if rule in ("gts", "ios"):
            close(scale[[0, 1, 13]], expected["factor of agents 0, 1, 13"])


def test_line_search_of_a_parabola():
    found = line_search(lambda s: -((s - 3.3) ** 2), 2)
    close(found, [KNOWN["line_search of -(s-3.3)^2"]] * 2)


def test_line_search_equals_the_loop():
    """Waves with slopes: growing for long, not at all, and back below 0."""
    rng = np.random.default_rng(1)
    a, b, c, d = rng.normal(size=(4, 300)) * [[1], [2], [3], [0.3]]

    def objective(xp, s, i=slice(None)):
        return a[i] * xp.sin(b[i] * s + c[i]) + d[i] * s - 0.01 * s * s

    for count in (1, 2, 16):
        found = line_search(partial(objective, jnp), 300, num_evaluations=count)
        expected = [
            reference.line_search(lambda s, i=i: objective(np, s, i), count)
            for i in range(300)
        ]
        close(found, expected)
    assert 0.1 < (found == 0).mean() < 0.9


def test_line_search_without_numbers():
    assert line_search(lambda s: s * jnp.nan, 2).tolist() == [0, 0]
    flat = line_search(jnp.zeros_like, 2)  # equal is not better
    assert flat.tolist() == [0, 0]
    single = line_search(lambda s: s.astype(jnp.float32), 1)
    assert single.tolist() == [2.0**15 - 1]


def test_targets_of_the_line_search():
    world = reference.World(np.random.default_rng(3))
    peers = Peers(*map(jnp.asarray, world.slots()))
    is_hostile = hostile_slots(peers, world.is_byzantine)
    rows = jnp.asarray(world.rows)
    stepped, averaged = (
        mixing.by_peers(honest_peers(peers, is_hostile, renormalize=averages))(rows)
        for averages in (False, True)
    )
    for i in np.flatnonzero(~world.is_byzantine):
        honest = world.honest_heard(i)
        args = world.rows[i], world.rows[honest], world.matrix[i, honest]
        own = world.matrix[i, i]
        close(stepped[i], reference.target("gts", *args, own, 1.0))
        close(averaged[i], reference.target("ios", *args, own, 1.0))


def scene_of(world, **others):
    peers = Peers(*map(jnp.asarray, world.slots()))
    return Scene(
        jnp.asarray(world.rows),
        jnp.asarray(world.is_byzantine),
        peers,
        hostile_slots(peers, world.is_byzantine),
        jax.random.key(0),
        before=jnp.asarray(world.before),
        prepared=jnp.asarray(reference.fiedler(world)),
        **others,
    )


def first_honest(world):
    return int(np.flatnonzero(~world.is_byzantine)[0])


def local_and_not(attack, expected):
    """Both knowledges: (attack, its plain loop) each."""
    return {
        local: (attack(local=local), partial(expected, local=local))
        for local in (False, True)
    }


def before_mean(world, i, local):
    return world.before[world.known(i, local)].mean(0)


NOBODY = ()  # who attacks is in the scene
LOOPS = {
    "update": (
        attacks.sign_flip(NOBODY, scale=2.0),
        lambda w, j: w.before[j] - 2 * (w.rows[j] - w.before[j]),
    ),
    "model": (attacks.sign_flip(NOBODY, of="model"), lambda w, j: -w.rows[j]),
    "boost": (
        attacks.backdoor(NOBODY, boost=4.0),
        lambda w, j: w.before[j] + 4 * (w.rows[j] - w.before[j]),
    ),
    "mimic": (attacks.mimic(NOBODY), lambda w, i: w.rows[first_honest(w)]),
    "dissensus": (
        attacks.dissensus(NOBODY, scale=1.5),
        lambda w, i: reference.dissensus(w, i, 1.5),
    ),
    "unit dissensus": (
        attacks.dissensus(NOBODY, scale=1.5, unit_weights=True),
        lambda w, i: reference.dissensus(w, i, 1.5, unit=True),
    ),
    "spectral": (
        attacks.spectral(NOBODY, scale=3.0),
        lambda w, i: (
            w.rows[i] + 3 * reference.fiedler(w)[i] * reference.fiedler(w) @ w.rows
        ),
    ),
}
for of_name, (make, loop) in {
    "mean": (
        partial(attacks.sign_flip, NOBODY, of="mean", scale=2.0),
        lambda w, i, local: -2 * reference.mean(w, i, local),
    ),
    "foe": (
        partial(attacks.foe, NOBODY, scale=0.1),
        lambda w, i, local: -0.1 * reference.mean(w, i, local),
    ),
    "foe of updates": (
        partial(attacks.foe, NOBODY, scale=0.5, updates=True),
        lambda w, i, local: (
            1.5 * before_mean(w, i, local) - 0.5 * reference.mean(w, i, local)
        ),
    ),
    "alie": (
        partial(attacks.alie, NOBODY, scale=1.5, sign=-1),
        lambda w, i, local: (
            reference.mean(w, i, local) - 1.5 * reference.deviation(w, i, local)
        ),
    ),
}.items():
    for local, case in local_and_not(make, loop).items():
        LOOPS[f"{'local ' * local}{of_name}"] = case
SEARCHES = {
    "dissensus": (
        attacks.dissensus(NOBODY),
        lambda w, i: reference.dissensus(w, i, None)[1],
    ),
    "foe": (attacks.foe(NOBODY), lambda w, i: -reference.mean(w, i, False)),
    "foe of updates": (
        attacks.foe(NOBODY, updates=True),
        lambda w, i: before_mean(w, i, False) - reference.mean(w, i, False),
    ),
    "local alie": (
        attacks.alie(NOBODY, local=True),
        lambda w, i: reference.deviation(w, i, True),
    ),
    "spectral": (
        attacks.spectral(NOBODY),
        lambda w, i: reference.fiedler(w)[i] * reference.fiedler(w) @ w.rows,
    ),
}


def all_hostile(scene):
    """Everything in one program, which must serve all graphs and attackers."""
    fixed = {
        name: jnp.broadcast_to(
            at_scale(attack.hostile(scene), attack.scale), scene.rows.shape
        )
        for name, (attack, _) in LOOPS.items()
    }
    return fixed, {name: a.hostile(scene) for name, (a, _) in SEARCHES.items()}


compiled_hostile = jit(all_hostile)


def test_attacks_equal_plain_loops_and_compile_once():
    programs_before = compiled_hostile._cache_size()
    for seed in range(6):
        rng = np.random.default_rng(seed)
        world = reference.World(rng, num_byzantine=(0, 1, 3, 5, 7, 8)[seed])
        fixed, directions = compiled_hostile(scene_of(world))
        for name, (attack, loop) in LOOPS.items():
            # rows of Byzantine senders, or of honest receivers
            wanted = world.is_byzantine == attack.per_sender
            for i in np.flatnonzero(wanted):
                close(fixed[name][i], loop(world, i), err_msg=f"{name} {i}")
        for name, (_, loop) in SEARCHES.items():
            close(directions[name].base, world.rows)
            rows = np.broadcast_to(directions[name].direction, world.rows.shape)
            for i in np.flatnonzero(~world.is_byzantine):
                close(rows[i], loop(world, i), err_msg=f"{name} {i}")
    assert compiled_hostile._cache_size() - programs_before <= 1


def test_single_precision():
    world = reference.World(np.random.default_rng(7))
    expected = compiled_hostile(scene_of(world))
    with jax.enable_x64(False):
        found = compiled_hostile(scene_of(world))
        scale = line_search(lambda s: -((s - 3.3) ** 2), 1)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert one.dtype == np.float32
        close(one, other, atol=1e-4)
    close(scale, [KNOWN["line_search of -(s-3.3)^2"]], atol=1e-4)


def test_byzantine_rows_are_never_read():
    """Nor are those that are no numbers: only senders' own attacks have them."""
    world = reference.World(np.random.default_rng(8), num_byzantine=4)
    fixed, directions = compiled_hostile(scene_of(world))
    world.rows[world.is_byzantine] = np.nan
    world.before[world.is_byzantine] = np.inf
    again, directions_again = compiled_hostile(scene_of(world))
    for name, (attack, _) in LOOPS.items():
        if not attack.per_sender:
            honest = ~world.is_byzantine
            np.testing.assert_array_equal(again[name][honest], fixed[name][honest])
    for name, hostile in directions.items():
        rows, rows_again = (
            np.broadcast_to(h.direction, world.rows.shape)[~world.is_byzantine]
            for h in (hostile, directions_again[name])
        )
        np.testing.assert_array_equal(rows_again, rows)


def test_isolated_agents_keep_their_models():
    """Dissensus of scale 1, then plain gossip."""
    attack = attacks.dissensus(NOBODY, scale=1.0)
    world = reference.World(np.random.default_rng(5), num_byzantine=4)
    scene = scene_of(world)
    weight = jnp.asarray(scene.peers.weight)
    honest = Peers(scene.peers.ids, jnp.where(scene.is_hostile, 0, weight))
    mixed = mixing.by_peers(honest)(scene.rows)
    hostile_weight = jnp.where(scene.is_hostile, weight, 0).sum(1)
    mixed = mixed + hostile_weight[:, None] * sent(attack, scene)
    is_attacked = ~world.is_byzantine & (hostile_weight > 0)
    assert is_attacked.sum() > 3
    close(mixed[is_attacked], world.rows[is_attacked])


def test_owners_of_columns_are_attacked_by_groups():
    """Agents that own other models do not count: each group as if it were alone."""
    owner = np.array([0, 0, 0, 0, 1, 1, 1, 1, -1])
    world = reference.World(np.random.default_rng(11))
    world.is_byzantine = np.isin(np.arange(9), [1, 5])
    linked = np.zeros((9, 9))
    for group in ((0, 2, 3, 1, 0), (4, 6, 7, 5, 4)):  # a path of honest agents each
        for i, j in itertools.pairwise(group):
            linked[i, j] = linked[j, i] = 1
    world.matrix = 0.2 * linked + np.diag(1 - 0.2 * linked.sum(1))
    names = ("alie", "foe", "mimic", "spectral", "local alie")
    prepared = attacks.spectral(NOBODY).prepare(
        as_graph((world.matrix > 0).astype(int)), world.is_byzantine, owner
    )
    scene = scene_of(world)._replace(prepared=jnp.asarray(prepared))

    def some(scene, owner):
        scene = scene._replace(owner=owner)
        return {name: LOOPS[name][0].hostile(scene) for name in names}

    def rows_of(scene, owner=None):
        hostile = jit(partial(some, owner=owner))(scene)
        return {
            name: sent(LOOPS[name][0], scene, hostile=hostile[name]) for name in names
        }

    found = rows_of(scene, owner)
    for group in (0, 1):
        members = owner == group
        alone = reference.World(np.random.default_rng(0), 4, 7, 1)
        alone.rows, alone.before = world.rows[members], world.before[members]
        alone.matrix = world.matrix[np.ix_(members, members)]
        alone.is_byzantine = world.is_byzantine[members]
        expected = rows_of(scene_of(alone))
        for name in names:
            honest = ~alone.is_byzantine
            close(found[name][members][honest], expected[name][honest], err_msg=name)


def sizes(jaxpr):
    """Of everything that is computed, also inside loops."""
    for equation in jaxpr.eqns:
        yield from (out.aval.size for out in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from sizes(inner)


def test_nothing_has_a_row_per_link():
    world = reference.World(np.random.default_rng(0), num_columns=50)
    traced = jax.make_jaxpr(all_hostile)(scene_of(world))
    assert max(sizes(traced.jaxpr)) == 9 * 50


@pytest.mark.parametrize("around", ["zero", "own", "mean"])
@pytest.mark.parametrize("local", [False, True])
def test_gaussian_noise(around, local):
    attack = attacks.gaussian(NOBODY, std=3.0, around=around, local=local)
    world = reference.World(np.random.default_rng(2), num_columns=2000)
    scene = scene_of(world)
    rows = sent(attack, scene)
    center = {
        "zero": np.zeros_like(world.rows),
        "own": world.rows,
        "mean": np.array([reference.mean(world, i, local) for i in range(9)]),
    }[around]
    noise = (rows - center) / 3
    assert abs(noise.mean()) < 0.03 and abs(noise.std() - 1) < 0.02
    close(np.corrcoef(noise), np.eye(9), atol=0.1)  # each row has its own
    np.testing.assert_array_equal(sent(attack, scene), rows)
    other = sent(attack, scene._replace(block=1))
    assert (other != rows).all()
    assert attack.per_sender == (not (local and around == "mean"))


def test_mimic_of_a_given_agent():
    world = reference.World(np.random.default_rng(2))
    honest = int(np.flatnonzero(~world.is_byzantine)[-1])
    rows = sent(attacks.mimic(NOBODY, agent=honest), scene_of(world))
    close(rows, np.tile(world.rows[honest], (9, 1)))
    with pytest.raises(InputError, match="Need an agent from 0 to 8 to mimic, got 9"):
        attacks.mimic(NOBODY, agent=9).hostile(scene_of(world))


def test_mimic_of_random_neighbors():
    attack = attacks.mimic(NOBODY, choose="random")
    world = reference.World(np.random.default_rng(4), num_byzantine=2)
    scene, seen = scene_of(world), [set() for _ in range(9)]

    @jit
    @jax.vmap
    def draw(key):
        """Of a block and of another one in the same round."""
        half = scene._replace(key=key, rows=scene.rows[:, :3], block=1)
        return attack.hostile(scene._replace(key=key)).base, attack.hostile(half).base

    for rows, half in zip(*draw(jax.random.split(jax.random.key(1), 60)), strict=True):
        np.testing.assert_array_equal(half, rows[:, :3])
        for i, row in enumerate(np.asarray(rows)):
            seen[i].add(int(np.flatnonzero((world.rows == row).all(1))[0]))
    for i in np.flatnonzero(~world.is_byzantine):
        assert seen[i] == set(world.honest_heard(i) or [i])


def by_direction(num_warm_up_rounds=20, owner=None):
    """A round of mimic over two blocks: (scene, memory) -> (rows, memory)."""
    attack = attacks.mimic(
        NOBODY, choose="direction", num_warm_up_rounds=num_warm_up_rounds
    )

    @jit
    def attacked(scene, memory):
        blocks = [
            scene._replace(
                rows=scene.rows[:, part], memory=memory[part], block=i, owner=owner
            )
            for i, part in enumerate((slice(None, 3), slice(3, None)))
        ]
        measured = jax.tree.map(jnp.add, *map(attack.measure, blocks))
        blocks = [block._replace(measured=measured) for block in blocks]
        rows = jnp.concatenate([attack.hostile(block).base for block in blocks], axis=1)
        memory = jnp.concatenate([attack.remember(block) for block in blocks])
        return jnp.broadcast_to(rows, scene.rows.shape), memory

    return attacked, attack.begin(jax.random.key(2), jnp.zeros(7))


def test_mimic_along_the_largest_direction():
    """Oja's rule as a loop over whole vectors; the direction is that of the data."""
    attacked, memory = by_direction(num_warm_up_rounds=5)
    v = np.asarray(memory) / np.linalg.norm(memory)
    is_byzantine = reference.World(np.random.default_rng(0)).is_byzantine
    honest = np.flatnonzero(~is_byzantine)
    for t in range(8):
        world = reference.World(np.random.default_rng(t))
        world.is_byzantine = is_byzantine
        centered = world.rows[honest] - world.rows[honest].mean(0)
        products = centered @ v
        world.rows[is_byzantine] = np.nan
        rows, memory = attacked(scene_of(world, t=t), memory)
        chosen = honest[np.argmax(np.abs(products))]
        close(rows, np.tile(world.rows[chosen], (9, 1)))
        if t < 5:
            v = t / (t + 1) * v + products @ centered / (t + 1)
            v = v / np.linalg.norm(v)
        close(memory / jnp.linalg.norm(memory), v)


def test_mimic_learns_nothing_from_equal_models():
    attacked, memory = by_direction()
    world = reference.World(np.random.default_rng(0))
    world.rows[:] = 1.0
    rows, after = attacked(scene_of(world), memory)
    close(rows, world.rows)
    np.testing.assert_array_equal(after, memory)
    world.rows = np.random.default_rng(0).normal(size=world.rows.shape) * 1e-200
    _, after = attacked(scene_of(world), memory)  # their squares are zero
    np.testing.assert_array_equal(after, memory)
    world.rows = world.rows * 1e110
    _, after = attacked(scene_of(world), memory)
    assert np.linalg.norm(after) >= 1


def test_mimic_along_the_direction_by_groups():
    """Each group of owners has its own farthest agent."""
    owner = np.repeat([3, 8], [4, 5])
    attacked, memory = by_direction(owner=owner)
    world = reference.World(np.random.default_rng(1), num_byzantine=2)
    rows, _ = attacked(scene_of(world), memory)
    for group in (3, 8):
        members = np.flatnonzero((owner == group) & ~world.is_byzantine)
        centered = world.rows[members] - world.rows[members].mean(0)
        chosen = members[np.argmax(np.abs(centered @ np.asarray(memory)))]
        close(
            rows[owner == group], np.tile(world.rows[chosen], (sum(owner == group), 1))
        )


def test_weights_of_attached_attackers():
    graph = star(4)  # degrees 3, 1, 1, 1
    peers = attached_weights(graph, 2)
    ids, weight = np.asarray(peers.ids), np.asarray(peers.weight)
    close(weight[0], [1 / 6] * 6)
    close(weight[1], [0.5, 1 / 6, 0, 0, 1 / 6, 1 / 6])
    close(weight.sum(1), np.ones(4))
    assert (ids[:, -2:] == np.arange(4)[:, None]).all()
    matrix = np.zeros((4, 4))
    np.put_along_axis(matrix, ids[:, ::-1], weight[:, ::-1], axis=1)  # slot 0 last
    close(matrix, matrix.T)
    is_hostile = hostile_slots(peers, np.zeros(4, bool), 2)
    np.testing.assert_array_equal(is_hostile, np.tile([0, 0, 0, 0, 1, 1], (4, 1)))
    apart = attached_weights(graph, 2, np.array([0, 0, 1, 1]))
    close(apart.weight[2], [1 / 3, 0, 0, 0, 1 / 3, 1 / 3])


def test_fiedler_vectors_that_are_not_unique():
    with pytest.warns(UserWarning, match="Need a simple second eigenvalue .* 2 times"):
        vector = attacks.spectral(NOBODY).prepare(ring(6), np.zeros(6, bool), None)
    close(np.linalg.norm(vector), 1)
    lone = attacks.spectral(NOBODY).prepare(
        ring(3), np.array([True, True, False]), None
    )
    close(lone, np.zeros(3))


def examples(dtype=np.float32, shape=(28, 28, 1), count=20):
    rng = np.random.default_rng(0)
    x = rng.random((count, *shape)) * (100 if dtype == np.uint8 else 0.5)
    return {
        "x": x.astype(dtype),
        "y": rng.integers(0, 10, count).astype(np.int32),
        "valid": np.arange(count) < count - 4,
    }


def test_labels_flip_back():
    poison = attacks.label_flip(NOBODY, num_classes=10).poison
    batch = examples()
    once = poison(jax.random.key(0), batch)
    np.testing.assert_array_equal(once["y"], 9 - batch["y"])
    twice = poison(jax.random.key(0), once)
    np.testing.assert_array_equal(twice["y"], batch["y"])
    assert once["x"] is batch["x"] and once["y"].dtype == np.int32


@pytest.mark.parametrize("dtype, ink", [(np.uint8, 255), (np.float32, 1)])
@pytest.mark.parametrize("side, rows", [(28, (24, 27)), (8, (6, 8))])
def test_backdoors_in_batches(dtype, ink, side, rows):
    attack = attacks.backdoor(NOBODY, share=0.25, target=3)
    batch = examples(dtype, (side, side, 1))
    poison = jit(jax.vmap(attack.poison, (0, None)))
    keys = jax.random.split(jax.random.key(0), 30)
    poisoned = jax.tree.map(np.asarray, poison(keys, batch))
    at = np.zeros((side, side), bool)
    at[slice(*rows), slice(*rows)] = True
    seen = np.zeros(20, int)
    for x, y in zip(poisoned["x"], poisoned["y"], strict=True):
        changed = (x != batch["x"]).any((1, 2, 3))
        assert changed.sum() == 4 and not changed[~batch["valid"]].any()
        assert (x[changed][:, at] == ink).all()
        np.testing.assert_array_equal(x[:, ~at], batch["x"][:, ~at])
        np.testing.assert_array_equal(y, np.where(changed, 3, batch["y"]))
        seen += changed
    assert (seen[:16] > 0).all()  # chosen at random
    assert poisoned["x"].dtype == dtype and poisoned["y"].dtype == np.int32


def test_backdoors_of_flat_images():
    batch, key = examples(), jax.random.key(0)
    flat = {**batch, "x": batch["x"].reshape(20, -1)}
    attack = attacks.backdoor(NOBODY)
    for change in (partial(attack.poison, key), attack.triggered):
        image, row = jax.tree.map(np.asarray, (change(batch), change(flat)))
        np.testing.assert_array_equal(row["x"], image["x"].reshape(20, -1))
        np.testing.assert_array_equal(row["y"], image["y"])
    plain = attack.triggered({**batch, "x": batch["x"][..., 0]})  # no channels
    np.testing.assert_array_equal(plain["x"], attack.triggered(batch)["x"][..., 0])
    wide = attacks.backdoor(
        NOBODY, patch=(0, 1, 1, 2), image_shape=(2, 4, 3), ink=7.0
    ).triggered({"x": np.zeros((1, 24)), "y": np.array([1])})
    expected = np.zeros((2, 4, 3))
    expected[0, 1:3] = 7
    np.testing.assert_array_equal(wide["x"][0], expected.ravel())


def test_success_of_a_backdoor_is_accuracy_on_triggered_examples():
    batch = examples()
    test = attacks.backdoor(NOBODY, target=2).triggered(batch)
    assert (test["y"] == 2).all() and (test["x"][:, 24:27, 24:27] == 1).all()
    np.testing.assert_array_equal(test["valid"], batch["valid"] & (batch["y"] != 2))
    del batch["valid"]
    test = attacks.backdoor(NOBODY, target=2).triggered(batch)
    np.testing.assert_array_equal(test["valid"], batch["y"] != 2)


def test_stealthy_backdoors_send_what_they_learned():
    stealthy, loud = attacks.backdoor((1,)), attacks.backdoor((1,), boost=3.0)
    assert stealthy.hostile is None and not stealthy.needs_before
    assert loud.hostile is not None and loud.needs_before


def test_placements():
    assert len(set(attacks.uniform(10, 4, seed=1))) == 4
    assert attacks.uniform(10, 4, seed=1) == attacks.uniform(10, 4, seed=1)
    drawn = {attacks.uniform(5, 1, seed=s) for s in range(50)}
    assert drawn == {(i,) for i in range(5)}
    for graph in (ring(12), [ring(12), ring(12, directed=True)]):
        byzantine = attacks.spread(graph, 4, 1, seed=3)
        assert attacks.byzantine_neighbors(graph, byzantine).max() == 1
    peers = metropolis_hastings(ring(12))
    assert attacks.spread(peers, 4, 1, seed=3) == attacks.spread(ring(12), 4, 1, seed=3)
    sentence = "Need a placement of 3 Byzantine agents with at most 2 .* in 1000 draws"
    with pytest.raises(InputError, match=sentence):
        attacks.spread(complete(6), 3, 2, seed=0)


def test_reports_of_graphs():
    attack = attacks.foe((0, 3))
    found = attacks.report(ring(6), attack)
    assert found["max_byzantine_neighbors"] == 1 and found["honest_parts"] == 2
    assert found["honest_agents"] == 4 and found["byzantine_agents"] == 2
    close(found["mu_2"], 0)
    close(found["lambda_max"], 2)
    assert attacks.report(ring(3), attacks.foe((0, 1)))["mu_2"] == 0  # one is alone
    parts = "Need a connected graph of honest agents, got 2 parts: no rule can make"
    with pytest.warns(UserWarning, match=parts):
        assert warn_if_honest_disconnected(ring(6), attack)
    assert not warn_if_honest_disconnected(complete(6), attack)
    check_byzantine_neighbors(ring(6), attack, 1)
    most = (
        "Need at most 1 Byzantine neighbours of every honest agent, got 2 at agent 1: "
        "draw another placement."
    )
    with pytest.raises(InputError, match=most):
        check_byzantine_neighbors(ring(6), attacks.foe((0, 2)), 1)
    with pytest.raises(InputError, match="got 3 at agent 0"):
        check_byzantine_neighbors(ring(6), attacks.foe(attacks.attached(3)), 2)


def test_attackers_are_sorted_numbers():
    assert attacks.foe([5, 1]).byzantine == (1, 5)
    assert attacks.foe(np.array([2])).byzantine == (2,)
    assert byzantine_mask(attacks.foe(()), 2).tolist() == [False, False]
    assert attacks.foe(attacks.attached(2)).byzantine == ()


def test_attacks_without_rounds():
    for attack in (
        attacks.sign_flip((0,)),
        attacks.sign_flip((0,), of="model"),
        attacks.gaussian((0,)),
        attacks.gaussian((0,), around="own"),
        attacks.label_flip((0,), 10),
        attacks.backdoor((0,), boost=2.0),
    ):
        check_asynchronous(attack, "P2P-BN")
    for attack in (
        attacks.alie((0,)),
        attacks.foe((0,)),
        attacks.mimic((0,)),
        attacks.dissensus((0,)),
        attacks.spectral((0,)),
        attacks.sign_flip((0,), of="mean"),
        attacks.gaussian((0,), around="mean"),
    ):
        sentence = f"Need all agents' messages of a round for {attack.name}, got P2P-BN"
        with pytest.raises(InputError, match=sentence):
            check_asynchronous(attack, "P2P-BN")


FEW = {"x": np.zeros((2, 28, 28)), "y": np.zeros(2, int)}
REFUSED = {
    "Need a whole number of 1 or more attackers": lambda: attacks.attached(0),
    "Need the numbers of the agents that attack, each once": lambda: attacks.foe(
        (1, 1)
    ),
    r"got \(-1,\)": lambda: attacks.foe((-1,)),
    "got 'all'": lambda: attacks.foe("all"),
    r"Need Byzantine agents from 0 to 3 .* got \[4\]": lambda: byzantine_mask(
        attacks.foe((4,)), 4
    ),
    "and an honest one beside them": lambda: byzantine_mask(attacks.foe((0, 1)), 2),
    r"Need attackers that are agents for label_flip, .* attached\(2\)": lambda: (
        attacks.label_flip(attacks.attached(2), 10)
    ),
    "Need attackers that are agents for backdoor": lambda: attacks.backdoor(BESIDE),
    "Need attackers that are agents for sign_flip": lambda: attacks.sign_flip(BESIDE),
    "Need attackers that are agents for gaussian": lambda: attacks.gaussian(
        BESIDE, around="own"
    ),
    "Need a finite scale above 0 for foe, got 0: .* or None to search": lambda: (
        attacks.foe((0,), scale=0)
    ),
    "above 0 for alie, got inf": lambda: attacks.alie((0,), scale=np.inf),
    "above 0 for dissensus, got nan": lambda: attacks.dissensus((0,), scale=np.nan),
    "above 0 for spectral, got '1'": lambda: attacks.spectral((0,), scale="1"),
    "above 0 for sign_flip, got None: give a positive number.$": lambda: (
        attacks.sign_flip((0,), scale=None)
    ),
    "above 0 for gaussian, got -1": lambda: attacks.gaussian((0,), std=-1),
    "Need a sign of 1 or -1 for alie, got 2": lambda: attacks.alie((0,), sign=2),
    "Need a form of sign_flip among update, model, mean": lambda: attacks.sign_flip(
        (0,), of="bits"
    ),
    "Need a centre of gaussian among zero, own, mean": lambda: attacks.gaussian(
        (0,), around="median"
    ),
    "Need a choice of mimic among": lambda: attacks.mimic((0,), choose="best"),
    "Need no agent for mimic where it is chosen by random": lambda: attacks.mimic(
        (0,), choose="random", agent=1
    ),
    "Need an honest agent to mimic, got 0": lambda: attacks.mimic((0,), agent=0),
    "Need one warm-up round or more": lambda: attacks.mimic(
        (0,), choose="direction", num_warm_up_rounds=0
    ),
    "Need no more than half of 10 agents to be Byzantine": lambda: attacks.alie_scale(
        10, 6
    ),
    "Need a positive z for ALIE, got -inf": lambda: attacks.alie_scale(2, 0),
    "Need two classes or more": lambda: attacks.label_flip((0,), 1),
    "Need examples with labels y to flip": lambda: attacks.label_flip((0,), 2).poison(
        None, {"x": FEW["x"]}
    ),
    "Need a share of each batch from 0 to 1": lambda: attacks.backdoor((0,), share=2),
    "Need examples with x and y for a backdoor": lambda: attacks.backdoor(
        (0,)
    ).triggered({"tokens": FEW["y"]}),
    "Need images .* with one label each": lambda: attacks.backdoor((0,)).triggered(
        {"x": FEW["x"], "y": FEW["x"]}
    ),
    r"Need the shape \(H, W\) .* of flat images of 12 numbers": lambda: (
        attacks.backdoor((0,)).triggered({"x": np.zeros((2, 12)), "y": FEW["y"]})
    ),
    "Need a patch for images of 32 x 32 pixels": lambda: attacks.backdoor(
        (0,)
    ).triggered({"x": np.zeros((2, 32, 32, 3)), "y": FEW["y"]}),
    "Need a patch inside of images of 28 x 28 pixels": lambda: attacks.backdoor(
        (0,), patch=(26, 0, 3, 3)
    ).triggered(FEW),
    "Need 0 to 4 Byzantine agents of 5, got 5": lambda: attacks.uniform(5, 5, seed=0),
    "got a function that draws one": lambda: attacks.report(
        lambda rng: ring(4), attacks.foe((0,))
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_refusals(sentence):
    with pytest.raises(InputError, match=sentence):
        REFUSED[sentence]()
