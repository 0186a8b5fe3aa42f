"""Several processes that run one experiment together, over `jax.distributed`.

All are started with the same flags but for --process_id, and with the same code, data
and devices: they compare all that and refuse what differs. Each holds its own agents;
process 0 alone writes and prints. Whatever stops one of them stops all: the others
notice at their next exchange, or when it has been silent for a while, and say so in
one sentence.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from experiments.engine import listening
from p2pjax.types import InputError

ARRIVAL_SECONDS = 120  # that processes wait for the last one to start
SILENCE_SECONDS = 30  # after which a process counts as dead
TERMINATED = 128 + signal.SIGTERM  # exit status of all, once they have saved

# In what JAX, its collectives and orbax say when another process has gone.
_SIGNS = ("gloo", "nccl", "coordination", "heartbeat", "barrier", "connection")
_OWN_ERRORS = (OSError, MemoryError)  # whose texts may have such words in paths


class DifferentProcessError(Exception):
    """The processes were not started with the same; all of them notice and end."""


class Seat(NamedTuple):
    """Which of how many processes this is; nothing is known if JAX is to find out."""

    num_processes: int | None = None
    process_id: int | None = None
    coordinator: str | None = None  # host:port of process 0


def seat(
    num_processes: int | None,
    process_id: int | None,
    coordinator: str | None,
    cluster: bool,
) -> Seat | None:
    """What the flags of these names say; None if this is the only process."""
    given = [num_processes, process_id, coordinator]
    if given == [None] * 3:
        return Seat() if cluster else None
    if num_processes is None or process_id is None or coordinator is None or cluster:
        raise InputError(
            "Need --num_processes, --process_id and --coordinator, or --cluster alone, "
            f"got {num_processes}, {process_id}, {coordinator} and --cluster={cluster}."
        )
    if process_id >= num_processes:
        raise InputError(
            f"Need --process_id from 0 to {num_processes - 1}, got {process_id}."
        )
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise InputError(
            f"Need --coordinator as host:port, got '{coordinator}': such as "
            "localhost:1234."
        )
    return Seat(num_processes, process_id, coordinator)


def join(seat: Seat, when_lost: str) -> None:
    """Makes this process one of several; call it before anything runs in JAX.

    Args:
      seat: which one it is.
      when_lost: what to say if another process ends.
    """
    num_processes, process_id, coordinator = seat
    listens_at = None
    if coordinator is not None and process_id == 0:
        listens_at = listening.bind_address(coordinator)
    # Otherwise JAX takes SIGTERM for a notice and goes on.
    jax.config.update("jax_enable_preemption_service", False)
    stderr = os.dup(2)
    _last_words(
        f"Need all processes to reach {coordinator or 'process 0'} within "
        f"{ARRIVAL_SECONDS} seconds, got fewer: start them together."
    )
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            cluster_detection_method="deactivate" if coordinator else None,
            initialization_timeout=ARRIVAL_SECONDS,
            coordinator_bind_address=listens_at,
            heartbeat_timeout_seconds=SILENCE_SECONDS,
        )
    except ValueError as error:  # nothing was found
        raise InputError(
            "Need Slurm, Open MPI or another cluster that JAX knows for --cluster, got "
            "none: give --num_processes, --process_id and --coordinator."
        ) from error
    os.dup2(stderr, 2)
    os.close(stderr)
    _last_words(when_lost)


def meet(name: str) -> None:
    """Waits until all processes are here.

    A group of devices must first exchange something within 30 seconds of each other;
    after a meeting, which may take any time, they do.
    """
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def _last_words(sentence: str) -> None:
    """Sends standard error through `last_words`."""
    program = str(Path(__file__).with_name("last_words.py"))
    reading, writing = os.pipe()
    os.posix_spawn(
        sys.executable,
        [sys.executable, program, sentence],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)],
        setpgroup=0,  # Ctrl-C is not for it
    )
    os.close(reading)
    os.dup2(writing, 2)
    os.close(writing)


def _hush_others() -> None:
    """All but process 0 say nothing but warnings."""
    sys.stdout.flush()
    if is_first():
        # Python keeps standard output; what C++ has to tell goes to standard error.
        sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
    else:
        logging.set_verbosity(logging.WARNING)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def is_first() -> bool:
    """Whether this process writes and prints."""
    return jax.process_index() == 0


def check_alone(experiment: str) -> None:
    """Refuses several processes for an experiment that only one can run."""
    if jax.process_count() > 1:
        raise InputError(
            f"Need one process for experiments.{experiment}, got "
            f"{jax.process_count()}: leave out --num_processes."
        )


def from_first(value: int) -> int:
    """What process 0 has, in every process; all wait for it."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def any_of(value: bool) -> bool:
    """Whether it is so in any process; all wait for it."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.process_allgather(np.int32(value)).any())


def check_same(what: str, facts: Mapping[str, str]) -> None:
    """Refuses, in every process, facts that are not those of all processes.

    They go through the store of JAX's coordinator, which needs no devices.

    Args:
      what: they are about; each word is for one comparison.
      facts: of this process, by what they are called.

    Raises:
      DifferentProcessError: some differ; it names all of them.
    """
    client, size = _store(), jax.process_count()
    text = json.dumps(facts, sort_keys=True)
    client.key_value_set(f"p2pjax/{what}/{jax.process_index()}", text)
    found = []
    for number in range(size):
        key = f"p2pjax/{what}/{number}"
        found.append(client.blocking_key_value_get(key, 1000 * ARRIVAL_SECONDS))
    others = [json.loads(text) for text in found]
    names = sorted({name for other in others for name in other})
    differ = [
        f"{name} ({', '.join(_said(other.get(name)) for other in others)})"
        for name in names
        if len({other.get(name) for other in others}) > 1
    ]
    if differ:
        raise DifferentProcessError(
            f"Need the same {what} in all {size} processes, but these differ: "
            f"{'; '.join(differ)}."
        )


def check_same_value(what: str, digest: bytes) -> None:
    """Refuses, in every process, what is not the same in all of them.

    Args:
      what: it is.
      digest: of what this process has, equally long in all.

    Raises:
      DifferentProcessError: they differ.
    """
    meet(f"{what}: made")
    own = np.frombuffer(digest, np.uint8)
    others = np.asarray(multihost_utils.process_allgather(own))
    if (others != others[0]).any():
        found = ", ".join(row.tobytes().hex()[:8] for row in others)
        raise DifferentProcessError(
            f"Need the same {what} in all {len(others)} processes, but their digests "
            f"differ ({found}): see that all read the same files."
        )


def _said(value: str | None) -> str:
    """Short enough for a sentence about many processes."""
    if value is None:
        return "none"
    return value if len(value) <= 80 else f"{value[:40]}...{value[-20:]}"


def _store() -> Any:
    """Of keys and values, which all processes reach; JAX has no public name for it."""
    from jax._src import distributed

    return distributed.global_state.client


def _let_others_go(seconds: float = 5) -> None:
    """Process 0 ends last where all end: without it the others have no time to speak.

    Args:
      seconds: that it waits at most.
    """
    client = _store()
    if not is_first():
        client.key_value_set(f"p2pjax/gone/{jax.process_index()}", "gone")
        return
    deadline = time.monotonic() + seconds
    for number in range(1, jax.process_count()):
        left = max(1, int(1000 * (deadline - time.monotonic())))
        try:
            client.blocking_key_value_get(f"p2pjax/gone/{number}", left)
        except Exception:  # it has gone without a word
            return
    time.sleep(0.2)  # between their last word and their end


def run(main: Callable[[], None], facts: Mapping[str, str], when_lost: str) -> None:
    """Runs an experiment as one of several processes.

    A process that fails ends at once: the usual end waits for the others, who wait for
    this one.

    Args:
      main: the experiment.
      facts: flags and versions, which have to be those of all processes.
      when_lost: what to say if another process ends.
    """
    try:
        _hush_others()
        check_same("flags, versions and devices", {**facts, **_devices()})
        meet("all have joined")
        main()
        return
    except SystemExit as ended:
        if not ended.code:
            raise
        status = ended.code if isinstance(ended.code, int) else 1
        if status == TERMINATED:
            _let_others_go()
    except DifferentProcessError as error:
        status = 2
        print(error, file=sys.stderr, flush=True)
        _let_others_go()
    except KeyboardInterrupt:
        status = 130
        print("Stopped.", file=sys.stderr)
    except BaseException as error:
        status = 1
        if _tells_of_a_loss(error):
            print(when_lost, file=sys.stderr)
        else:
            traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _devices() -> dict[str, str]:
    """What each process has to have as many of as the others."""
    kinds = sorted({device.device_kind for device in jax.local_devices()})
    return {
        "devices": f"{jax.local_device_count()} of {jax.default_backend()}",
        "kinds of devices": ", ".join(kinds),
    }


def _tells_of_a_loss(error: BaseException | None) -> bool:
    while error is not None:
        is_own = isinstance(error, _OWN_ERRORS)
        if not is_own and any(sign in str(error).lower() for sign in _SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False
