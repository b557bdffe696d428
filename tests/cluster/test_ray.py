"""A run on a Ray cluster continues automatically after a worker or a node is lost."""

import json
import os
import signal

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes(cluster):
    """A cluster of two nodes with one core each; workers have their nodes' environment."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**cluster.environment, "RAY_USAGE_STATS_ENABLED": "0"}.items():
            patch.setenv(name, value)
        head = {"num_cpus": 1, "include_dashboard": False}
        nodes = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        nodes.add_node(num_cpus=1)
        yield nodes
        nodes.shutdown()


@pytest.fixture
def on_ray(cluster, nodes, config, tmp_path):
    """on_ray(*arguments) starts the example."""

    def start(*arguments):
        script = cluster.root / "examples" / "cluster" / "on_ray.py"
        command = (script, config, "--storage", tmp_path, *arguments)
        environment = {"RAY_ADDRESS": nodes.address, "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"}
        return cluster.start_python(*command, **environment)

    return start


@pytest.mark.timeout(1200)  # Ray starts its processes four times
def test_a_lost_worker_and_a_lost_node_change_no_metric(
    cluster, nodes, on_ray, expected_lines, tmp_path
):
    run = tmp_path / "run"
    with on_ray("--workers", 3, "--patience", 1) as driver:
        code, output = cluster.wait_for_end(driver)
    *_, error = output.splitlines()
    assert (code, run.exists()) == (1, False)
    assert error.startswith(
        "error: 3 workers need {'CPU': 1.0} each, and after 1 s {'CPU': 2.0} of"
    )

    pauses = f"callbacks=[{{name: 'pauses:Pauses', folder: {tmp_path}, steps: [3, 6]}}]"
    with on_ray("--restarts", 4, pauses) as driver:
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
