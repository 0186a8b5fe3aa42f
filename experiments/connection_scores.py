"""Methods of choosing peers side by side, over several studies.

    python -m experiments.connection_scores WORKDIR [WORKDIR...]

Every study of `experiments.connections` is a column: a work folder, or several that
differ in nothing but methods and rounds.
"""

import dataclasses

from experiments.connections.scores import print_scores
from experiments.engine import command


@dataclasses.dataclass(frozen=True)
class Options:
    """The program has no flags."""


if __name__ == "__main__":
    command.tool(Options, lambda _, folders: print_scores(folders))
