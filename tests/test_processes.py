"""Several processes run one experiment: same numbers, one writer, one common end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from settings import TINY, TINY_DIGITS
from test_front_door import ORDINARY

from experiments.engine import command, listening, processes, reading
from experiments.engine.processes import Seat
from p2pjax import checkpoint, sharding
from p2pjax.training.agent_loop import AUTO, CHUNK, IN_PLACE, VMAP
from p2pjax.types import InputError

ROOT = Path(__file__).parents[1]
LAST_WORDS = ROOT / "experiments" / "engine" / "last_words.py"
# What the test process would settle on otherwise.
SETTLED = ("--num_devices=2", f"--agent_loop={CHUNK}")
SMALL = (*TINY, "--levels=80", "--num_rounds=2", *SETTLED)
# Twelve evaluations of two schemes in two runs, as in test_resume.
LONG = (
    *TINY,
    "--levels=0,80",
    "--num_runs=2",
    "--num_rounds=6",
    "--checkpoint_every=4",
    "--averaging=pairs",
    *SETTLED,
)
STOPPED = "Stopped, because another process of this run has stopped: start all of them"


def free_port():
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]


def start(
    folder,
    *args,
    num_processes=2,
    module="experiments.femnist",
    own_args=((), ()),
    places=(ROOT, ROOT),
):
    """Processes that run an experiment in a folder, some flags and places their own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module, f"--workdir={folder}", *args]
    port = free_port()
    seats = [
        (
            f"--num_processes={num_processes}",
            f"--process_id={number}",
            f"--coordinator=localhost:{port}",
        )
        for number in range(num_processes)
    ]
    return [
        subprocess.Popen(
            [*command, *own, *(seat if num_processes > 1 else ())],
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seat, own, place in zip(seats, own_args, places, strict=False)
    ]


def ended(started, seconds=900):
    """What they printed, what they said on standard error and their statuses."""
    try:
        told = [process.communicate(timeout=seconds) for process in started]
    finally:
        for process in started:
            process.kill()  # which does nothing to one that has ended
    return (
        [out for out, _ in told],
        [error for _, error in told],
        [process.returncode for process in started],
    )


def rows_of(folder):
    return reading.rows(folder)


def assert_same_rows(one, other):
    assert len(one) == len(other) > 0
    for mine, theirs in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            if isinstance(value, (float, list)):
                ours, other = (np.asarray(v, float) for v in (value, theirs[name]))
                np.testing.assert_allclose(ours, other, rtol=1e-6, atol=1e-6)
            else:
                assert value == theirs[name]


def test_two_processes_give_the_numbers_of_one(run, tmp_path):
    folder = tmp_path / "two"
    (printed, silence), (said, nothing), statuses = ended(start(folder, *SMALL))
    assert statuses == [0, 0], nothing
    # Two of four agents: 38 kB of parameters and 23.5 kB of examples each.
    assert re.search("models 77 kB, .* data 47 kB", said)
    assert f"Results are in {folder}" in printed and "Gloo" not in printed
    assert (silence, nothing) == ("", "")
    one = run(*SMALL, workdir="one")
    assert_same_rows(rows_of(folder), rows_of(one))
    # How many ran it is no part of what was run: another number can go on with it.
    written = (folder / "run.flags").read_text()
    for flag in ("num_processes", "process_id", "coordinator", "cluster"):
        assert flag not in written
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["environment"]["processes"] == 2
    assert (folder / "accuracy_by_level.png").exists()
    # Each has written its own agents.
    (number,) = checkpoint.numbers(folder / "checkpoints")
    state = folder / "checkpoints" / str(number) / "state"
    sizes = [
        sum(p.stat().st_size for p in (state / f"ocdbt.process_{n}").rglob("*"))
        for n in range(2)
    ]
    assert min(sizes) > 0.8 * max(sizes) > 10_000


def two_of(script):
    """What two processes print that run a script of the tests."""
    command = [sys.executable, str(ROOT / "tests" / script), str(free_port())]
    started = [
        subprocess.Popen(
            [*command, str(number)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    printed, said, statuses = ended(started)
    assert statuses == [0, 0], said
    return printed


@pytest.mark.slow
def test_processes_keep_the_images_of_their_own_agents():
    """The script fails where a process keeps all of them."""
    for said in two_of("keep_own_images.py"):
        # Beside what JAX's collectives may print.
        lines = [line for line in said.splitlines() if not line.startswith("[Gloo]")]
        assert lines == ["5 arrays freed"]


@pytest.mark.slow
def test_different_tasks_in_place_are_for_one_device():
    """The one thing that methods cannot do on several processes; both say so."""
    refusal = "Need one device to train agents of different tasks in place, got 2"
    for printed in two_of("refuse_tasks_in_place.py"):
        lines = printed.splitlines()
        (sentence,) = [line for line in lines if not line.startswith("[Gloo]")]
        assert sentence.startswith(refusal)


@pytest.mark.slow
def test_one_host_with_all_data_is_for_one_process(tmp_path):
    started = start(tmp_path / "run", module="experiments.combination")
    _, said, statuses = ended(started)
    assert statuses == [2, 2]
    lasts = [told.splitlines()[-1] for told in said]
    refusal = "Need one process for the scheme centralized, got 2"
    assert any(last.startswith(refusal) for last in lasts)
    # The other has the same to say, unless it hears first that this one has ended.
    lost = "Stopped, because another process of this run has stopped"
    assert all(last.startswith((refusal, lost)) for last in lasts)
    assert "Traceback" not in "".join(said)


OTHERS = {
    "combination": (
        "--schemes=local,mean",
        "--study=digits",
        "--hosts=4",
        "--max_epochs=2",
        "--batch_size=10",
    ),
    "vsn": ("--train_size=20", "--test_size=20", "--batch_size=5", "--levels=80"),
    "mnist": (*TINY_DIGITS, "--values=5"),
    "associative": ("--modified=1", "--shared_hidden=300", "--batch_size=3"),
    "next_word": ("--methods=dpsgd,p2p_bn", "--num_words=20", "--units=4"),
    "connections": (
        "--methods=pens,aucccr,d_cliques",
        "--dataset=digits",
        "--train_size=20",
        "--probe_size=20",
        "--batch_size=10",
    ),
    "virtual": (
        "--methods=virtual",
        "--size=8",
        "--network=100=4=2",
        "--num_samples=2",
        "--epochs=2",
        "--batch_size=4",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("experiment", OTHERS)
def test_other_experiments(tmp_path, experiment):
    args = (*OTHERS[experiment], "--num_rounds=2", "--eval_every=1")
    if experiment != "combination":  # whose agents are hosts
        args = (*args, "--num_agents=4")
    folders = []
    for num_processes in (1, 2):
        folder = tmp_path / str(num_processes)
        started = start(
            folder,
            *args,
            "--num_devices=2",
            num_processes=num_processes,
            module=f"experiments.{experiment}",
        )
        _, said, statuses = ended(started)
        assert not any(statuses), said
        folders.append(folder)
    assert_same_rows(*map(rows_of, folders))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Rows of one process that never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    _, (said,), (status,) = ended(start(folder, *LONG, num_processes=1))
    assert status == 0, said
    return (folder / "metrics.jsonl").read_bytes()


def stop_one(folder, victim, num_rows, how):
    """Starts two processes and stops one of them in the middle."""
    started = start(folder, *LONG)
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 900
    while not metrics.exists() or metrics.read_text().count("\n") < num_rows:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    started[victim].send_signal(how)
    _, said, statuses = ended(started)
    return said, statuses


def go_on(folder, num_processes):
    flagfile = f"--flagfile={folder / 'run.flags'}"
    started = start(folder, flagfile, "--resume", num_processes=num_processes)
    _, said, statuses = ended(started)
    assert not any(statuses), said
    return (folder / "metrics.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim, num_rows, num_processes", [(1, 1, 2), (0, 5, 2), (1, 8, 1)]
)
def test_a_killed_process_stops_the_other(
    tmp_path, whole, victim, num_rows, num_processes
):
    folder = tmp_path / "killed"
    said, statuses = stop_one(folder, victim, num_rows, signal.SIGKILL)
    assert statuses[victim] == -signal.SIGKILL
    assert statuses[1 - victim] not in (0, None)
    complaints = [
        line for line in said[1 - victim].splitlines() if not line.startswith("I")
    ]
    assert len(complaints) == 1 and complaints[0].startswith(STOPPED)
    assert go_on(folder, num_processes) == whole


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_ctrl_c_in_one_stops_the_other(tmp_path, whole, victim):
    folder = tmp_path / "stopped"
    said, statuses = stop_one(folder, victim, 3, signal.SIGINT)
    assert statuses[victim] == 130
    assert "Stopped" in said[victim] and "Traceback" not in said[victim]
    assert STOPPED in said[1 - victim]
    assert go_on(folder, 2) == whole


@pytest.mark.slow
def test_what_one_process_refuses_stops_the_other(tmp_path):
    folder = tmp_path / "taken"
    folder.mkdir()
    (folder / "run.flags").write_text("")
    _, said, statuses = ended(start(folder, *SMALL))
    assert statuses[0] == 2 and statuses[1] not in (0, None)
    assert "Need a work folder without results" in said[0]
    assert said[1].startswith(STOPPED) and said[1].count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "own_args, names",
    [
        (
            (("--seed=1",), ("--seed=2", "--learning_rate=0.3")),
            ("--learning_rate (none, 0.3)", "--seed (1, 2)"),
        ),
        (((), ("--num_devices=4",)), ("--num_devices (2, 4)", "devices (1 of cpu, 2")),
        (((), ("--resume",)), ("--resume (False, True)",)),
    ],
)
def test_item_1_processes_refuse_what_differs(tmp_path, own_args, names):
    folder = tmp_path / "run"
    printed, said, statuses = ended(start(folder, *SMALL, own_args=own_args))
    assert statuses == [2, 2], said
    for told in said:
        assert told.count("\n") == 1
        assert told.startswith("Need the same flags, versions and devices in all 2 ")
        assert all(name in told for name in names)
    assert not folder.exists() and printed == ["", ""]


@pytest.mark.slow
def test_item_1_processes_refuse_other_data(tmp_path):
    """Of the same name, on machines of their own."""
    users = np.repeat(np.arange(4), 30)
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        x = np.ones((120, 784), np.float32)
        x[7, 3] -= number / 2  # one pixel of one agent
        np.savez(tmp_path / str(number) / "mine.npz", x=x, y=users % 3, user=users)
    folder = tmp_path / "run"
    mine = ("--dataset=npz", "--data_dir=mine.npz")
    places = [tmp_path / "0", tmp_path / "1"]
    _, said, statuses = ended(start(folder, *SMALL, *mine, places=places))
    assert statuses == [2, 2], said
    for told in said:
        assert "Need the same data in all 2 processes, but their digests" in told
        assert "Traceback" not in told
    assert not folder.exists()


def test_item_1_what_differs_is_named(monkeypatch, parse):
    """By all processes, of which the last two are the same."""
    stored = {}

    class Store:
        key_value_set = staticmethod(stored.__setitem__)
        blocking_key_value_get = staticmethod(lambda key, _: stored[key])

    facts = command.facts_of(command.Experiment("toy", None, None, None), parse())
    assert {"--seed", "--resume", "p2pjax", "jax", "experiment"} <= facts.keys()
    every = [facts | {"p2pjax": "0.0", "--new": "1"}, facts, facts]
    for number, own in enumerate(every):
        stored[f"p2pjax/flags/{number}"] = json.dumps(own)
    monkeypatch.setattr(processes, "_store", Store)
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    for number, own in enumerate(every):
        monkeypatch.setattr(jax, "process_index", lambda number=number: number)
        with pytest.raises(processes.DifferentProcessError) as refused:
            processes.check_same("flags", own)
        version = facts["p2pjax"]
        assert str(refused.value) == (
            "Need the same flags in all 3 processes, but these differ: --new (1, none, "
            f"none); p2pjax (0.0, {version}, {version})."
        )
    stored["p2pjax/flags/0"] = json.dumps(facts)
    processes.check_same("flags", facts)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_item_12_sigterm_in_one_saves_the_work_of_both(tmp_path, whole, victim):
    folder = tmp_path / "terminated"
    said, statuses = stop_one(folder, victim, 3, signal.SIGTERM)
    assert statuses == [143, 143], said
    assert "Stopped; go on with: python -m experiments.femnist" in said[0]
    assert said[1] == "Stopped.\n"
    assert go_on(folder, 2) == whole


def every_result(
    path,
    num_devices,
    num_processes=1,
    agent_loop=IN_PLACE,
    table="every_algorithm",
):
    """What all algorithms come to on so many devices."""
    script = [sys.executable, str(ROOT / "tests" / "run_every_algorithm.py"), table]
    script += [str(path), str(num_devices // num_processes), str(agent_loop)]
    port = free_port()
    seats = [(str(num_processes), str(n), str(port)) for n in range(num_processes)]
    # Compilation is most of the time.
    quick = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    started = [
        subprocess.Popen(
            [*script, *(seat if num_processes > 1 else ())],
            cwd=ROOT / "tests",
            env=os.environ | {"XLA_FLAGS": quick},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seat in seats
    ]
    _, said, statuses = ended(started, 3600)
    assert not any(statuses), said
    with np.load(path) as found:
        return dict(found)


def assert_same_results(one, other, atol=1e-6):
    assert set(one) == set(other)
    for name, value in one.items():
        np.testing.assert_allclose(
            value, other[name], rtol=1e-6, atol=atol, err_msg=name
        )


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    return every_result(tmp_path_factory.mktemp("one") / "one.npz", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_devices, num_processes, agent_loop",
    [
        (2, 1, IN_PLACE),
        (4, 1, IN_PLACE),
        (8, 1, IN_PLACE),
        (2, 2, IN_PLACE),
        (4, 2, IN_PLACE),
        (2, 1, VMAP),
        (2, 1, 3),
    ],
)
def test_every_algorithm_on_several_devices(
    tmp_path, on_one_device, num_devices, num_processes, agent_loop
):
    """All forms of the agent loop give the numbers of one device, in place."""
    path = tmp_path / "several.npz"
    found = every_result(path, num_devices, num_processes, agent_loop)
    # Agents side by side sum their products in another order, and Adam enlarges what
    # that changes in small gradients; in 64 bits it is 2e-15.
    atol = 1e-6 if agent_loop == IN_PLACE else 5e-5
    assert_same_results(found, on_one_device, atol)


@pytest.mark.slow
def test_an_ordinary_network_on_two_processes(tmp_path):
    """Convolution, batch norm and dropout in every method: models, scores, costs."""
    one, two = (
        every_result(
            tmp_path / f"{number}.npz",
            num_devices=number,
            num_processes=number,
            agent_loop=AUTO,
            table="ordinary_network",
        )
        for number in (1, 2)
    )
    assert {name.split(":")[0] for name in one} == set(ORDINARY)
    assert_same_results(two, one)


FATAL = (
    "E1116 17:10:46.989349   17935 coordination_service_agent.cc:289] Polled an error\n"
    "1\n"
    "F1116 17:10:46.989380   17935 client.h:80] Terminating process because the JAX "
    "distributed service detected fatal errors. This most likely indicates\n"
    "*** Check failure stack trace: ***\n"
)


@pytest.mark.parametrize(
    "written, shown",
    [
        ("I a row\n[Gloo] Rank 0 is connected\nW another\n", "I a row\nW another\n"),
        (f"I a row\n{FATAL}", "I a row\nThe end.\n"),
        (f"The end.\n{FATAL}", "The end.\n"),
        # Not the end of it: nothing is lost.
        (FATAL.splitlines()[0] + "\nNeed it.", FATAL.splitlines()[0] + "\nNeed it."),
    ],
    ids=["nothing", "the end", "the end twice", "trouble"],
)
def test_one_sentence_stands_for_what_jax_says(written, shown):
    done = subprocess.run(
        [sys.executable, LAST_WORDS, "The end."],
        input=written,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stderr, done.stdout) == (shown, "")


def test_seats():
    assert processes.seat(None, None, None, False) is None
    assert processes.seat(None, None, None, True) == Seat()
    assert processes.seat(2, 1, "here:80", False) == Seat(2, 1, "here:80")


@pytest.mark.parametrize(
    "seat, message",
    [
        (
            (2, None, None, False),
            "or --cluster alone, got 2, None, None",
        ),
        ((2, 0, "here:80", True), "got 2, 0, here:80 and --cluster=True"),
        ((2, 2, "here:80", False), "Need --process_id from 0 to 1, got 2"),
        ((2, 0, "here", False), "Need --coordinator as host:port, got 'here'"),
        ((2, 0, ":80", False), "host:port, got ':80'"),
        ((2, 0, "here:99999", False), "host:port, got 'here:99999'"),
    ],
)
def test_seats_that_do_not_exist_are_refused(seat, message):
    with pytest.raises(InputError, match=message):
        processes.seat(*seat)


def test_what_several_processes_need(parse):
    seat = Seat(2, 0, "localhost:1")
    with pytest.raises(InputError, match="Need --workdir for several processes"):
        command._start_with_others(None, parse("--num_processes=2"), seat)
    config = parse("--workdir=w", "--runs_at_once=3")
    with pytest.raises(InputError, match="--runs_at_once=1 for several .* got 3"):
        command._start_with_others(None, config, seat)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        seat = seat._replace(coordinator=address)
        with pytest.raises(InputError, match=f"Need a free port .* got {address} "):
            command._start_with_others(None, parse("--workdir=w"), seat)


@pytest.fixture
def joined(monkeypatch):
    """Takes a seat with a stand-in for JAX; returns what JAX was told."""
    told = {}
    monkeypatch.delenv("JAX_COORDINATOR_BIND_ADDRESS", raising=False)
    monkeypatch.setattr(
        jax.distributed, "initialize", lambda *args, **named: told.update(named)
    )
    monkeypatch.setattr(processes, "_last_words", lambda sentence: None)

    def join(coordinator, process_id=0):
        processes.join(Seat(2, process_id, coordinator), "Lost.")
        return told["coordinator_bind_address"]

    before = jax.config.jax_enable_preemption_service
    yield join
    jax.config.update("jax_enable_preemption_service", before)


def test_item_8_process_0_listens_where_it_was_named(joined, monkeypatch):
    port = free_port()
    for host in ("localhost", "127.0.0.1"):
        assert joined(f"{host}:{port}") == f"127.0.0.1:{port}"
        assert joined(f"{host}:{port}", process_id=1) is None  # it does not listen
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", f"0.0.0.0:{port}")
    assert joined(f"localhost:{port}") == f"0.0.0.0:{port}"


def named(monkeypatch, *addresses):
    """Lets any name stand for these addresses."""
    kinds = {True: socket.AF_INET6, False: socket.AF_INET}
    monkeypatch.setattr(
        listening.socket,
        "getaddrinfo",
        lambda host, port, type: [
            (kinds[":" in one], type, 0, "", (one, port)) for one in addresses
        ],
    )


def test_item_8_ipv4_comes_first(joined, monkeypatch):
    port = free_port()
    named(monkeypatch, "::1", "127.0.0.1")
    assert joined(f"localhost:{port}") == f"127.0.0.1:{port}"


def test_item_8_a_name_that_others_cannot_reach_is_told(joined, monkeypatch, caplog):
    port = free_port()
    named(monkeypatch, "127.0.0.1")  # as /etc/hosts of many systems says of themselves
    with caplog.at_level("WARNING"):
        assert joined(f"node7:{port}") == f"127.0.0.1:{port}"
    assert "node7 is 127.0.0.1 on this machine: processes on other" in caplog.text


def test_item_8_an_address_of_another_machine_is_refused(joined, monkeypatch):
    named(monkeypatch, "198.51.100.1")  # for documentation: no machine has it
    with pytest.raises(InputError, match=r"machine .* node7:1234 \(Cannot assign"):
        joined("node7:1234")
    monkeypatch.undo()
    with pytest.raises(InputError, match="address of this machine .* no.such.host:80"):
        listening.bind_address("no.such.host:80")


def listeners(port):
    """Addresses on which any process of this machine listens at a port."""
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, number = local.split(":")
            if state == "0A" and int(number, 16) == port:
                words = np.frombuffer(bytes.fromhex(address), ">u4")
                shown = socket.inet_ntop(family, words.astype("=u4").tobytes())
                found.add(shown.removeprefix("::ffff:"))  # as IPv6 writes IPv4
    return found


def test_item_8_the_test_below_can_fail():
    for host, family in (("0.0.0.0", socket.AF_INET), ("127.0.0.1", socket.AF_INET)):
        with socket.socket(family) as here:
            here.bind((host, 0))
            here.listen()
            assert listeners(here.getsockname()[1]) == {host}


@pytest.mark.slow
def test_item_8_nothing_but_localhost_is_listened_on(tmp_path):
    started = start(tmp_path / "run", *SMALL)
    port = int(re.search(r"localhost:(\d+)", " ".join(started[0].args))[1])
    found = set()
    while not found and started[0].poll() is None:
        found = listeners(port)
        time.sleep(0.05)
    _, said, statuses = ended(started)
    assert statuses == [0, 0], said
    assert found == {"127.0.0.1"}


def test_processes_share_agents_evenly(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    with pytest.raises(InputError, match="3 processes can share evenly, got 8 agents"):
        sharding.agents_mesh(8)
    with pytest.raises(InputError, match="evenly, got 6 agents and 2 devices"):
        sharding.agents_mesh(6, 2)
    for experiment in ("multi_task", "heterogeneity", "robustness"):
        with pytest.raises(InputError, match=f"experiments.{experiment}, got 3: leave"):
            processes.check_alone(experiment)


@pytest.mark.parametrize(
    "error, is_loss",
    [
        (ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed"), True),
        (RuntimeError("UNAVAILABLE: coordination service: Socket closed"), True),
        (ValueError("shapes do not fit"), False),
        (OSError(28, "No space left", "/runs/connections/checkpoints"), False),
    ],
)
def test_what_tells_of_a_lost_process(error, is_loss):
    assert processes._tells_of_a_loss(error) == is_loss
    wrapped = KeyError("while writing")
    wrapped.__cause__ = error
    assert processes._tells_of_a_loss(wrapped) == is_loss
