r"""How different the agents' labels are: divergences and a heat map.

    python -m experiments.heterogeneity \
        --flagfile=experiments/heterogeneity/flags/quick.flags

The mean Jensen-Shannon divergence over all pairs of agents, for three splits of
handwritten digits and for users' words (Sajina 2025, 2.1.3.1 and 2.1.1.1; Table 1 of
its first article), or for labelled examples of your own. Nothing is trained.
"""

from experiments.engine import command
from experiments.heterogeneity.study import EXPERIMENT

if __name__ == "__main__":
    command.main(EXPERIMENT)
