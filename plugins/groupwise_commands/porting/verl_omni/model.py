"""verl-omni's options of the model and of denoising."""

from groupwise_commands.porting.option import Group, absent, changed, same, settled
from groupwise_commands.porting.port import Port
from groupwise_commands.porting.window import write_all, write_random, write_sliding

MODEL_KEY = "actor_rollout_ref.model"
ROLLOUT_KEY = "actor_rollout_ref.rollout"
EVALUATED = f"{ROLLOUT_KEY}.val_kwargs.pipeline"


def _model(port: Port) -> None:
    port.write("policy.name", "flow")
    port.write("policy.model", port.get(f"{MODEL_KEY}.path"))
    port.write("policy.precision", "bf16", "their forward passes are in bfloat16, too")


def _lora(port: Port) -> None:
    rank, alpha = port.get(f"{MODEL_KEY}.lora_rank"), port.get(f"{MODEL_KEY}.lora_alpha")
    if not rank:
        return
    port.write("policy.lora.rank", rank)
    port.write("policy.lora.alpha", alpha)
    targets = port.get(f"{MODEL_KEY}.target_modules")
    if targets == "all-linear":
        why = "the attention projections; theirs is all-linear: name modules for more"
        port.lose("actor_rollout_ref.model.target_modules: all-linear", why)
    else:
        port.write("policy.lora.targets", targets)


def _checkpointing(port: Port) -> None:
    if port.get(f"{MODEL_KEY}.enable_gradient_checkpointing"):
        port.write("policy.gradient_checkpointing", True, "on there unless set")


def _guidance(port: Port) -> None:
    """`true_cfg_scale` is classifier-free guidance; `guidance_scale` an input of the model."""
    pipeline = f"{ROLLOUT_KEY}.pipeline"
    training = port.get(f"{pipeline}.guidance_scale")
    if training is None:
        training = port.get(f"{pipeline}.true_cfg_scale")
    evaluated = port.get(f"{EVALUATED}.guidance_scale")
    if evaluated is None:
        evaluated = port.get(f"{EVALUATED}.true_cfg_scale")
    port.write("policy.guidance", training if evaluated is None else evaluated)
    if evaluated not in (None, training):
        port.write("policy.training_guidance", training)


def _sde(port: Port) -> None:
    kind = port.get(f"{ROLLOUT_KEY}.algo.sde_type")
    if kind not in ("sde", "cps"):
        port.lose(f"{ROLLOUT_KEY}.algo.sde_type: {kind}", "sde or cps; sde is written")
    port.write("policy.sde", "cps" if kind == "cps" else "flow")


def _window(port: Port) -> None:
    steps = port.get(f"{ROLLOUT_KEY}.pipeline.num_inference_steps")
    algo = f"{ROLLOUT_KEY}.algo"
    size, within = port.get(f"{algo}.sde_window_size"), port.get(f"{algo}.sde_window_range")
    if not size:
        write_all(port, steps, steps)
    elif port.get(f"{algo}.sample_strategy") == "progressive":
        write_sliding(port, size=size, stride=size, every=port.get(f"{algo}.iters_per_group"))
    else:
        first, end = within or (0, steps)
        write_random(port, steps, size, first, end)


MODEL = Group(
    title="Model",
    options=(
        changed(
            f"{MODEL_KEY}.path",
            "`policy.model`",
            _model,
            "Qwen/Qwen-Image",
            always=True,
        ),
        changed(f"{MODEL_KEY}.lora_rank", "`policy.lora.rank`", _lora, 0, "0 is full training"),
        settled(f"{MODEL_KEY}.lora_alpha", here="`policy.lora.alpha`", default=64),
        settled(
            f"{MODEL_KEY}.target_modules",
            here="`policy.lora.targets`",
            note="all-linear there unless set, the attention projections here",
            default="all-linear",
        ),
        changed(
            f"{MODEL_KEY}.enable_gradient_checkpointing",
            "`policy.gradient_checkpointing`",
            _checkpointing,
            True,
            "on there, off here",
            always=True,
        ),
        settled(
            f"{MODEL_KEY}.*",
            here="`policy`",
            note="attention, tokenizers and loading are the pipeline's own",
        ),
    ),
)
ROLLOUT = Group(
    title="Denoising",
    options=(
        same(f"{ROLLOUT_KEY}.n", "train.group_size", 1, always=True),
        *(
            same(f"{ROLLOUT_KEY}.pipeline.{theirs}", f"policy.{ours}", default, always=True)
            for theirs, ours, default in (
                ("height", "height", 512),
                ("width", "width", 512),
                ("num_inference_steps", "steps", 10),
                ("max_sequence_length", "prompt_tokens", 512),
            )
        ),
        same(f"{EVALUATED}.num_inference_steps", "policy.evaluation_steps", 50, always=True),
        changed(
            f"{ROLLOUT_KEY}.pipeline.true_cfg_scale",
            "`policy.guidance`, `policy.training_guidance`",
            _guidance,
            1.0,
            "or `guidance_scale`, where it is an input of the model",
            always=True,
        ),
        settled(f"{ROLLOUT_KEY}.pipeline.guidance_scale", here="`policy.guidance`"),
        settled(
            f"{EVALUATED}.guidance_scale", f"{EVALUATED}.true_cfg_scale", here="`policy.guidance`"
        ),
        absent(f"{ROLLOUT_KEY}.pipeline.num_frames", note="no videos", default=1),
        same(f"{ROLLOUT_KEY}.algo.noise_level", "policy.noise_level", 1.0, always=True),
        changed(
            f"{ROLLOUT_KEY}.algo.sde_type",
            "`policy.sde`",
            _sde,
            "sde",
            "their `sde` is `flow` here; their log-prob of `cps` lacks 1 / (2 std^2)",
            always=True,
        ),
        changed(
            f"{ROLLOUT_KEY}.algo.sde_window_size",
            "`policy.window`",
            _window,
            None,
            "`until` bounds the first step of a random window, theirs the last; `progressive` is "
            "`sliding`",
            kind=(int,),
            always=True,
        ),
        settled(f"{ROLLOUT_KEY}.algo.sde_window_range", here="`policy.window`"),
        settled(
            f"{ROLLOUT_KEY}.algo.sample_strategy", here="`policy.window.kind`", default="random"
        ),
        settled(f"{ROLLOUT_KEY}.algo.iters_per_group", here="`policy.window.every`", default=1),
        settled(
            f"{ROLLOUT_KEY}.*",
            here="`policy`",
            note="sampled in process, with the weights of training; evaluations have no noise",
        ),
    ),
)
