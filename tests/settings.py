"""Flags of an experiment small enough for a test."""

TINY = (
    "--network=784=12=8=10",
    "--variant=d",
    "--num_agents=4",
    "--train_size=20",
    "--test_size=10",
    "--batch_size=10",
    "--num_rounds=3",
    "--eval_every=2",
)

TINY_DIGITS = (
    "--network=64=12=8=10",
    "--num_agents=4",
    "--num_permuted=1",
    "--train_size=20",
    "--test_size=20",
    "--batch_size=5",
    "--levels=0,60",
    "--num_rounds=3",
    "--eval_every=2",
)
