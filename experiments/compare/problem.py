"""The problem that methods are compared on: data and network."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import numpy as np

from p2pjax import nn as networks
from p2pjax.datasets import split as splits
from p2pjax.datasets._federate import federate_examples
from p2pjax.datasets.loaders.named import load_examples
from p2pjax.datasets.split import Splitter
from p2pjax.datasets.stacking import Examples
from p2pjax.types import FederatedData, InputError

if TYPE_CHECKING:  # it lists the names below
    from experiments.compare.config import Config


SPLITS: Mapping[str, Callable[["Config"], Splitter]] = {
    "by_user": lambda config: splits.by_user(),
    "iid": lambda config: splits.iid(),
    "dirichlet": lambda config: splits.dirichlet(config.alpha),
    "pathological": lambda config: splits.pathological(config.shards),
    "practical": lambda config: splits.practical(config.num_clusters),
    "rotated": lambda config: splits.rotated(config.num_clusters),
    "permuted": lambda config: splits.permuted(config.num_clusters),
}


def examples_of(config: "Config") -> Examples:
    """The labelled examples that are named; images have an axis of channels."""
    name = config.dataset or "digits"
    if name.startswith("tfds:"):
        examples = load_examples(name, config.data_dir, download=config.download)
    else:
        examples = load_examples(name, config.data_dir)
    if examples.x.ndim == 3:
        examples = examples._replace(x=examples.x[..., None])
    return examples


def data_of_run(
    config: "Config", examples: Examples, rng: np.random.Generator
) -> FederatedData:
    """The examples, split among agents."""
    has_users = len(np.unique(examples.user)) > 1
    name = config.split or ("by_user" if has_users else "dirichlet")
    if name == "by_user" and not has_users:
        raise InputError(
            f"Need users to split by, and {config.dataset or 'digits'} has none: "
            f"choose --split among {', '.join(set(SPLITS) - {'by_user'})}."
        )
    return federate_examples(
        examples,
        examples.user if has_users else None,
        num_agents=config.num_agents,
        split=SPLITS[name](config),
        test_fraction=config.test_fraction,
        valid_fraction=config.valid_fraction,
        seed=rng,
    )


def network_of(config: "Config", num_classes: int) -> Any:
    """The network of every agent, as `pj.classification` takes it."""
    own: dict[str, Callable[[], Any]] = {
        "mlp": lambda: networks.MLP((*config.hidden, num_classes), nn.relu),
        "cnn": lambda: networks.CNN(
            config.channels, config.hidden, num_classes, kernel_size=3
        ),
        "batch_norm_cnn": lambda: networks.BatchNormCNN(
            config.channels, config.hidden, num_classes
        ),
    }
    if config.network in own:
        return own[config.network]()
    module, colon, name = config.network.partition(":")
    if not colon:
        raise InputError(
            f"Need a network among {', '.join(own)}, or an import path such as "
            f"my_module:Net, got '{config.network}'."
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"Need a network that can be imported, got '{config.network}' ({error}): "
            "start Python where the module is, or set PYTHONPATH."
        ) from error
    return _made(found, num_classes)


def head_of(config: "Config") -> tuple[str, ...]:
    """Paths of the last layer, by regular expressions; empty where it is not known."""
    if config.head is not None:
        return config.head
    convolutions = {"mlp": 0, "cnn": len(config.channels)}
    convolutions["batch_norm_cnn"] = len(config.channels)
    if config.network not in convolutions:
        return ()
    last = convolutions[config.network] + len(config.hidden) + 1
    return (f"params/layer_{last}/.*",)


def _made(found: Any, num_classes: int) -> Any:
    """Calls a factory; modules, networks and NNX constructors are what they are."""
    if isinstance(found, nn.Module) or not callable(found):
        return found
    is_class = inspect.isclass(found)  # NNX hides the arguments of its classes
    parameters = dict(
        inspect.signature(found.__init__ if is_class else found).parameters
    )
    parameters.pop("self", None)
    if "num_classes" in parameters and "rngs" in parameters:
        return lambda rngs: found(num_classes=num_classes, rngs=rngs)
    if "num_classes" in parameters:
        return found(num_classes=num_classes)
    if not parameters or (is_class and issubclass(found, nn.Module)):
        return found()
    return found
