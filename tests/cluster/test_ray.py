"""A run on a Ray cluster goes on after a worker, a node or a server is lost."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import yaml
from tests import tiny_model

pytestmark = pytest.mark.slow
STAND_IN = Path(__file__).with_name("stand_in.py")


@pytest.fixture
def nodes(cluster, request):
    """A cluster of two nodes with so many cores each; workers have their nodes' environment."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**cluster.environment, "RAY_USAGE_STATS_ENABLED": "0"}.items():
            patch.setenv(name, value)
        head = {"num_cpus": request.param, "include_dashboard": False}
        nodes = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        nodes.add_node(num_cpus=request.param)
        yield nodes
        nodes.shutdown()


@pytest.fixture
def on_ray(cluster, nodes, tmp_path):
    """on_ray(config, *arguments) starts the example."""

    def start(config, *arguments):
        script = cluster.root / "examples" / "cluster" / "on_ray.py"
        command = (script, config, "--storage", tmp_path, *arguments)
        environment = {"RAY_ADDRESS": nodes.address, "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"}
        return cluster.start_python(*command, **environment)

    return start


@pytest.mark.timeout(1200)  # Ray starts its processes four times
@pytest.mark.parametrize("nodes", [1], indirect=True)
def test_a_lost_worker_and_a_lost_node_change_no_metric(
    cluster, nodes, on_ray, config, expected_lines, tmp_path
):
    run = tmp_path / "run"
    with on_ray(config, "--workers", 3, "--patience", 1) as driver:
        code, output = cluster.wait_for_end(driver)
    *_, error = output.splitlines()
    assert (code, run.exists()) == (1, False)
    assert error.startswith(
        "error: 3 workers need {'CPU': 1.0} each, and after 1 s {'CPU': 2.0} of"
    )

    pauses = f"callbacks=[{{name: 'pauses:Pauses', folder: {tmp_path}, steps: [3, 6]}}]"
    with on_ray(config, "--restarts", 4, pauses) as driver:
        cluster.wait_for((tmp_path / "at_3").exists, driver)
        os.kill(json.loads((run / "run.lock").read_text())["process"], signal.SIGKILL)
        (tmp_path / "on_3").touch()
        cluster.wait_for((tmp_path / "at_6").exists, driver)
        (node,) = nodes.worker_nodes
        nodes.remove_node(node, allow_graceful=False)
        (tmp_path / "on_6").touch()
        nodes.add_node(num_cpus=1)
        code, output = cluster.wait_for_end(driver)
    assert code == 0, output
    assert cluster.lines(run) == cluster.approximately(expected_lines)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("nodes", [2], indirect=True)
def test_a_lost_server_is_started_again_at_another_address(cluster, nodes, on_ray, tmp_path):
    """The run goes on meanwhile; the new server gets the weights, and requests."""
    config, run, logs = tmp_path / "run.yaml", tmp_path / "run", tmp_path / "logs"
    logs.mkdir()
    config.write_text(yaml.safe_dump(language(tmp_path)))
    serve = f"{sys.executable} {STAND_IN} {{model}} {logs}"
    servers = ("--workers", 1, "--servers", 2, "--gpus-per-server", 0, "--serve", serve)
    pauses = f"callbacks=[{{name: 'pauses:Pauses', folder: {tmp_path}, steps: [2, 5]}}]"
    with on_ray(config, *servers, pauses) as driver:
        cluster.wait_for((tmp_path / "at_2").exists, driver)
        before = (tmp_path / "run.servers").read_text().splitlines()
        lost = before[0].rpartition(":")[2]
        os.kill(int((logs / lost).read_text().split()[0]), signal.SIGKILL)
        (tmp_path / "on_2").touch()
        cluster.wait_for((tmp_path / "at_5").exists, driver)
        cluster.wait_for(lambda: new_address(tmp_path, before) is not None, driver)
        (tmp_path / "on_5").touch()
        code, output = cluster.wait_for_end(driver)
    assert code == 0, output
    assert [line["step"] for line in cluster.lines(run)] == [*range(1, 9)]
    assert "The other servers do its work until it is back" in output
    assert f"{new_address(tmp_path, before)} has joined" in output
    assert f"{before[0]} has left" in output
    asked = (logs / new_address(tmp_path, before).rpartition(":")[2]).read_text().split()
    assert {"/collective_rpc", "/inference/v1/generate"} <= {*asked}


def language(folder):
    """Three letters a prompt by a tiny model, which servers sample."""
    return {
        "policy": {
            "name": "language_model",
            "model": str(tiny_model.folder()),
            "max_new_tokens": 4,
        },
        "sampler": {"name": "vllm", "folder": str(folder)},
        "prompts": {"name": "rows", "rows": [{"prompt": f"{number}"} for number in range(12)]},
        "rewards": ["token_count"],
        "train": {"steps": 8, "groups_per_step": 2, "group_size": 3},
        "evaluation": {"prompts": 0, "every": 0},
    }


def new_address(folder, before):
    """That of a server which was started later, once it is in the file."""
    now = (folder / "run.servers").read_text().splitlines()
    return next((address for address in now if address not in before), None)
