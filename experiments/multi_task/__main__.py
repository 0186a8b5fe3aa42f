"""Agents with different tasks that share an encoder (Sajina 2025, 2.1.2).

    python -m experiments.multi_task --flagfile=experiments/multi_task/flags/quick.flags

Every data set is a task of as many agents: predict a masked token of one user's texts,
or label words with named entities; or, with an encoder of images, read one writer's
digits, or letters. A round is a network epoch. `cts` runs every task
alone; `mt` and `mt_ef` run tasks together, two at a time (`--study=pairs`, Tables 4 to
6) or all of them (`--study=all`, Table 7), on random and on clustered sparse graphs;
`mono` takes data sets that have the same head for one task. `--foreign_share` says how
many of an agent's edges in clustered graphs are to other tasks. Rows have
`encoder_spread`, how far the agents' encoders are from their mean.
"""

from experiments.engine import command
from experiments.multi_task.study import EXPERIMENT

if __name__ == "__main__":
    command.main(EXPERIMENT)
