"""Robust rules under attack, and what compression costs.

    python -m experiments.robustness \
        --flagfile=experiments/robustness/flags/quick.flags

Studies: averaging (vectors of agents in two worlds under attack; nothing is trained),
two_worlds (training there), dumbbell (two cliques and a bridge, without attackers),
separated (agents with a class of their own, some of whom attack), partial (agents who
share a part of their networks, some of whom attack), selection (agents that choose
their peers, some of whom attack) and compression (formats of messages against bytes).
Gaucher et al. (2025), https://arxiv.org/abs/2410.10418; He et al. (2022),
https://arxiv.org/abs/2202.01545; Wu et al. (2023), https://arxiv.org/abs/2206.04568;
Bouchra Pilet et al. (2021), https://hal.science/hal-02373338; Koloskova et al. (2019),
https://arxiv.org/abs/1902.00340.
"""

from experiments.engine import command
from experiments.robustness.study import EXPERIMENT

if __name__ == "__main__":
    command.main(EXPERIMENT)
