"""The batch script with replacements of Slurm's commands, and the manifest of the Ray job."""

import os
import signal
import subprocess
from pathlib import Path

import yaml

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
COMMANDS = {
    "scontrol": 'case $1 in show) echo node1; echo node2;; *) echo "scontrol $*" >> log;; esac',
    "srun": 'exec "$@"',
    "torchrun": (
        "trap 'echo saved >> log; kill $!; exit 1' TERM; "
        'echo "$* $TORCH_DISABLE_SHARE_RDZV_TCP_STORE" >> log; touch began; sleep 60 & wait'
    ),
}


def test_a_slurm_job_saves_and_returns_to_the_queue_before_its_time_is_up(cluster, tmp_path):
    for name, text in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "71234", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2"}
    job = subprocess.Popen(
        ["bash", CLUSTER / "train.sbatch", "run.yaml", "train.steps=3"],
        cwd=tmp_path,
        env={**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    cluster.wait_for((tmp_path / "began").exists, job)
    job.send_signal(signal.SIGUSR1)
    job.wait(timeout=60)
    launch_line, *later_lines = (tmp_path / "log").read_text().splitlines()
    assert "--rdzv-endpoint=node1:21234 " in launch_line
    assert launch_line.endswith("-m groupwise train --auto-resume run.yaml train.steps=3 1")
    assert later_lines == ["saved", "scontrol requeue 71234"]


def test_the_manifest_has_the_script_and_options_of_the_example():
    job = yaml.safe_load((CLUSTER / "rayjob.yaml").read_text())
    _, script, config, *options = job["spec"]["entrypoint"].split()
    assert (CLUSTER / Path(script).name).is_file()
    mounts = [
        container["volumeMounts"][0]["mountPath"]
        for group in (
            job["spec"]["rayClusterSpec"]["headGroupSpec"],
            *job["spec"]["rayClusterSpec"]["workerGroupSpecs"],
        )
        for container in group["template"]["spec"]["containers"]
    ]
    assert mounts == ["/shared", "/shared"]
    assert config.startswith("/shared/")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    gpus = group["replicas"] * container["resources"]["limits"]["nvidia.com/gpu"]
    assert options == ["--storage", "/shared/runs", "--workers", str(gpus), "--gpu"]
