"""flow_grpo's options of the model and of denoising."""

from groupwise_commands.porting.flow_grpo.nft import is_nft, write_policy
from groupwise_commands.porting.option import Group, absent, changed, same, settled
from groupwise_commands.porting.pictures import FLUX, QWEN
from groupwise_commands.porting.port import Port
from groupwise_commands.porting.window import write_all, write_random

SDES = {"sde": "flow", "cps": "cps"}


def _model(port: Port) -> None:
    port.write("policy.name", "flow")
    name = port.get("pretrained.model")
    port.write("policy.model", name)
    if any(word in name for word in ("Wan", "Kontext", "Edit")):
        port.lose(f"pretrained.model: {name}", "no videos and no editing here")
        port.todo.append(f"policy.model: {name} cannot be trained here; name an image model")
    if "Qwen" in name:
        port.write(
            "policy.prompt_tokens", 512, "their pipeline's default, which their script keeps"
        )
        port.write("policy.negative_prompt", " ", "of their script")
    else:
        port.write("policy.prompt_tokens", 128, "max_sequence_length of their scripts, which cut")
    port.write("policy.long_prompts", "cut")


def _revision(port: Port) -> None:
    if port.get("pretrained.revision") not in ("", "main"):
        port.write("policy.loading.revision", port.get("pretrained.revision"))


def _lora(port: Port) -> None:
    if not port.get("use_lora"):
        return
    name = port.get("pretrained.model")
    wide = FLUX if "FLUX" in name else QWEN if "Qwen" in name else None
    port.write("policy.lora.rank", 64 if wide else 32, "of their training script, as what follows")
    port.write("policy.lora.alpha", 128 if wide else 64)
    if wide:
        port.write("policy.lora.targets", wide)


def _precision(port: Port) -> None:
    names = {"no": "float32", "fp16": "fp16", "bf16": "bf16"}
    value = port.get("mixed_precision")
    if value not in names:
        port.lose_value("mixed_precision", "fp16, bf16 or no")
    port.write("policy.precision", names.get(value, "float32"))


def _size(port: Port) -> None:
    port.write("policy.height", port.get("resolution"))
    port.write("policy.width", port.get("resolution"))


def _guidance(port: Port) -> None:
    """`train.cfg` off means no guidance in training, whatever the scale."""
    flux = "FLUX" in port.get("pretrained.model")
    training = port.get("sample.guidance_scale") if port.get("train.cfg") or flux else 1.0
    evaluated = port.get("sample.eval_guidance_scale")
    if not port.states("sample.eval_guidance_scale") and port.states("sample.guidance_scale"):
        # Their older scripts evaluate at the scale of training.
        evaluated = port.get("sample.guidance_scale")
    port.write("policy.guidance", evaluated)
    if training != evaluated:
        port.write("policy.training_guidance", training)


def _noise(port: Port) -> None:
    if not (is_nft(port) and port.get("sample.deterministic")):
        port.write("policy.noise_level", port.get("sample.noise_level"))


def _sde(port: Port) -> None:
    if is_nft(port):
        write_policy(port)
        return
    sde = SDES.get(port.get("sample.sde_type"))
    if sde is None:
        port.lose_value("sample.sde_type", "sde or cps; sde is written")
    port.write("policy.sde", sde or "flow")


