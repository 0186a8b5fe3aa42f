"""What channels, attacks and rules each method takes: tried, and as the docs say it."""

import re
import warnings
from pathlib import Path

import numpy as np
import optax

import p2pjax as pj
from p2pjax.datasets import stacking
from p2pjax.exchange import attacks, channel, robust
from p2pjax.nn.encoder import Encoder
from p2pjax.nn.variational import Columns
from p2pjax.types import FederatedData, InputError

PAGE = Path(__file__).parents[1] / "docs/adversity.md"
YES, NO, NONE = "yes", "no", "-"  # taken; refused in a sentence; no such argument

SIZE = 6
RING = pj.graphs.ring(SIZE)
TASK = pj.classification(pj.nn.MLP((4, 3)), (5,))
HEAD = ["params/layer_2/.*"]
ENCODER = Encoder(9, hidden_size=4, num_heads=(1,), mlp_dim=(4,), head_dim=4)
MIXED = pj.variational_classification(Columns((3, 2)), (4,), num_samples=1)
TASKS = pj.task_groups([pj.masked_token(ENCODER, 5, 2)], [SIZE])

AGENT = {"x": np.ones((4, 5), np.float32), "y": np.arange(4, dtype=np.int32) % 3}
SPLIT = stacking.stack_agents([AGENT] * SIZE)
DATA = FederatedData(SPLIT, SPLIT, SPLIT, np.zeros(SIZE, np.int32))

COLUMNS = {
    "data": {"attack": attacks.label_flip((0,), num_classes=3)},
    "update": {"attack": attacks.sign_flip((0,))},
    "own": {"attack": attacks.sign_flip((0,), of="model")},
    "all": {"attack": attacks.alie((0,), 1.5)},
    "each": {"attack": attacks.dissensus((0,), 1.5)},
    "search": {"attack": attacks.alie((0,)), "aggregate": robust.gts(1)},
    "beside": {"attack": attacks.alie(attacks.attached(1), 1.5)},
    "sets": {"aggregate": robust.median(1)},
    "self": {"aggregate": robust.gts(1)},
    "pair": {"aggregate": robust.self_centered_clipping(1.0)},
    "ubar": {"aggregate": robust.ubar(0.5)},
    "half": {"channel": channel.quantize(16)},
    "8 bits": {"channel": channel.quantize(8)},
    "qsgd": {"channel": channel.qsgd(15)},
    "parts": {"channel": channel.top_k(0.5)},
    "lost": {"channel": channel.drop(0.1)},
    "bursts": {"channel": channel.drop(0.1, per_edge=True, burst=2)},
    "late": {"channel": channel.delay(1.0)},
    "stale": {"channel": channel.stale()},
    "noise": {"channel": channel.noise(1.0)},
}
_ON_A_RING = (
    *("ad_psgd", "choco_sgd", "d2", "dfca", "dfedavgm", "dfedsam", "dpsgd"),
    *("exact_diffusion", "extra", "facade", "fedcurv_neighbors", "gosgd"),
    *("gradient_tracking", "k_gt", "momentum_tracking", "multi_task", "p2p_bn"),
    *("qg_dsgdm", "relay_sgd", "sgp", "sparse"),
)
_THIRD = dict.fromkeys(_ON_A_RING, RING) | {
    "d_cliques": [0, 0, 0, 1, 1, 1],
    "oracle": [0, 1] * 3,
    "teleportation": pj.graphs.ring(3),
}
_MORE = {
    "aucccr": {"num_agents": SIZE},
    "choco_sgd": {"compression": channel.sign()},
    "facade": {"head": HEAD},
    "fedper": {"personal": HEAD},
    "p2p_bn": {"fine_tuning": False},
} | {
    name: {"penalty_weight": 0.1}
    for name in ("fedprox", "ditto", "fedcurv", "fedcurv_neighbors")
}
_AVERAGINGS = {
    "server": pj.partial.server(SIZE),
    "gossip": pj.partial.metropolis_gossip(SIZE, RING),
    "pairs": pj.partial.random_pairs(SIZE),
    "per model": pj.partial.per_model(cycles=2),
    "private": pj.partial.private_gossip(2, cycles=2),
}


def _plain(name, **more):
    task = {"virtual": MIXED, "multi_task": TASKS}.get(name, TASK)
    third = [_THIRD[name]] if name in _THIRD else []
    more = _MORE.get(name, {}) | more
    return getattr(pj, name)(task, optax.sgd(0.1), *third, batch_size=2, **more)


def _partial(averaging, **more):
    """Its scheme is made for as many agents as the data has, and checked then."""
    method = pj.partial_averaging(
        TASK,
        optax.sgd(0.1),
        pj.partial.level(0.5),
        batch_size=2,
        averaging=averaging,
        **more,
    )
    method.plan(np.random.default_rng(0), DATA, 1)
    return method


# (name of a row, options) -> a method
ROWS = {
    name: lambda name=name, **more: _plain(name, **more)
    for name in pj.METHODS
    if name != "partial_averaging"
}
ROWS["dpsgd, mix_first"] = lambda **more: _plain("dpsgd", mix_first=True, **more)
ROWS |= {
    f"partial_averaging, {name}": lambda how=how, **more: _partial(how, **more)
    for name, how in _AVERAGINGS.items()
}


def outcome(row, column):
    """What a method says to options."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ROWS[row](**COLUMNS[column])
    except InputError:
        return NO
    except TypeError as error:
        assert "unexpected keyword argument" in str(error)
        return NONE
    return YES


def table():
    """What the page says: rows of cells by their names."""
    text = PAGE.read_text()
    block = text.split("<!-- what goes together -->")[1].split("<!-- end -->")[0]
    lines = [line for line in block.splitlines() if line.startswith("|")]
    head, _, *rows = [
        [cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
    ]
    return {
        name.replace("`", ""): dict(zip(head[1:], cells, strict=True))
        for names, *cells in rows
        for name in names.split("; ")
    }
