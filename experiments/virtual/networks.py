"""The networks of `experiments.virtual`: alone, and beside a server's column."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn

from experiments.virtual.config import TEXTS, Config
from p2pjax.datasets.loaders.text import UNKNOWN
from p2pjax.nn.variational import Columns, VariationalMLP
from p2pjax.nn.variational_cnn import ColumnsCNN, VariationalCNN
from p2pjax.nn.variational_gru import ColumnsGRU, VariationalGRU
from p2pjax.partial import schemes
from p2pjax.tasks._examples import as_tokens
from p2pjax.types import InputError, Layout

Shape = tuple[int, ...]  # of an example


class Networks(NamedTuple):
    """One kind of network."""

    plain: nn.Module
    columns: Callable[[float], nn.Module]  # of the largest gate at the start
    last: str  # name of the layer that gives logits, which FedPer keeps
    shape: Shape
    widest: int  # numbers of an example at once, about
    options: dict[str, Any]  # of the task


def networks_of(config: Config, shape: Shape, num_outputs: int) -> Networks:
    """The networks of every client, or of the only model.

    Args:
      config: of the experiment.
      shape: of an example.
      num_outputs: classes, or tokens.
    """
    if (config.kind == "gru") != (config.study == TEXTS):
        raise InputError(
            f"Need --kind=gru for --study={TEXTS} and for no other, got "
            f"--kind={config.kind} and --study={config.study}."
        )
    if config.kind == "mlp":
        return _mlp(config, shape, num_outputs)
    if config.network is not None or config.same_depth:
        raise InputError(
            f"Need no --network and no --same_depth for --kind={config.kind}: its "
            "sizes are those of --channels and --units."
        )
    if config.kind == "gru":
        sizes = (num_outputs, config.units, config.units, config.units)
        return Networks(
            VariationalGRU(*sizes),
            lambda gate: ColumnsGRU(*sizes, gates=(0.0, gate)),
            "layer_4",
            shape,
            shape[0] * config.units + num_outputs,
            {"as_inputs": as_tokens, "ignore_label": UNKNOWN},
        )
    widths = (config.channels, (config.units, num_outputs))
    return Networks(
        VariationalCNN(*widths),
        lambda gate: ColumnsCNN(*widths, gates=(0.0, gate)),
        f"layer_{len(config.channels) + 2}",
        shape,
        math.prod(shape[:2]) * max(config.channels),
        {"per_class": True},
    )


def _mlp(config: Config, shape: Shape, num_outputs: int) -> Networks:
    layers = _layout(config, shape, num_outputs)[1:]

    def columns(gate: float) -> Columns:
        if len(layers) < 2:
            raise InputError(
                f"Need a network with a hidden layer for clients to read, got "
                f"{config.network}."
            )
        return Columns(layers, config.same_depth, (0.0, gate))

    last = f"layer_{len(layers)}"
    return Networks(VariationalMLP(layers), columns, last, shape, max(layers), {})


def _layout(config: Config, shape: Shape, num_outputs: int) -> Layout:
    num_inputs = math.prod(shape)
    if config.network is None:
        return (num_inputs, 100, 100, num_outputs)
    network = schemes.network_layout(config.network)
    if network[0] != num_inputs:
        raise InputError(
            f"Need a network of {num_inputs} inputs for these examples, got "
            f"{config.network}."
        )
    return network


def num_outputs_of(config: Config, num_classes: int) -> int:
    """Outputs that the networks have: as many as --network says, or as needed.

    Args:
      config: of the experiment.
      num_classes: of the data.
    """
    if config.kind != "mlp" or config.network is None:
        return num_classes
    return schemes.network_layout(config.network)[-1]
