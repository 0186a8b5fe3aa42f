"""Partial averaging on the vehicle sensor network (Bouchra Pilet et al. 2021, V.4).

    python -m experiments.vsn --flagfile=experiments/vsn/flags/quick.flags

Every agent is a sensor that tells two kinds of vehicle apart by what it hears and
feels; the study varies how much of the network is global (Figure 26).
"""

from experiments.engine import command
from experiments.vsn.study import EXPERIMENT

if __name__ == "__main__":
    command.main(EXPERIMENT)
