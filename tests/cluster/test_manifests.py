"""The batch script with replacements of Slurm's commands, and the manifest of the Ray job."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
COMMANDS = {
    "scontrol": 'case $1 in show) printf "%s\n" $HOSTS;; *) echo "scontrol $*" >> log;; esac',
    "srun": 'for last; do case $last in --*) echo "$last" >> tasks; shift;; *) break;; esac; done; '
    'exec "$@"',
    "torchrun": (
        "trap 'echo saved >> log; kill $!; exit 1' TERM; "
        'echo "$* $TORCH_DISABLE_SHARE_RDZV_TCP_STORE" >> log; touch began; sleep 60 & wait'
    ),
    "serve": "echo $$ >> served; exec python -m http.server --bind 127.0.0.1 $2",
}


@pytest.fixture
def batch(cluster, tmp_path):
    """batch(hosts, **variables) starts the script for these nodes, and waits for the run."""
    jobs = []

    def start(hosts, **variables):
        for name, text in COMMANDS.items():
            (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
            (tmp_path / name).chmod(0o755)
        slurm = {"SLURM_JOB_ID": "71234", "SLURM_JOB_NODELIST": "node[1-2]", "HOSTS": hosts}
        jobs.append(
            subprocess.Popen(
                ["bash", CLUSTER / "train.sbatch", "run.yaml", "train.steps=3"],
                cwd=tmp_path,
                env={
                    **os.environ,
                    **slurm,
                    **variables,
                    "PATH": f"{tmp_path}:{os.environ['PATH']}",
                },
                start_new_session=True,
            )
        )
        cluster.wait_for((tmp_path / "began").exists, jobs[-1])
        return jobs[-1]

    yield start
    for job in jobs:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def test_a_slurm_job_saves_and_returns_to_the_queue_before_its_time_is_up(batch, tmp_path):
    job = batch("node1 node2")
    job.send_signal(signal.SIGUSR1)
    job.wait(timeout=60)
    launch_line, *later_lines = (tmp_path / "log").read_text().splitlines()
    assert "--nnodes=2 " in launch_line
    assert "--rdzv-endpoint=node1:21234 " in launch_line
    assert launch_line.endswith("-m groupwise train --auto-resume run.yaml train.steps=3 1")
    assert later_lines == ["saved", "scontrol requeue 71234"]


@pytest.mark.slow
def test_a_slurm_job_has_servers_on_its_first_nodes_and_starts_them_again(batch, cluster, tmp_path):
    job = batch("127.0.0.1 node2 node3", SERVERS="1", SERVE="serve")
    tasks = (tmp_path / "tasks").read_text().split()
    assert tasks == [
        *("--nodes=1", "--ntasks=1", "--nodelist=127.0.0.1"),
        *("--nodes=2", "--ntasks=2", "--nodelist=node2,node3"),
    ]
    file = tmp_path / "71234.servers"
    assert file.read_text() == "http://127.0.0.1:21234\n"
    (launch_line,) = (tmp_path / "log").read_text().splitlines()
    assert "--nnodes=2 " in launch_line
    assert "--rdzv-endpoint=node2:21234 " in launch_line
    assert f"train.steps=3 sampler.servers={file} sampler.patience=900" in launch_line

    served = tmp_path / "served"
    os.kill(int(served.read_text()), signal.SIGKILL)
    cluster.wait_for(lambda: len(served.read_text().split()) == 2, job)
    job.send_signal(signal.SIGUSR1)
    job.wait(timeout=60)
    assert (tmp_path / "log").read_text().splitlines()[1:] == ["saved", "scontrol requeue 71234"]


def test_the_manifest_has_the_script_and_options_of_the_example():
    job = yaml.safe_load((CLUSTER / "rayjob.yaml").read_text())
    _, script, config, gpu, *options = job["spec"]["entrypoint"].split()
    assert (CLUSTER / Path(script).name).is_file()
    mounts = [
        [mount["mountPath"] for mount in container["volumeMounts"]]
        for group in (
            job["spec"]["rayClusterSpec"]["headGroupSpec"],
            *job["spec"]["rayClusterSpec"]["workerGroupSpecs"],
        )
        for container in group["template"]["spec"]["containers"]
    ]
    assert mounts == [["/shared", "/dev/shm"]] * 2
    assert config.startswith("/shared/")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    gpus = group["replicas"] * container["resources"]["limits"]["nvidia.com/gpu"]
    assert gpu == "--gpu"
    names, values = options[::2], options[1::2]
    given = dict(zip(names, values, strict=True))
    assert given.pop("--storage") == "/shared/runs"
    workers, servers, each = (
        int(given[own]) for own in ("--workers", "--servers", "--gpus-per-server")
    )
    assert workers + servers * each == gpus
