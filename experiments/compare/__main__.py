"""Any of the methods on a problem of your own, with equal budgets.

    python -m experiments.compare --flagfile=experiments/compare/flags/quick.flags
    python -m experiments.compare --dataset=npz --data_dir=mine.npz --split=by_user \
        --network=my_module:Net --methods=dpsgd,fedavg,pens,local_only \
        --learning_rates=0.03,0.1 --num_runs=3

Every method runs with every learning rate, in one program; where examples are held out
for validation, they choose each method's rate. The table compares methods where each
has used the same budget: rounds, examples, messages or bytes.
"""

from experiments.compare.study import EXPERIMENT
from experiments.engine import command

if __name__ == "__main__":
    command.main(EXPERIMENT)
