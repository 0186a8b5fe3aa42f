"""Strict JAX settings for every test; real data; experiments inside the process."""

import contextlib
import gc
import os
import tempfile
import time
from pathlib import Path

import experiment_modules
import jax
import pytest
from hypothesis import settings

from experiments.engine import command, config, mapped_memory

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
# Most of a test's time is compilation, and many tests compile the same program: they
# share a cache that lives as long as the session, also between its workers.
os.environ.setdefault("P2PJAX_TEST_CACHE", tempfile.mkdtemp(prefix="p2pjax-tests-"))
jax.config.update("jax_compilation_cache_dir", os.environ["P2PJAX_TEST_CACHE"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
# Programs that tests start share it too, and write nothing to the user's own.
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["P2PJAX_TEST_CACHE"]
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
# The same examples every time; compilation makes any deadline meaningless.
settings.register_profile("p2pjax", deadline=None, derandomize=True)
settings.load_profile("p2pjax")

# Half of all compile time goes into XLA's newer code for fusions, which users run, and
# into LLVM's optimizations. Slow tests keep both; the others do without the second, and
# with the older fusions in versions that have both.
_OLDER_FUSIONS = "--xla_cpu_use_fusion_emitters=false"

# Reading thousands of maps takes as long as a small test, so they are read at times: no
# ten seconds of tests compile as much as is left to the limit.
_SECONDS_BETWEEN_LOOKS = 10
_last_look = 0.0

# Programs of their own processes: whoever collects doctests would run them, by import.
collect_ignore = ["construct_every_method.py", "first_program.py"]

_BESIDE = Path(__file__).parents[2] / "shared" / "data"


def pytest_configure(config):
    """Before anything is compiled, in every worker."""
    if config.option.markexpr == "not slow" and jax.__version_info__ < (0, 11):
        flags = os.environ.get("XLA_FLAGS", "")
        if _OLDER_FUSIONS.split("=")[0] not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {_OLDER_FUSIONS}"  # of subprocesses too
    if config.option.markexpr == "not slow":
        _compile_quickly(True)


def pytest_collection_finish():
    """What is imported stays: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with real data sets: `P2PJAX_DATA`, or `../shared/data`."""
    folder = Path(os.environ.get("P2PJAX_DATA", _BESIDE))
    if not folder.is_dir():
        pytest.skip(f"real data not found: no folder {folder}")
    return folder


def _parse(*args, experiment="femnist"):
    kind = experiment_modules.EXPERIMENTS[experiment].config
    return command.settle(config.parse(kind, args))


@pytest.fixture
def parse():
    """Makes a config from a command line, as the experiment does when it starts."""
    return _parse


@pytest.fixture(autouse=True)
def few_programs():
    """Forgets what was compiled before there is too much of it."""
    global _last_look
    yield
    if time.monotonic() - _last_look < _SECONDS_BETWEEN_LOOKS:
        return
    _last_look = time.monotonic()
    mapped_memory.make_room()


def _compile_quickly(wanted):
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(wanted))
    jax.config.update("jax_disable_most_optimizations", wanted)


@contextlib.contextmanager
def _compiling(quickly):
    before = jax.config.read("jax_disable_most_optimizations")
    _compile_quickly(quickly)
    try:
        yield
    finally:
        _compile_quickly(before)


@pytest.fixture
def compiled_quickly():
    """For tests that compile more than they compute, also in their own processes."""
    with _compiling(quickly=True):
        yield


@pytest.fixture
def compiled_fully():
    """For fast tests that compute more than they compile, or look at what users get."""
    with _compiling(quickly=False):
        yield


def _run(folder, *args, experiment="femnist"):
    def start():
        settled = _parse(*args, f"--workdir={folder}", experiment=experiment)
        command.run(experiment_modules.EXPERIMENTS[experiment], settled)

    command.guarded(start)
    return folder


@pytest.fixture
def run(tmp_path, compiled_quickly):
    """Runs an experiment and returns its folder."""

    def run_experiment(*args, workdir="run", experiment="femnist"):
        return _run(tmp_path / workdir, *args, experiment=experiment)

    return run_experiment


@pytest.fixture(scope="module")
def run_once(tmp_path_factory):
    """As `run`, for the several tests of a module that look at the same run."""

    def run_experiment(*args, experiment="femnist"):
        with _compiling(quickly=True):
            folder = tmp_path_factory.mktemp("once") / "run"
            return _run(folder, *args, experiment=experiment)

    return run_experiment
