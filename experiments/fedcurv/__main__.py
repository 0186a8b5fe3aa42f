"""FedAvg against FedCurv and personal models (Leleu and Cerisara 2020).

    python -m experiments.fedcurv --flagfile=experiments/fedcurv/flags/quick.flags

Study `points`: three machines, each with two of four groups of points in the plane, and
one test with all four; where groups lie is not printed, so there are four geometries.
Study `texts`: one task of SentEval per agent, texts as fixed vectors. Study `examples`:
labelled examples of your own, each user an agent. A round is one communication.
"""

from experiments.engine import command
from experiments.fedcurv.study import EXPERIMENT

if __name__ == "__main__":
    command.main(EXPERIMENT)
