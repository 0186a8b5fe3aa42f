"""Partial averaging on MNIST with permuted labels (Bouchra Pilet et al. 2021, V.3).

    python -m experiments.mnist --flagfile=experiments/mnist/flags/quick.flags

Agents have disjoint blocks of the training digits; some of them have other labels for
the same digits. A study varies one thing, whose values `--values` lists.

One global model of growing size: `level` (Figure 17, sizes of the mini-batch),
`convergence` (Figure 18, accuracy over time), `peers` (Figure 19, more agents),
`difference` (Figure 22, how many labels differ), `permuted` (Figure 23, how many agents
differ), `train_size` (Figure 24, more examples), `layouts` (Figure 25, a local last
layer, one more layer) and `drift` (averaging only when agents have drifted).
Semi-local models beside it: `semi_local` (Figure 20), `semi_local_local` (Figure 21,
local ones as well), `auto` and `auto_rotated` (groups that are found, not known).
"""

from experiments.engine import command
from experiments.mnist.study import EXPERIMENT

if __name__ == "__main__":
    command.main(EXPERIMENT)
