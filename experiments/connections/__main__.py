r"""Whom agents connect with, where some are alike (Sajina 2025, third study).

    python -m experiments.connections \
        --flagfile=experiments/connections/flags/quick.flags

Agents are in clusters of which they know nothing, and methods choose peers in their own
ways. Studies say how clusters differ: `rotation` (turned images), `swap` (two labels
exchanged), `vehicles_animals`, `superclasses` and `pathological` (classes of their
own), `practical` (most of two classes and a little of the others), `text` (users who
write in one place).

A round is a local epoch of each agent. What counts is the accuracy of trained models
before they are averaged (of D-Cliques, which averages after each step, after that), and
what was sent for it.
"""

from experiments.connections.study import EXPERIMENT
from experiments.engine import command

if __name__ == "__main__":
    command.main(EXPERIMENT)
