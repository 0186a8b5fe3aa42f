"""Complete local training, then convex or other sums of models (Ioste and Finger).

    F=experiments/combination/flags/quick.flags
    python -m experiments.combination --flagfile=$F

Study `hospital`: two hosts with laboratory tests, in the paper's splits. Study
`digits`: images in shards of few classes, one pass per round. Study `texts`: the next
word of what users write, by a GRU. A round is one communication. Every run also draws
how the factors exp(c r) depend on the number of hosts. Where the hospital's table comes
from is unknown, and 98% cannot be reached on it; made-up patients and scikit-learn's
tumours can be told so well.
"""

from experiments.combination.study import EXPERIMENT
from experiments.engine import command

if __name__ == "__main__":
    command.main(EXPERIMENT)
