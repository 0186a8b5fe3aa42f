"""Strict JAX settings for every test; real data; experiments inside the process."""

import os
import tempfile
from pathlib import Path

import jax
import pytest
from absl import flags
from absl.testing import flagsaver
from hypothesis import settings

from experiments import common, femnist

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
# Most of a test's time is compilation, and many tests compile the same program: they
# share a cache that lives as long as the session, also between its workers.
os.environ.setdefault("P2PJAX_TEST_CACHE", tempfile.mkdtemp(prefix="p2pjax-tests-"))
jax.config.update("jax_compilation_cache_dir", os.environ["P2PJAX_TEST_CACHE"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
# The same examples every time; compilation makes any deadline meaningless.
settings.register_profile("p2pjax", deadline=None, derandomize=True)
settings.load_profile("p2pjax")

_BESIDE = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with real data sets: `P2PJAX_DATA`, or `../shared/data`."""
    folder = Path(os.environ.get("P2PJAX_DATA", _BESIDE))
    if not folder.is_dir():
        pytest.skip(f"real data not found: no folder {folder}")
    return folder


@pytest.fixture
def parse():
    """Parses a command line as a fresh process would."""
    with flagsaver.flagsaver():

        def parse_and_settle(*args):
            for name in flags.FLAGS:
                if flags.FLAGS[name].present:
                    flags.FLAGS[name].unparse()
            common.parse_flags(["femnist", *args])
            common.settle_defaults()

        yield parse_and_settle


@pytest.fixture
def run(parse, tmp_path):
    """Runs the FEMNIST experiment and returns its folder."""

    def run_femnist(*args, workdir="run"):
        folder = tmp_path / workdir
        parse(*args, f"--workdir={folder}")
        common.guarded(femnist.main)
        return folder

    return run_femnist
