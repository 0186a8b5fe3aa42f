"""Strict JAX settings for every test, and where real data may be found."""

import os
from pathlib import Path

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
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
