"""Label skew, graphs and protocols at equal messages: today's decentralized baselines."""
