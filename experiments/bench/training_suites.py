"""Local training and averaging of networks of every family."""

from collections.abc import Sequence

from experiments.bench.harness import (
    NUM_CORES,
    Medians,
    Suite,
    System,
    Workload,
    cpu_milliseconds,
    is_installed,
    rate,
    speedups,
    torch_systems,
)
from experiments.bench.inputs import Training, mlp_gigaflops


def headline(
    num_agents: int = 100,
    widths: Sequence[int] = (784, 300, 100, 10),
    batch_size: int = 50,
    num_steps: int = 10,
) -> Suite:
    """A perceptron that is large for a cache and small for a machine."""
    network = {"kind": "mlp", "widths": list(widths)}
    return _compared(Training(network, num_agents, batch_size, num_steps), gossipy=True)


def small(
    num_agents: int = 100,
    widths: Sequence[int] = (784, 50, 10),
    batch_size: int = 10,
    num_steps: int = 10,
    num_rounds: int = 5,
) -> Suite:
    """A perceptron whose steps are short."""
    network = {"kind": "mlp", "widths": list(widths)}
    want = Training(network, num_agents, batch_size, num_steps, num_rounds)
    return _compared(want, gossipy=True)


def per_sample(
    num_agents: int = 16,
    widths: Sequence[int] = (784, 300, 100, 10),
    batch_size: int = 50,
    num_steps: int = 2,
) -> Suite:
    """A step per example, as in Bouchra Pilet et al. 2021."""
    network = {"kind": "mlp", "widths": list(widths), "sigmoid": True}
    want = Training(network, num_agents, batch_size, num_steps, per_sample=True)
    arguments = {"setting": want._asdict()}
    numpy = {"numpy": System("numpy_loop", "rounds", arguments, threads=1)}
    return _compared(want, unit="updates/s", more=numpy)


def cnn(
    num_agents: int = 20,
    image: Sequence[int] = (32, 32, 3),
    channels: Sequence[int] = (32, 64),
    dense: Sequence[int] = (512,),
    batch_size: int = 20,
    num_steps: int = 2,
) -> Suite:
    """Two convolutions of 5 x 5 with pooling, and a dense layer."""
    network = {
        "kind": "cnn",
        "image": list(image),
        "channels": list(channels),
        "dense": list(dense),
    }
    return _compared(Training(network, num_agents, batch_size, num_steps))


def own_networks(
    num_agents: int = 20,
    image: Sequence[int] = (28, 28, 1),
    channels: Sequence[int] = (16, 32),
    dense: Sequence[int] = (64,),
    batch_size: int = 20,
    num_steps: int = 5,
) -> Suite:
    """A CNN with batch norm of this package, and twins in plain Linen and NNX."""
    systems = {}
    for written in ("package", "linen", "nnx"):
        network = {
            "kind": "norm_cnn",
            "written": written,
            "image": list(image),
            "channels": list(channels),
            "dense": list(dense),
        }
        want = Training(network, num_agents, batch_size, num_steps)
        arguments = {"setting": want._asdict(), "num_devices": NUM_CORES}
        systems[written] = System("p2pjax_training", "rounds", arguments)
    unit = "CPU-ms/agent-step"
    workload = Workload("own_networks", unit, cpu_milliseconds, systems)

    def ratios(found: Medians) -> dict[str, float]:
        times = found[workload.name]
        return {
            f"CPU time {name}/package": times[name] / times["package"]
            for name in ("linen", "nnx")
        }

    return Suite((workload,), ratios)


def gru(
    num_agents: int = 20,
    words: int = 10_000,
    units: int = 100,
    batch_size: int = 32,
    num_steps: int = 5,
) -> Suite:
    """Next-word prediction."""
    network = {"kind": "gru", "words": words, "units": units, "length": 10}
    return _compared(Training(network, num_agents, batch_size, num_steps))


def encoder(
    num_agents: int = 10,
    words: int = 30_522,
    length: int = 64,
    batch_size: int = 16,
    num_steps: int = 2,
) -> Suite:
    """BERT-Tiny, which tags tokens."""
    network = {"kind": "encoder", "words": words, "length": length}
    return _compared(Training(network, num_agents, batch_size, num_steps))


def _compared(
    want: Training,
    unit: str = "agent-steps/s",
    gossipy: bool = False,
    more: dict[str, System] | None = None,
) -> Suite:
    arguments = {"setting": want._asdict()}
    systems = {
        "p2pjax": System(
            "p2pjax_training", "rounds", {**arguments, "num_devices": NUM_CORES}
        ),
        "jax_loop": System("jax_loop", "rounds", arguments),
        **torch_systems("rounds", arguments),
        **(more or {}),
    }
    if gossipy and is_installed("gossipy", "torchvision", "torch"):
        systems["gossipy"] = System(
            "gossipy_loop", "rounds", {**arguments, "threads": 1}, threads=1
        )
    workload = Workload(str(want.network["kind"]), unit, rate, systems)

    def ratios(found: Medians) -> dict[str, float]:
        result = speedups(found[workload.name])
        if want.network["kind"] == "mlp" and not want.per_sample:
            cost = mlp_gigaflops(want.network["widths"], want.batch_size)
            reached = found[workload.name]["p2pjax"] * cost
            peak = max(found["gemm_peak"].values())
            result["gemm_peak_fraction"] = reached / peak
        return result

    return Suite((workload,), ratios)
