"""Strict JAX settings for every test, and where real data may be found."""

import os
from pathlib import Path

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

_BESIDE = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with real data sets: `P2PJAX_DATA`, or `../shared/data`."""
    folder = Path(os.environ.get("P2PJAX_DATA", _BESIDE))
    if not folder.is_dir():
        pytest.skip(f"real data not found: no folder {folder}")
    return folder
