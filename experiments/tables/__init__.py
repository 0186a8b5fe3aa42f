"""Tables of RESULTS.md, computed from the runs that are kept in results/."""
