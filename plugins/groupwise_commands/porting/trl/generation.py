"""TRL's options of the model, the data and sampling."""

from typing import Any

from groupwise_commands.porting.port import Port

LOADED = "weights that are trained are held in float32 here; this is for frozen weights alone"


def write_loading(port: Port) -> None:
    options = dict(port.get("model_init_kwargs") or {})
    kind = options.pop("dtype", options.pop("torch_dtype", None))
    if kind not in (None, "float32", "auto"):
        if port.get("use_peft"):
            options["dtype"] = kind
        else:
            port.lose(f"model_init_kwargs: dtype {kind}", LOADED)
    if "attn_implementation" in options:
        _attention(port, options.pop("attn_implementation"))
    for name, value in options.items():
        port.write(f"policy.loading.{name}", value)


def _attention(port: Port, value: Any) -> None:
    port.lose(f"attn_implementation: {value}", "the policy chooses its attention itself")


def write_generation(port: Port) -> None:
    options = dict(port.get("generation_kwargs") or {})
    if (stop := options.pop("stop", options.pop("stop_strings", None))) is not None:
        port.write("policy.stop", [stop] if isinstance(stop, str) else stop)
    same = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}
    for name, value in options.items():
        if name in same:
            port.write(f"policy.{name}", value)
        else:
            port.lose(f"generation_kwargs: {name}: {value}", "no such option of sampling")


def write_turns(port: Port) -> None:
    most = port.get("max_tool_calling_iterations")
    if most is None:
        return
    if port.get("tools") or port.get("environment_factory"):
        why = f"{most} turns with calls there, and the one that answers"
        port.write("environment.turns", most + 1, why)
    else:
        port.lose(f"max_tool_calling_iterations: {most}", "the file names no tools")
