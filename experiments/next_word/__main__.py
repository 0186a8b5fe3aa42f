"""Next-word prediction by peers, one user per agent (Sajina 2025, 2.1.1).

    python -m experiments.next_word --flagfile=experiments/next_word/flags/quick.flags

Each agent has the texts of one user, and a round is a network epoch. Studies: `methods`
compares methods on one graph. Those of the thesis are `ablation` (what fine-tuning of
batch norm adds), `ring` (with and without batch norm, Tables 1 and 2), `sparse` (fixed
and varying graphs, Table 3), `scaling` (more agents), `epochs` (how long agents learn
by themselves), `loss` (lost messages) and `references` (each agent alone, and all data
pooled). In each of them `--norm`, `--local_epochs`, `--local_steps` and
`--loss_probability` may have several values, which are compared.
"""

from experiments.engine import command
from experiments.next_word.study import EXPERIMENT

if __name__ == "__main__":
    command.main(EXPERIMENT)
