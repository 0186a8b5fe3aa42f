"""Decentralized methods and graphs where agents' labels differ, at equal messages.

    python -m experiments.protocols --flagfile=experiments/protocols/flags/quick.flags

Studies: heterogeneity (methods against the alpha of Dirichlet shares of labels), loss
(lost messages), graphs (accuracy against messages), epidemic (graphs that are drawn
anew against one that stays), consensus (how fast vectors agree; nothing is trained),
merge (one global merge), local_updates (steps between two exchanges), clusters (agents
who find those with images turned as theirs) and tokens (a few models that wander).

A round is a network epoch in all of them, so methods have seen as many examples. With
--tune each scheme runs with all rates of --grid, for a quarter of the rounds, with data
that no other run has; it prints the --rates to write into the flagfile.
"""

from experiments.engine import command
from experiments.protocols.study import EXPERIMENT

if __name__ == "__main__":
    command.main(EXPERIMENT)
