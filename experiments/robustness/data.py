"""What agents learn from, and the examples on which all of them are judged."""

from collections.abc import Callable

import numpy as np

from experiments.engine.datasets import load_dataset
from experiments.engine.jobs import data_rng
from experiments.robustness.config import Config
from p2pjax.datasets import label_skew, partition
from p2pjax.datasets.loaders import digits, glyphs, mnist
from p2pjax.datasets.loaders.named import load_examples as named
from p2pjax.datasets.stacking import Examples, over_splits, stack_rows
from p2pjax.types import FederatedData, InputError, Split

Deal = Callable[[np.ndarray, np.random.Generator], list[np.ndarray]]
MIN_SIZE = 4  # training examples of an agent


def load_examples(config: Config) -> Examples:
    """The data set that the config names; images have an axis of channels."""
    if config.dataset == "glyphs":
        examples = glyphs.glyphs(100, 40, seed=config.seed, num_classes=10)
    else:
        examples = load_dataset(
            config,
            config.dataset,
            digits.load,
            "scikit-learn's small digits are used",
            {"mnist": mnist.load, "femnist": lambda folder: named("femnist", folder)},
        )
    if examples.x.ndim == 3:
        examples = examples._replace(x=examples.x[..., None])
    return examples


def dirichlet(config: Config) -> Deal:
    """Shares of each class that differ between agents."""
    return lambda y, rng: label_skew.dirichlet(
        y, rng, config.size, config.alpha, min_size=MIN_SIZE
    )


def in_cliques(config: Config, num_classes: int, split: str) -> Deal:
    """Even shares of each class, or of the classes of an agent's clique."""
    if split == "iid":
        return lambda y, rng: label_skew.iid(y, rng, config.size)
    half = num_classes // 2
    labels = (range(half), range(half, num_classes))
    return lambda y, rng: label_skew.clustered_classes(y, rng, config.size, labels)


def apart(num_agents: int, num_classes: int, split: str) -> Deal:
    """Even shares of each class, or classes of its own for each agent.

    Where agents are more than classes, several share one.

    Args:
      num_agents: N.
      num_classes: of the labels.
      split: "iid" or "split".
    """

    def deal(y: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        if split == "iid":
            return label_skew.iid(y, rng, num_agents)
        rows: list[list[np.ndarray]] = [[] for _ in range(num_agents)]
        for label in range(num_classes):
            owners = range(label % num_agents, num_agents, num_classes)
            own = rng.permutation(np.flatnonzero(y == label))
            for agent, part in zip(
                owners, np.array_split(own, len(owners)), strict=True
            ):
                rows[agent].append(part)
        found = [rng.permutation(np.concatenate(parts)) for parts in rows]
        sizes = list(map(len, found))
        if 0 in sizes:
            raise InputError(
                f"Need training examples for each of {num_agents} agents with classes "
                f"of their own, got none for agent {sizes.index(0)}: raise "
                "--train_size."
            )
        return found

    return deal


def data_of_run(
    config: Config,
    examples: Examples,
    deal: Deal,
    run: int,
    num_agents: int | None = None,
) -> FederatedData:
    """Agents' training examples; test examples, of which each agent holds a part.

    What is tested, and in the study compression what chooses consensus steps, are all
    agents' parts together: see `scores.pooled`. The two cliques are clusters.

    Args:
      config: of the experiment.
      examples: of all agents.
      deal: labels and randomness -> rows of each agent.
      run: its number.
      num_agents: that have examples; all of the config if None.
    """
    rng, size = data_rng(config, run), num_agents or config.size
    is_test = examples.is_test
    rows = rng.permutation(len(examples.y))
    num_held = config.test_size * (2 if config.study == "compression" else 1)
    if is_test is None:
        held, rest = rows[:num_held], rows[num_held:]
    else:
        held, rest = rows[is_test[rows]][:num_held], rows[~is_test[rows]]
    test, valid = held[: config.test_size], held[config.test_size :]
    num_train = len(rest) if config.train_size is None else size * config.train_size
    if len(test) < max(config.test_size, size) or len(rest) < max(num_train, size):
        raise InputError(
            f"Need {config.test_size} test examples, at least one of each of {size} "
            f"agents, and {num_train} training examples, got {len(test)} and "
            f"{len(rest)}: lower --test_size, --train_size or --num_agents."
        )
    rest = rest[:num_train]
    train = [rest[own] for own in deal(examples.y[rest], rng)]
    cliques = 2 * np.arange(size, dtype=np.int32) // size
    data = partition.federated_data(examples, train, _parts(test, size), cliques)
    if len(valid) < size:
        return data
    return _with_valid(data, examples, _parts(valid, size))


def writers_of_run(config: Config, examples: Examples, run: int) -> FederatedData:
    """Agents are writers, drawn anew in each run, with their own examples.

    Each holds as many of the examples on which all are tested, and of those that choose
    consensus steps; writers that have too few for that are left out. The data set's own
    test examples are examples like others here.

    Args:
      config: of the experiment.
      examples: of all writers.
      run: its number.
    """
    rng, size = data_rng(config, run), config.size
    num_held = config.test_size // size
    users, counts = np.unique(examples.user, return_counts=True)
    users = users[counts >= 2 * num_held + MIN_SIZE]
    if num_held == 0 or len(users) < size:
        raise InputError(
            f"Need {size} writers with {MIN_SIZE} examples to train on beside "
            f"{num_held} of --test_size={config.test_size} and as many to choose by, "
            f"at least one each, got {len(users)}: change --test_size or lower "
            "--num_agents."
        )
    chosen = rng.choice(users, size, replace=False)
    rows = [rng.permutation(np.flatnonzero(examples.user == user)) for user in chosen]
    test, valid = ([own[n:][:num_held] for own in rows] for n in (0, num_held))
    train = [own[2 * num_held :][: config.train_size] for own in rows]
    data = partition.federated_data(examples, train, test)
    return _with_valid(data, examples, valid)


def _with_valid(
    data: FederatedData, examples: Examples, valid: list[np.ndarray]
) -> FederatedData:
    arrays = {"x": examples.x, "y": examples.y.astype(np.int32)}
    return data._replace(valid=stack_rows(arrays, valid))


def _parts(rows: np.ndarray, num_parts: int) -> list[np.ndarray]:
    """Equal ones; what is left over is not used."""
    return list(rows[: len(rows) // num_parts * num_parts].reshape(num_parts, -1))


def with_attackers(data: FederatedData, num_agents: int) -> FederatedData:
    """More agents, who have the examples of the first ones."""
    size = len(data.cluster)
    if num_agents == size:
        return data
    agents = np.append(np.arange(size), np.arange(num_agents - size) % size)

    def more(split: Split) -> Split:
        examples = {name: leaf[agents] for name, leaf in split.examples.items()}
        return Split(examples, np.asarray(split.size)[agents])

    return over_splits(more, [data], data.cluster[agents])
