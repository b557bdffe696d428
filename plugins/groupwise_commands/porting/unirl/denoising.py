"""UniRL's `sampling`: denoising, or the sampling of tokens."""

from typing import Any

from groupwise_commands.porting.option import Group, Put, absent, changed, same, settled
from groupwise_commands.porting.port import Port
from groupwise_commands.porting.unirl.model import is_text
from groupwise_commands.porting.window import write_all, write_random, write_sliding

SDES = {"FlowSDEStrategy": "flow", "CPSSDEStrategy": "cps", "DanceSDEStrategy": "dance"}
STEPS = "sampling.num_inference_steps"
SCHEDULER = "sampling.scheduler"


def _images(key: str, name: str) -> Put:
    """Written for image models alone."""

    def put(port: Port) -> None:
        if not is_text(port) and port.get(name) is not None:
            port.write(key, port.get(name))

    return put


def _steps(port: Port) -> None:
    if is_text(port):
        return
    port.write("policy.steps", port.get(STEPS))
    evaluated = port.get("eval_sampling.num_inference_steps")
    why = "" if evaluated else "evaluated with as many steps as trained, unless eval_sampling says"
    port.write("policy.evaluation_steps", evaluated or port.get(STEPS), why)
    sde = SDES.get(str(port.get("pipeline.strategy._target_")).rpartition(".")[2])
    if sde is None:
        port.lose_value("pipeline.strategy._target_", "flow, cps or dance; flow is written")
    port.write("policy.sde", sde or "flow")
    port.write("policy.noise_level", port.get("sampling.eta"))


def _guidance(port: Port) -> None:
    if is_text(port):
        return
    training = port.get("sampling.guidance_scale")
    evaluated = port.get("eval_sampling.guidance_scale")
    port.write("policy.guidance", training if evaluated is None else evaluated)
    if evaluated not in (None, training):
        port.write("policy.training_guidance", training)


def _window(port: Port) -> None:
    if is_text(port):
        return
    steps = port.get(STEPS)
    kind = str(port.get(f"{SCHEDULER}._target_")).rpartition(".")[2]
    if kind == "WindowScheduler":
        _windows(port, steps)
    elif port.get("sampling.sde_indices") is not None:
        _indices(port, port.get("sampling.sde_indices"))
    else:
        _subset(port, steps)


def _windows(port: Port, steps: int) -> None:
    config = {name: port.get(f"{SCHEDULER}.config.{name}") for name in _CONFIG}
    size = config["window_size"]
    if config["strategy"] == "progressive":
        write_sliding(
            port,
            size=size,
            stride=max(1, size - config["overlap_size"]),
            every=config["iters_per_window"],
            start=config["init_timestep"],
        )
    elif config["strategy"] == "random":
        write_random(port, steps, size, 0, steps)
    else:
        write_all(port, steps, steps)


def _indices(port: Port, indices: list[int]) -> None:
    first, count = min(indices), len(indices)
    if sorted(indices) != list(range(first, first + count)):
        port.lose(f"sampling.sde_indices: {indices}", "a window of consecutive steps is written")
    port.write("policy.window", {"kind": "fixed", "size": count, "start": first})


def _subset(port: Port, steps: int) -> None:
    """`AllSDEScheduler`: all steps of a part of the schedule, or a random subset of them."""
    part: Any = port.get(f"{SCHEDULER}.timestep_fraction")
    low, high = part if isinstance(part, list) else (0.0, part)
    first, end, count = int(steps * low), int(steps * high), port.get(f"{SCHEDULER}.num_sde_steps")
    if count == 0:
        port.lose("sampling.scheduler.num_sde_steps: 0", "no stochastic steps: an algorithm as NFT")
    elif count is None or count >= end - first:
        if first:
            port.write("policy.window", {"kind": "fixed", "size": end - first, "start": first})
        else:
            write_all(port, steps, end)
    else:
        write_random(port, steps, count, first, end)
        port.lose(
            f"sampling.scheduler.num_sde_steps: {count}",
            f"a random subset of the steps there, equal for a whole rollout; here {count} "
            f"consecutive ones, drawn for each group",
        )


def _text(port: Port) -> None:
    """Options of sampling tokens; theirs have other defaults."""
    if not is_text(port):
        return
    names = {"temperature": 0.7, "top_p": 0.9, "top_k": 0, "max_new_tokens": 512}
    for name, default in names.items():
        value = port.settings.stated.get(f"sampling.{name}", default)
        if value != {"temperature": 1.0, "top_p": 1.0, "top_k": 0}.get(name):
            port.write(f"policy.{name}", value)


_CONFIG = {
    "strategy": "all",
    "window_size": 4,
    "iters_per_window": 25,
    "init_timestep": 0,
    "overlap_size": 0,
}

SAMPLING = Group(
    title="Sampling",
    options=(
        same("sampling.samples_per_prompt", "train.group_size", 1, always=True),
        changed(STEPS, "`policy.steps`, `policy.evaluation_steps`", _steps, 50, always=True),
        settled("pipeline.strategy._target_", here="`policy.sde`", note="flow, cps or dance"),
        settled("sampling.eta", here="`policy.noise_level`", default=1.0),
        changed("sampling.guidance_scale", "`policy.guidance`", _guidance, 7.5, always=True),
        settled("eval_sampling.guidance_scale", here="`policy.guidance`"),
        settled("eval_sampling.num_inference_steps", here="`policy.evaluation_steps`"),
        settled("eval_sampling.*", "eval_eta", here="none", note="the ODE at evaluation"),
        changed(
            "sampling.height", "`policy.height`", _images("policy.height", "sampling.height"), 256
        ),
        changed("sampling.width", "`policy.width`", _images("policy.width", "sampling.width"), 256),
        changed(
            "sampling.init_same_noise",
            "`policy.shared_noise`",
            _images("policy.shared_noise", "sampling.init_same_noise"),
            False,
        ),
        changed(
            "sampling.scheduler._target_",
            "`policy.window`",
            _window,
            None,
            "`WindowScheduler` with `progressive` is `sliding`; a random subset of steps becomes a "
            "random window",
            always=True,
        ),
        settled("sampling.scheduler.timestep_fraction", here="`policy.window`", default=1.0),
        settled("sampling.scheduler.num_sde_steps", here="`policy.window`"),
        settled("sampling.sde_indices", here="`policy.window`"),
        *(
            settled(f"sampling.scheduler.config.{name}", here="`policy.window`", default=default)
            for name, default in _CONFIG.items()
        ),
        settled("sampling.scheduler.*", here="`policy.window`"),
        changed(
            "sampling._target_",
            "`policy`",
            _text,
            None,
            "of a language model `temperature`, `top_p`, `top_k`, `max_new_tokens`; 0.7 and 0.9 "
            "there unless set, 1 here",
            always=True,
        ),
        absent("sampling.num_frames", note="no videos", default=1),
        same("sampling.seed", "seed", 42),
        settled("sampling.*", here="`policy`"),
    ),
)
