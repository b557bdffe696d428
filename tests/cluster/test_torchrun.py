"""torchrun restarts a run whose worker was killed, and the run continues automatically."""

import json
import os
import signal
import socket

import psutil
import pytest

pytestmark = pytest.mark.slow


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.timeout(1200)  # four starts of torch, one after the other
def test_a_killed_worker_and_a_preemption_change_no_metric(
    cluster, config, expected_lines, tmp_path
):
    """Two agents, as on two nodes: a worker is killed, and later a scheduler ends all processes."""
    run, uninterrupted = tmp_path / "run", tmp_path / "uninterrupted"
    pauses = f"callbacks=[{{name: 'pauses:Pauses', folder: {tmp_path}, steps: [3, 6]}}]"
    arguments = (config, "--auto-resume", f"output={run}", pauses)
    with cluster.torchrun(2, *arguments, port=free_port()) as agents:
        cluster.wait_for((tmp_path / "at_3").exists, *agents)
        first = json.loads((run / "run.lock").read_text())["process"]
        workers = [psutil.Process(agent.pid).children()[0].pid for agent in agents]
        (other,) = set(workers) - {first}
        os.kill(other, signal.SIGKILL)
        (tmp_path / "on_3").touch()
        cluster.wait_for((tmp_path / "at_6").exists, *agents)
        # A scheduler signals every process; workers get a second signal from their agents.
        os.kill(json.loads((run / "run.lock").read_text())["process"], signal.SIGTERM)
        for agent in agents:
            agent.terminate()
        (tmp_path / "on_6").touch()
        outcomes = [cluster.wait_for_end(agent) for agent in agents]
    assert (run / "result.json").is_file(), outcomes
    assert json.loads((run / "result.json").read_text())["interrupted"]
    assert (run / "checkpoints" / "step_6").is_dir()
    assert [line["step"] for line in cluster.lines(run)] == [0, 1, 2, 3, 4, 5, 6]

    with cluster.torchrun(1, *arguments, processes=2) as (agent,):
        code, output = cluster.wait_for_end(agent)
    assert code == 0, output
    cluster.train(2, config, uninterrupted)
    assert cluster.lines(run) == cluster.lines(uninterrupted)
    assert cluster.lines(run) == cluster.approximately(expected_lines)
