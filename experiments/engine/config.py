"""The settings of a run: a frozen object, made from the flags when a program starts.

A config is a frozen dataclass. Each of its fields is a flag of the same name, made by
one of the functions of `fields`, which check every value that is given. Nothing else in
experiments knows flags, and nothing changes a config: what a run settles later, such as
how many runs go side by side, is in a new one.

    @dataclasses.dataclass(frozen=True)
    class Config(Common):
        study: str = choice("level", ("level", "peers"), "What is compared.")
        levels: tuple[int, ...] = integers((0, 80), "In percent.", at_least=0)
"""

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from absl import flags

import p2pjax
from experiments.engine import flagfiles
from experiments.engine.fields import (
    DATA,
    MACHINE,
    PROCESSES,
    RESULTS,
    TOPICS,
    TRAINING,
    integer,
    number,
    switch,
    text,
)
from p2pjax.datasets.loaders.files import shown
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import fastest_agent_loop
from p2pjax.types import InputError

# How a run is started, not what it is: these are not in run.flags.
_LONGEST_REFUSAL = 500  # characters of what absl says about flags


OF_A_START = frozenset(
    (
        "cluster",
        "compile_cache",
        "coordinator",
        "download",
        "num_processes",
        "process_id",
        "resume",
        "stop_when_diverged",
        "workdir",
    )
)

# What does not change rows, but for the last of seven digits and their order: how and
# where they are computed, from where data is read, where else rows go.
NOT_IN_ROWS = OF_A_START | {
    "agent_loop",
    "checkpoint_every",
    "data_dir",
    "num_devices",
    "runs_at_once",
    "target_accuracy",
    "tensorboard",
    "verbosity",
    "vocabulary",
    "wandb",
}


class _Kind(flags.ArgumentParser):
    """How a flag is read from text, and written."""

    def __init__(self, read: Callable[[Any], Any], write: Callable[[Any], str]):
        self._read = read
        self.write = write

    def parse(self, argument: Any) -> Any:
        return self._read(argument)


@dataclasses.dataclass(frozen=True)
class Common:
    """What every experiment has."""

    workdir: str | None = text(
        None,
        "Folder for the results; runs/<experiment>-<time> if not given.",
        topic=RESULTS,
    )
    data_dir: str | None = text(
        None,
        "Folder or file that holds the data set (see data/README.md).",
        topic=DATA,
    )
    download: bool = switch(
        False,
        "Let TensorFlow Datasets download and prepare what --dataset=tfds:NAME names.",
        topic=DATA,
    )
    seed: int = integer(
        0,
        "Seed of everything that is random.",
        at_least=0,
        at_most=2**31 - 1,
        topic=TRAINING,
    )
    num_runs: int = integer(
        1,
        "Repetitions with other splits and initial weights.",
        at_least=1,
        at_most=10**4,
        topic=TRAINING,
    )
    first_run: int = integer(
        0,
        "Number of the first of these runs: a long study can be run in parts, "
        "which `python -m experiments.keep` puts together.",
        at_least=0,
        at_most=10**6,
        topic=TRAINING,
    )
    num_rounds: int = integer(
        200,
        "Rounds of a run: mini-batches in studies of partial averaging, refinements of "
        "every client in virtual, else most often network epochs.",
        at_least=1,
        topic=TRAINING,
    )
    eval_every: int = integer(
        10, "Rounds between two evaluations.", at_least=1, topic=RESULTS
    )
    batch_size: int = integer(
        50, "Examples of a mini-batch.", at_least=1, topic=TRAINING
    )
    learning_rate: float | None = number(
        None,
        "Step size of the optimizer; the paper's if not given.",
        above=0,
        topic=TRAINING,
    )
    degree: int | None = integer(
        None,
        "Agents that each agent receives from in a random graph; 4 in studies of "
        "partial averaging and 3 in those of protocols if not given.",
        at_least=1,
        at_most=10**6,
    )
    checkpoint_every: int = integer(
        1000,
        "Rounds between two checkpoints; one more is written where a run ends.",
        at_least=1,
        topic=RESULTS,
    )
    target_accuracy: float | None = number(
        None,
        "Accuracy for which the summary says how many rounds, examples, messages and "
        "bytes it took.",
        above=0,
        at_most=1,
        topic=RESULTS,
    )
    resume: bool = switch(
        False,
        "Go on with the run in --workdir from its last checkpoint.",
        topic=RESULTS,
    )
    stop_when_diverged: bool = switch(
        False,
        "Stop as soon as the model of an agent is no longer finite, instead of a "
        "warning.",
        topic=TRAINING,
    )
    tensorboard: bool = switch(
        False,
        "Also write TensorBoard files, to WORKDIR/tensorboard.",
        topic=RESULTS,
    )
    wandb: bool = switch(
        False,
        "Also write runs of Weights & Biases, to WORKDIR/wandb; they are sent nowhere "
        "unless the environment has WANDB_MODE=online.",
        topic=RESULTS,
    )
    agent_loop: int | None = integer(
        None,
        "How many agents train side by side: 1 one after the other in place, c chunks "
        "of about c, 0 all in one batch; what suits the network and the machine if not "
        "given.",
        at_least=0,
        topic=MACHINE,
    )
    runs_at_once: int | None = integer(
        None,
        "How many runs of a scheme train side by side in one program, as long as they "
        "fit into memory; if not given, 1 on CPUs, where more help the smallest "
        "networks only, and as many as fit on accelerators.",
        at_least=1,
        topic=MACHINE,
    )
    num_devices: int | None = integer(
        None,
        "Devices the agents are spread over, those of all processes together; if not "
        "given, all accelerators, or a virtual device per CPU core.",
        at_least=1,
        at_most=10**3,
        topic=MACHINE,
    )
    num_processes: int | None = integer(
        None,
        "Processes that run the experiment together: start each with the same flags "
        "but for --process_id. Needs --coordinator, and a --workdir that all can "
        "reach.",
        at_least=2,
        topic=PROCESSES,
    )
    process_id: int | None = integer(
        None, "Which of the processes this is, from 0.", at_least=0, topic=PROCESSES
    )
    coordinator: str | None = text(
        None,
        "Address of process 0, as in localhost:1234; it listens there and nowhere "
        "else, to all who can reach it.",
        topic=PROCESSES,
    )
    cluster: bool = switch(
        False,
        "Let JAX find num_processes, process_id and coordinator: under Slurm, Open "
        "MPI, on TPU pods.",
        topic=PROCESSES,
    )
    compile_cache: bool = switch(
        True,
        "Keep compiled programs in the user's folder for caches, for the next run.",
        topic=MACHINE,
    )
    verbosity: int = integer(
        0,
        "How much is said: -1 warnings only, 0 progress too, 1 all.",
        at_least=-2,
        at_most=1,
        topic=RESULTS,
    )

    @property
    def runs(self) -> range:
        """Numbers of the runs."""
        return range(self.first_run, self.first_run + self.num_runs)


