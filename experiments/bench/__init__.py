"""Benchmarks: p2pjax next to what else could run the same.

A suite has workloads; a workload is run by several systems, each in a process of its
own, in turn. Suites: `training_suites`, `mixing_suites`, `protocol_suites`,
`limit_suites`. Systems: `p2pjax_training`, `jax_loop`, `torch_loop` and so on.
"""
