"""Partial averaging on MNIST: some agents have permuted labels."""
