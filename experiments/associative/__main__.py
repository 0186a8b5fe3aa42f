r"""Partial averaging of associative networks (Bouchra Pilet et al. 2021, V.5).

    python -m experiments.associative \
        --flagfile=experiments/associative/flags/quick.flags

Agents complete sparse binary vectors; for two of them one of three vectors ends
differently. The networks learn without gradients, and the study varies how many of
their hidden cells are global (Figure 27).
"""

from experiments.associative.study import EXPERIMENT
from experiments.engine import command

if __name__ == "__main__":
    command.main(EXPERIMENT)
