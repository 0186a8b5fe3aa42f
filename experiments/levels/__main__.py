"""Averaging levels of convolutional and recurrent networks, at equal bytes.

    python -m experiments.levels --flagfile=experiments/levels/flags/quick.flags

How much of a network agents should average (partial averaging, Bouchra Pilet et al.
2021), against FedPer, whose last layer stays at home, Ditto, FedAvg and learning alone:
writers of images with a convolutional network, users of texts with a GRU or an LSTM. A
round is --local_epochs of each agent and an exchange with servers; methods are compared
where agents and servers have sent as many bytes, with the learning rate that validation
data choose for each.
"""

from experiments.engine import command
from experiments.levels.study import EXPERIMENT

if __name__ == "__main__":
    command.main(EXPERIMENT)
