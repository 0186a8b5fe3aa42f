"""Scores of every task in the multi-task study, against the task alone.

    python -m experiments.task_scores WORKDIR [WORKDIR...] [--averages]

Several run folders, such as one with the tasks alone and one with tasks together, must
have the same data, seed and vocabulary: runs of the same number are compared. With
`--averages` there are means over the tasks that a task is together with.
"""

import dataclasses

from experiments.engine import command
from experiments.engine.fields import RESULTS, switch
from experiments.multi_task.scores import print_table


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the scores."""

    averages: bool = switch(
        False,
        "Also print means over the tasks that a task is together with.",
        topic=RESULTS,
    )


if __name__ == "__main__":
    command.tool(Options, lambda own, folders: print_table(folders, own.averages))
