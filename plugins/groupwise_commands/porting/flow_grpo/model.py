"""flow_grpo's options of the model and of denoising."""

from groupwise_commands.porting.flow_grpo.nft import is_nft, write_policy
from groupwise_commands.porting.flow_grpo.window import write_all, write_random
from groupwise_commands.porting.option import data
from groupwise_commands.porting.port import Port

SDES = {"sde": "flow", "cps": "cps"}


def write_model(port: Port) -> None:
    port.write("policy.name", "flow")
    name = port.get("pretrained.model")
    port.write("policy.model", name)
    if any(word in name for word in ("Kontext", "Edit")):
        port.lose(f"pretrained.model: {name}", "no editing here")
        port.todo.append(f"policy.model: {name} cannot be trained here; name an image model")
    if "Wan" in name:
        port.todo.append("rewards: name each that looks at pictures as the `reward` of per_frame")
    if "Qwen" in name:
        port.write(
            "policy.prompt_tokens", 512, "their pipeline's default, which their script keeps"
        )
        port.write("policy.negative_prompt", " ", "of their script")
    else:
        port.write("policy.prompt_tokens", 128, "max_sequence_length of their scripts, which cut")
    port.write("policy.long_prompts", "cut")


def write_lora(port: Port) -> None:
    if not port.get("use_lora"):
        return
    name = port.get("pretrained.model")
    adapted = data(__package__, "counterparts")["adapted"]
    wide = next((modules for part, modules in adapted.items() if part in name), None)
    port.write("policy.lora.rank", 64 if wide else 32, "of their training script, as what follows")
    port.write("policy.lora.alpha", 128 if wide else 64)
    if wide:
        port.write("policy.lora.targets", wide)


def write_size(port: Port) -> None:
    if port.states("frames"):
        for name in ("height", "width", "frames"):
            port.write(f"policy.{name}", port.get(name))
        return
    port.write("policy.height", port.get("resolution"))
    port.write("policy.width", port.get("resolution"))


def write_guidance(port: Port) -> None:
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


def write_noise(port: Port) -> None:
    if not (is_nft(port) and port.get("sample.deterministic")):
        port.write("policy.noise_level", port.get("sample.noise_level"))


def write_sde(port: Port) -> None:
    if is_nft(port):
        write_policy(port)
        return
    sde = SDES.get(port.get("sample.sde_type"))
    if sde is None:
        port.lose_value("sample.sde_type", "sde or cps; sde is written")
    port.write("policy.sde", sde or "flow")


def write_window(port: Port) -> None:
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
