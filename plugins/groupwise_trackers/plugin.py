"""Registers the trackers; each needs the extra of its name."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_trackers(register: Register) -> None:
    register("wandb", "groupwise_trackers.wandb:Wandb", extra="wandb")
    register("tensorboard", "groupwise_trackers.tensorboard:TensorBoard", extra="tensorboard")
    register("trackio", "groupwise_trackers.trackio:Trackio", extra="trackio")
    register("mlflow", "groupwise_trackers.mlflow:MLflow", extra="mlflow")
    register("swanlab", "groupwise_trackers.swanlab:SwanLab", extra="swanlab")
