"""Methods of choosing peers side by side, over several studies.

    python -m experiments.connection_scores WORKDIR [WORKDIR...]

Every study of `experiments.connections` is a column: a work folder, or several that
differ in nothing but methods and rounds.
"""

import sys

from experiments.connections.scores import print_scores
from experiments.engine.command import guarded

if __name__ == "__main__":
    guarded(lambda: print_scores(sys.argv[1:]))
