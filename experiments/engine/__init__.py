"""How every experiment runs: config, jobs, runner, run folder, processes."""
