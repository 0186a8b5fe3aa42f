"""One page about one or several runs: report.html, which needs nothing else.

    python -m experiments.report WORKDIR [WORKDIR...] [--output=FILE]

Settings, environment, charts and tables to copy; several runs are side by side.
"""

from experiments.engine import command
from experiments.report.command import Options, main

if __name__ == "__main__":
    command.tool(Options, main)
