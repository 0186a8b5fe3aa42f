"""Scores of every task in the multi-task study, against the task alone.

    python -m experiments.task_scores WORKDIR [WORKDIR...]

Several run folders, such as one with the tasks alone and one with tasks together, must
have the same data, seed and vocabulary: runs of the same number are compared.
"""

import dataclasses

from experiments.engine import command
from experiments.multi_task.scores import print_table


@dataclasses.dataclass(frozen=True)
class Options:
    """The program has no flags."""


if __name__ == "__main__":
    command.tool(Options, lambda _, folders: print_table(folders))
