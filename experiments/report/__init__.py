"""Run folders as one page: `python -m experiments.report WORKDIR`."""