def _window(port: Port) -> None:
    """A window of the fast scripts, which the configuration states; else by the fraction."""
    if is_nft(port):
        return
    steps = port.get("sample.num_steps")
    size = port.get("sample.sde_window_size")
    fast = port.states("sample.sde_window_size") and size
    if port.states("sample.train_num_steps") and not fast:  # an older name
        size, fast = port.get("sample.train_num_steps"), True
    if fast:
        default = (0, steps // 2)
        stated = port.states("sample.sde_window_range")
        first, end = port.get("sample.sde_window_range") if stated else default
        write_random(port, steps, size, first, end)
        return
    write_all(port, steps, int(steps * port.get("train.timestep_fraction")))
    if port.ours("policy.window") == {"kind": "all"}:
        why = "as in their scripts, which do not train on it either"
        port.write("policy.last_step", "noise", why)


MODEL = Group(
    title="Model and denoising",
    options=(
        changed(
            "pretrained.model",
            "`policy.model`",
            _model,
            "runwayml/stable-diffusion-v1-5",
            "their scripts cut prompts at 128 tokens: `policy.prompt_tokens: 128`, "
            "`long_prompts: cut`; prompts are measured before a run, and a longer one is an error "
            'by default. For Qwen-Image at 512, with `negative_prompt: " "`',
            always=True,
        ),
        changed("pretrained.revision", "`policy.loading.revision`", _revision, "main"),
        changed(
            "use_lora",
            "`policy.lora`",
            _lora,
            True,
            "rank and modules are in their scripts: 32, alpha 64 on the attention for SD3; 64, "
            "alpha 128 with the MLPs for FLUX and Qwen-Image",
            always=True,
        ),
        changed(
            "mixed_precision",
            "`policy.precision`",
            _precision,
            "fp16",
            "`bf16` for FLUX, as there; the autoencoder stays in float32 in both",
            always=True,
        ),
        changed("resolution", "`policy.height`, `policy.width`", _size, 768, always=True),
        absent("height", "width", "frames", note="of videos, which are not here"),
        same("activation_checkpointing", "policy.gradient_checkpointing", False),
        absent("fsdp_optimizer_offload", note="`train.shard` divides it instead", default=False),
        same("sample.num_steps", "policy.steps", 40, always=True),
        same("sample.eval_num_steps", "policy.evaluation_steps", 40, always=True),
        changed(
            "sample.guidance_scale",
            "`policy.training_guidance`",
            _guidance,
            4.5,
            "`noise_pred_uncond.detach()`, in their code of July 2025, is "
            "`policy.guidance_gradient: conditional`; later code has no `detach`, nor has the "
            "log-prob: `both`, the default",
            always=True,
        ),
        settled("sample.eval_guidance_scale", here="`policy.guidance`", default=4.5),
        settled(
            "train.cfg",
            here="`policy.training_guidance: 1`",
            note="where it is off",
            default=True,
        ),
        changed("sample.noise_level", "`policy.noise_level`", _noise, 0.7),
        changed(
            "sample.sde_type",
            "`policy.sde`",
            _sde,
            "sde",
            "their `sde` is `flow` here; their log-prob of `cps` lacks 1 / (2 std^2)",
            always=True,
        ),
        changed(
            "sample.sde_window_size",
            "`policy.window`",
            _window,
            2,
            "`{kind: random, size: 3, until: 0.3}` for 3 and (0, 5) of 10: `until` bounds the "
            "first step, theirs the last; a window is a group's here, and a batch's there. In both "
            "a rollout's window is equally likely to start anywhere, so but for clipping and the "
            "division by the std the gradient is the same on average; how much noisier one of them "
            "is depends on how far a model's rewards differ from window to window, and was not "
            "measured",
            always=True,
        ),
        settled("sample.sde_window_range", here="`policy.window`", default=(0, 10)),
        settled("sample.train_num_steps", here="`policy.window`", note="an older name"),
        settled(
            "train.timestep_fraction",
            here="`policy.window: {kind: all}`",
            note="the last step is never trained on; its noise in `train_sd3.py` and "
            "`train_flux.py` (std 0.006 for SD3.5 at 10 steps and 0.29 for FLUX at 6, where "
            "latents have about 1) is `policy.last_step: noise`. A smaller fraction trains the "
            "first steps alone, here `{kind: fixed, size: n}`, whose later steps have no noise; a "
            "random subset of noisy steps, as in DanceGRPO, is not here: where nothing is clipped, "
            "`{kind: all}` has the gradient that subsets of a share f have on average, with 1/f as "
            "many passes in updates (1.67 times for 0.6)",
            default=1.0,
        ),
        same("sample.same_latent", "policy.shared_noise", False),
        absent("train.timestep_shift", note="of BAGEL, which is not here", default=3.0),
    ),
)
