"""Train on a Ray cluster: `groupwise train --auto-resume` in every worker.

    python examples/cluster/on_ray.py CONFIG --storage FOLDER [--workers 2] [--gpu] [key=value ...]
    python examples/cluster/on_ray.py CONFIG ... --servers 4 --gpus-per-server 2

starts vLLM's servers, too. docs/cluster.md says where the run is written, which files every node
needs, and what happens when a worker, a server or a node fails. Without RAY_ADDRESS, this machine
becomes a cluster.
"""

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch
import yaml
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchTrainer
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray_servers import SERVE, Servers

import groupwise


def work(settings: dict[str, Any]) -> None:
    """One process of the run; Ray restarts all of them when one fails."""
    if not torch.cuda.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"
    logging.getLogger("httpx").setLevel("WARNING")  # else a line for each request to a server
    groupwise.train(resume="auto", **settings)


def reserve(count: int, each: dict[str, float], what: str, seconds: int) -> PlacementGroup:
    """Request resources, which an autoscaler notices; exit if they do not come."""
    room = placement_group([each] * count)
    if not room.wait(seconds):
        free = {name: ray.available_resources().get(name, 0.0) for name in each}
        sys.exit(
            f"error: {count} {what} need {each} each, and after {seconds} s {free} of the "
            f"cluster is free: add nodes, wait longer by --patience, or lower --{what}"
        )
    return room


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--storage", type=Path, required=True, help="a folder all nodes share")
    parser.add_argument("--workers", type=int, default=2, help="processes of the run")
    parser.add_argument("--gpu", action="store_true", help="one GPU per worker")
    parser.add_argument("--servers", type=int, default=0, help="vLLM servers to start")
    parser.add_argument("--gpus-per-server", type=int, default=1)
    parser.add_argument("--serve", default=SERVE, help="the command of a server, without --port")
    parser.add_argument("--restarts", type=int, default=3, help="most restarts after failures")
    parser.add_argument("--patience", type=int, default=900, help="seconds to wait for a start")
    options, overrides = parser.parse_known_args()
    storage, name = options.storage.absolute(), options.config.stem
    pairs = [text.partition("=") for text in overrides]
    settings = {key: yaml.safe_load(value) for key, _, value in pairs}
    settings |= {"config": str(options.config.absolute()), "output": str(storage / name)}

    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(options.patience)
    ray.init()
    if options.servers:
        storage.mkdir(parents=True, exist_ok=True)
        gpus, file = options.gpus_per_server, storage / f"{name}.servers"
        model = yaml.safe_load(options.config.read_text())["policy"]["model"]
        command = options.serve.format(model=settings.get("policy.model", model), gpus=gpus)
        each = {"CPU": 1.0} | ({"GPU": float(gpus)} if gpus else {})
        room = reserve(options.servers, each, "servers", options.patience)
        Servers(room, command, gpus, file).start(options.patience)
        settings |= {"sampler.servers": str(file), "sampler.patience": options.patience}
    each = {"CPU": 1.0} | ({"GPU": 1.0} if options.gpu else {})
    remove_placement_group(reserve(options.workers, each, "workers", options.patience))
    failures = FailureConfig(
        max_failures=options.restarts, controller_failure_limit=options.restarts
    )
    trainer = TorchTrainer(
        work,
        train_loop_config=settings,
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=options.gpu),
        # The run writes its own checkpoints; Ray's records are beside them.
        run_config=RunConfig(name=name, storage_path=str(storage / "ray"), failure_config=failures),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
