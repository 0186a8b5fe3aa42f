"""Partial averaging on FEMNIST: one writer per agent (Pilet et al. 2021, V.2).

    python -m experiments.femnist --flagfile=experiments/femnist/flags/quick.flags

Studies: `level` (how much of the network is global), `scheme` (a part of every hidden
layer against whole layers) and `peers` (how many agents average together).
"""

from experiments.engine import command
from experiments.femnist.study import EXPERIMENT

if __name__ == "__main__":
    command.main(EXPERIMENT)
