r"""Partial averaging of associative networks (Bouchra Pilet et al. 2021, V.5).

    python -m experiments.associative \
        --flagfile=experiments/flags/associative.quick.flags

Agents complete sparse binary vectors; for two of them one of three vectors ends
differently. The networks learn without gradients, and the study varies how many of
their hidden cells are global.
"""

from functools import partial

from absl import flags

from experiments import averaging_study, common, figures, jobs
from experiments.averaging_schemes import one_model
from experiments.averaging_study import (
    Case,
    Program,
    averaging_program,
    run_study,
)
from p2pjax.datasets.loaders import binary_vectors
from p2pjax.datasets.loaders.binary_vectors import Patterns
from p2pjax.nn.associative import wiring
from p2pjax.tasks._associative import associative
from p2pjax.training.associative import associative_rule
from p2pjax.types import FederatedData

flags.adopt_module_key_flags(common)  # so that --help lists them
flags.adopt_module_key_flags(averaging_study)

_NUM_AGENTS = flags.DEFINE_integer("num_agents", 15, "Agents of a run.", lower_bound=1)
_NUM_MODIFIED = flags.DEFINE_integer(
    "num_modified", 2, "Agents for which one vector ends differently.", lower_bound=0
)
_MODIFIED = flags.DEFINE_list(
    "modified", ["0", "1", "2"], "Which vector ends differently; each is tried."
)
_NUM_BITS = flags.DEFINE_integer("num_bits", 50, "Length of a vector.", lower_bound=1)
_BLOCK_SIZE = flags.DEFINE_integer(
    "block_size",
    4,
    "Ones that are given, and as many to be found. The paper prints 8, which does not "
    "fit its vectors; 4 makes its '8 non-zero bits' true.",
    lower_bound=1,
)
_OVERFLOW = flags.DEFINE_enum(
    "overflow",
    "refuse",
    ["refuse", "drop", "wrap"],
    "What becomes of ones beyond the end of a vector.",
)
_NUM_HIDDEN = flags.DEFINE_integer(
    "num_hidden", 400, "Hidden cells of every network.", lower_bound=1
)
_SHARED_HIDDEN = flags.DEFINE_list(
    "shared_hidden",
    ["0", "100", "200", "300", "350", "400"],
    "Hidden cells that all agents share; each number is tried.",
)
_THRESHOLD = flags.DEFINE_float("threshold", 0.5, "Sum at which a cell is active.")


def make_cases() -> list[Case]:
    """The numbers of global hidden cells, for every vector that may be modified."""
    network = (_NUM_BITS.value, _NUM_HIDDEN.value)
    patterns = Patterns(_NUM_BITS.value, _BLOCK_SIZE.value, overflow=_OVERFLOW.value)
    cases = []
    for modified in common.integers("modified", _MODIFIED.value):
        world = binary_vectors.world(
            patterns,
            num_agents=_NUM_AGENTS.value,
            num_modified=_NUM_MODIFIED.value,
            modified=modified,
        )
        for hidden in common.integers("shared_hidden", _SHARED_HIDDEN.value):
            cells = (_NUM_BITS.value, hidden) if hidden else (0, 0)
            scheme = one_model(network, cells, _NUM_AGENTS.value, _NUM_AGENTS.value)
            setting = {"hidden": hidden, "modified": modified}
            same_in_all_runs = partial(_same, jobs.own_examples(world))
            cases.append(Case(f"hidden_{hidden}", setting, scheme, same_in_all_runs))
    return cases


def _same(world: FederatedData, run: int) -> FederatedData:
    """The vectors are computed; runs differ in their initial weights."""
    del run
    return world


def build_program(case: Case, world: FederatedData) -> Program:
    """Associative networks, with initial weights of their own."""
    del world
    threshold = _THRESHOLD.value
    return averaging_program(
        case,
        associative(_NUM_BITS.value, _NUM_HIDDEN.value, threshold),
        associative_rule(common.learning_rate(0.1), threshold),
        wiring(),
        shared_init=False,
    )


def main() -> None:
    """Runs the study."""
    folder = run_study("associative", make_cases(), build_program)
    figures.accuracy_by_hidden(folder)
    figures.print_summary(folder)


if __name__ == "__main__":
    common.run(main)
