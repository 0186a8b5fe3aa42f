"""The compilation cache: where it is, whose it is, how large it gets, same bytes."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from settings import TINY

from experiments.engine import compile_cache

ROOT = Path(__file__).parents[1]


@pytest.fixture
def unset(monkeypatch, tmp_path):
    """JAX without a cache, a user with a folder for caches."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


def test_it_is_in_the_users_folder(unset):
    folder = compile_cache.turn_on()
    assert folder.parent == unset / "p2pjax"
    assert folder.name.startswith(f"jax-{jax.__version__}-")
    assert jax.config.jax_compilation_cache_dir == str(folder)
    assert folder.stat().st_mode & 0o077 == 0


def test_what_the_user_has_set_stays(unset):
    jax.config.update("jax_compilation_cache_dir", "elsewhere")
    assert compile_cache.turn_on() is None
    assert jax.config.jax_compilation_cache_dir == "elsewhere"
    assert not list(unset.iterdir())


def test_a_folder_that_cannot_be_is_none(unset):
    (unset / "p2pjax").write_text("a file")
    assert compile_cache.turn_on() is None
    assert jax.config.jax_compilation_cache_dir is None


def test_relative_folders_do_not_count(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert compile_cache.default_folder().is_relative_to(Path.home())


def test_other_cpus_have_other_folders(monkeypatch, tmp_path):
    found = compile_cache.default_folder()
    other = tmp_path / "cpuinfo"
    other.write_text("flags\t: sse2\n")
    monkeypatch.setattr(compile_cache, "_CPUINFO", other)
    assert compile_cache.default_folder() != found


def test_what_was_not_used_for_longest_goes(tmp_path):
    for age, name in enumerate("abcd"):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    compile_cache.bound(tmp_path, 250)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    compile_cache.bound(tmp_path, 200)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_cold_and_warm_give_the_same_bytes(tmp_path):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("JAX_COMPILATION_CACHE_DIR")
    kept = []
    for name, more in (("cold", ()), ("warm", ()), ("without", ("--nocompile_cache",))):
        command = [sys.executable, "-m", "experiments.femnist", *TINY, "--levels=80"]
        subprocess.run(
            [*command, f"--workdir={tmp_path / name}", *more],
            cwd=ROOT,
            env=environment,
            check=True,
            capture_output=True,
        )
        cached = {path.name for path in (tmp_path / "cache").rglob("*-cache")}
        kept.append((cached, (tmp_path / name / "metrics.jsonl").read_bytes()))
    assert kept[0][0]
    assert kept[0] == kept[1] == kept[2]
