"""Methods of choosing peers side by side, over several studies.

    python -m experiments.connection_scores WORKDIR [WORKDIR...] [--averages]

Every study of `experiments.connections` is a column: a work folder, or several that
differ in nothing but methods, rounds and runs. Fronts of accuracy against messages are
those of all methods and of all but the oracle, of each study and pooled over studies
that differ in how much data agents have. With `--averages` there are means over all.
"""

import dataclasses

from experiments.connections.scores import print_scores
from experiments.engine import command
from experiments.engine.fields import RESULTS, switch


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the scores."""

    averages: bool = switch(
        False,
        "Also print means over all studies, as of a table's columns.",
        topic=RESULTS,
    )


if __name__ == "__main__":
    command.tool(Options, lambda own, folders: print_scores(folders, own.averages))
