"""The first program of the README, as a user would run it outside of the checkout."""

import flax.linen as nn
import jax
import optax

import p2pjax as pj


class Net(nn.Module):
    """A user's own network: batch norm, dropout, convolutions."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        """Logits of images."""
        x = nn.Conv(16, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.relu(x).reshape(x.shape[0], -1)
        return nn.Dense(10)(nn.Dropout(0.2, deterministic=not train)(x))


data = pj.datasets.digits(
    num_agents=16, split=pj.split.dirichlet(0.3), valid_fraction=0.1, seed=0
)
task = pj.classification(Net(), data)
method = pj.dpsgd(task, optax.sgd(0.1), pj.graphs.ring(16), batch_size=16)
for now in pj.simulate(jax.random.key(0), method, data, num_rounds=20, eval_every=5):
    print(now.num_rounds, now.metrics["accuracy"].mean(), now.used.messages)
assert now.metrics["accuracy"].mean() > 0.9, "it does not learn"
print(f"p2pjax {pj.__version__} at {pj.__file__}")
