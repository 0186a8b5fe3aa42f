"""One page about one or several runs: report.html, which needs nothing else.

    python -m experiments.report WORKDIR [WORKDIR...] [--output=FILE]

Settings, environment, charts and tables to copy; several runs are side by side.
"""

from absl import app, flags

from experiments.report import command

flags.adopt_module_key_flags(command)  # so that --help lists them
app.run(command.run, flags_parser=command.parse_flags)
