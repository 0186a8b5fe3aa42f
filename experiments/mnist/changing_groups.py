"""Semi-local models whose members are found while agents train, on MNIST.

Half of the agents name the last two digits the other way round, which is hardly seen in
how their networks move. Every so many mini-batches the server looks for groups in what
agents predict, or in how their output layers have moved; or each agent tries whether
the global model pays, and leaves it if not.
"""

import numpy as np

from experiments.averaging.cases import Case, MakeData
from experiments.averaging.schemes import level_layout, within_groups
from experiments.mnist.config import Config
from experiments.mnist.data import Blocks, relabelled
from experiments.mnist.labels import some_permuted
from p2pjax import partial, selection
from p2pjax.partial import schemes
from p2pjax.partial.changing_members import Changing, Grouping
from p2pjax.partial.schemes import Scheme
from p2pjax.types import FederatedData, InputError, Layout, Split

LEVEL = 60  # percent of the hidden cells are global
HELD_OUT = 5  # of so many training examples one is for validation
LOOKS = 2  # that say so before an agent leaves a model


def swapped_labels(
    config: Config, network: Layout, blocks: Blocks, values: tuple[int, ...]
) -> list[Case]:
    """Known groups, found groups by `values` between looks, and agents that leave."""
    size = config.num_agents
    if size < 4 or config.train_size < HELD_OUT:
        raise InputError(
            f"Need 4 agents and {HELD_OUT} training examples of each, or more, for "
            f"groups that change, got {size} and {config.train_size}."
        )
    tables = some_permuted(network[-1], 2, size, size // 2)
    make_data = _with_validation(relabelled(blocks(size, config.train_size), tables))
    first = make_data(config.runs[0])
    truth = np.asarray(first.cluster)
    probe = {name: np.asarray(leaf[-1]) for name, leaf in first.valid.examples.items()}
    shared = level_layout(network, LEVEL)
    one_group = np.zeros_like(truth)
    known = {
        "none": Scheme((network,) * size),
        "full": within_groups(network, network, one_group),
        f"level_{LEVEL}": within_groups(network, shared, one_group),
        "true_groups": schemes.auto(network, shared, truth),
    }
    cases = [Case(name, {}, scheme, make_data) for name, scheme in known.items()]
    # The rest of the hidden cells, of whoever will be found to have it in common.
    found = schemes.auto(network, shared, truth)
    rest = found.models[1]._replace(members=tuple(range(size)))
    both = Scheme(found.networks, (found.models[0], rest), ((1, 0),))
    by_value = selection.by_value(selection.root_of_size(size // 2))
    groupings = {
        "by_predictions": partial.by_predictions(probe),
        "by_value": partial.by_predictions(probe, find=by_value),
        "by_output_layer": partial.by_output_layer(),
    }
    for every in values:
        ways: dict[str, tuple[Scheme, tuple[Grouping, ...], int | None]] = {
            name: (both, (grouping,), None) for name, grouping in groupings.items()
        }
        ways["leaving"] = (known["full"], (), LOOKS)
        for name, (scheme, looked, leave_after) in ways.items():
            changing: Changing = partial.changing(
                scheme, *looked, every=every, leave_after=leave_after
            )
            setting = {"every": every}
            cases.append(
                Case(f"{name}_{every}", setting, scheme, make_data, changing=changing)
            )
    return cases


def _with_validation(make_data: MakeData) -> MakeData:
    """The last training examples of each agent are for validation."""

    def held_out(run: int) -> FederatedData:
        data = make_data(run)
        rows = int(np.asarray(data.train.size).min())
        first = rows - rows // HELD_OUT

        def part(start: int, stop: int) -> Split:
            examples = {
                name: np.asarray(leaf)[:, start:stop]
                for name, leaf in data.train.examples.items()
            }
            return data.train._replace(
                examples=examples,
                size=np.full_like(np.asarray(data.train.size), stop - start),
            )

        return data._replace(train=part(0, first), valid=part(first, rows))

    return held_out
