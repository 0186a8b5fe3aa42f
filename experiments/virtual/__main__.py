"""VIRTUAL against learning together, alone and by FedAvg (Corinzia, Buhmann 2019).

    python -m experiments.virtual --flagfile=experiments/virtual/flags/quick.flags

Every agent is a client of a server. A round is one refinement of every client, that is
`--epochs` passes over its data; the other methods take as many passes in a round.
Studies are the data sets of the paper's Table 2: `mnist`, `femnist` (a writer per
client), `p_mnist` (every client has an order of pixels of its own), `vsn` (a sensor per
client) and `har` (a person per client); `shakespeare` is the next word of a role, by a
GRU. Rows tell what posteriors have learned; flags
that take several values make a design.
"""

from experiments.engine import command
from experiments.virtual.study import EXPERIMENT

if __name__ == "__main__":
    command.main(EXPERIMENT)
