"""Data of agents: loaders, generated data, and how examples are split."""