ConfigType = TypeVar("ConfigType", bound=Common)
Options = TypeVar("Options")  # any frozen dataclass of fields


def rate(config: Common, default: float) -> float:
    """The learning rate that is given, or the experiment's own."""
    return default if config.learning_rate is None else config.learning_rate


def agent_loop(config: Common, task: Task | None = None) -> int:
    """How many agents train side by side: as given, or what suits the network."""
    if config.agent_loop is not None:
        return config.agent_loop
    return fastest_agent_loop(task)


def define(kind: type) -> flags.FlagValues:
    """The flags of a config, in a set of their own."""
    defined = flags.FlagValues()
    for field in dataclasses.fields(kind):
        help_text, read = field.metadata["help"], field.metadata["read"]
        default: Any = field.default
        if read is None:
            flags.DEFINE_boolean(field.name, default, help_text, flag_values=defined)
        else:
            flags.DEFINE(
                _Kind(read, field.metadata["write"]),
                field.name,
                default,
                help_text,
                flag_values=defined,
            )
        if former := field.metadata["former"]:
            said = f"Former spelling of --{field.name}."
            flags.DEFINE_boolean(former.name, None, said, flag_values=defined)
    return defined


def read(kind: type[Options], arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """The options that a command line gives, and what in it is no flag.

    Args:
      kind: of options, a dataclass of fields.
      arguments: flags such as `--seed=1`, and `--flagfile=FILE` for those of a file.

    Raises:
      InputError: there is no such flag, or it has a value that cannot be used.
    """
    defined = define(kind)
    try:
        _, *others = defined(["", *flagfiles.expanded(arguments)])
    except (flags.Error, ValueError) as error:  # a ValueError of no text, no path
        sentence = " ".join(str(error).split())
        raise InputError(shown(sentence, _LONGEST_REFUSAL)) from error
    values = {field.name: _value_of(field, defined) for field in _fields(kind)}
    return kind(**values), others


def _value_of(field: dataclasses.Field, defined: flags.FlagValues) -> Any:
    former = field.metadata["former"]
    if former is None or defined[former.name].value is None:
        return defined[field.name].value
    if defined[field.name].present:
        raise InputError(
            f"Need --{field.name}, or --[no]{former.name} as it was once called, got "
            "both: leave one out."
        )
    return (former.on if defined[former.name].value else former.off,)


def parse(kind: type[ConfigType], arguments: Sequence[str]) -> ConfigType:
    """The config that a command line of nothing but flags gives; see `read`."""
    config, others = read(kind, arguments)
    if others:
        raise InputError(f"Need flags such as --seed=1 only, got '{shown(others[0])}'.")
    return config


def as_flags(config: Common) -> str:
    """A flagfile that gives the config again, but for how the run was started."""
    return _written(config, OF_A_START | {"verbosity"})


def run_id(config: Common, experiment: str) -> str:
    """Equal for runs whose rows are equal: of the experiment, its flags, the version.

    It does not depend on time, folders or machine.
    """
    flags_text = _written(config, NOT_IN_ROWS)
    determined_by = "\n".join((experiment, p2pjax.__version__, flags_text))
    return hashlib.sha256(determined_by.encode()).hexdigest()


def _written(config: Common, without: Collection[str]) -> str:
    lines = []
    for field in sorted(_fields(type(config)), key=lambda field: field.name):
        value = getattr(config, field.name)
        if value is None or field.name in without:
            continue
        if field.metadata["read"] is None:
            lines.append(f"--{'' if value else 'no'}{field.name}\n")
        else:
            lines.append(f"--{field.name}={field.metadata['write'](value)}\n")
    return "".join(lines)


def describe(kind: type) -> str:
    """All flags with what they mean, by topic, what is special about `kind` first."""
    common = {field.name for field in _fields(Common)}
    parts = []
    for topic in TOPICS:
        own = [field for field in _fields(kind) if field.metadata["topic"] == topic]
        own.sort(key=lambda field: field.name in common)
        if own:
            parts.append(f"{topic}:")
            parts += [_describe_one(field) for field in own]
            parts.append("")
    return "\n".join(parts)


def _describe_one(field: dataclasses.Field) -> str:
    name, default = field.name, field.default
    if field.metadata["read"] is None:
        name = f"[no]{name}"
    said = field.metadata["help"]
    if default is not None and default is not False:
        said += f" [{field.metadata['write'](default)}]"
    return flags.text_wrap(
        f"--{name}: {said}", 88, indent="      ", firstline_indent="  "
    )


def _fields(kind: type) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(kind)
