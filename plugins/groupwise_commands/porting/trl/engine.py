"""TRL's options of vLLM, and of what is logged."""

from typing import Any

from groupwise_commands.porting.option import Group, absent, changed, settled
from groupwise_commands.porting.port import Port


def _sampler(port: Port) -> None:
    if not port.get("use_vllm"):
        return
    port.write("sampler.name", "vllm")
    if port.get("vllm_mode") == "server":
        url = port.get("vllm_server_base_url")
        host = port.get("vllm_server_host")
        # 0.0.0.0 is where a server listens, not where it is.
        host = "127.0.0.1" if host == "0.0.0.0" else host
        address = url or f"http://{host}:{port.get('vllm_server_port')}"
        port.write("sampler.servers", [address])
        port.todo.append(
            "sampler.servers: start the server by vLLM's own `vllm serve` with the options of "
            "docs/engines.md, not by `trl vllm-serve`"
        )
    else:
        port.write("sampler.start.options", _started(port))
        port.write("sampler.sleep", True, "colocated: the server shares the GPU with training")
    _importance(port)


def _started(port: Port) -> dict[str, Any]:
    names = {
        "gpu_memory_utilization": "vllm_gpu_memory_utilization",
        "max_model_len": "vllm_max_model_length",
        "tensor_parallel_size": "vllm_tensor_parallel_size",
    }
    values = {ours: port.get(theirs) for ours, theirs in names.items()}
    if port.get("vllm_model_impl") != "vllm":
        values["model_impl"] = port.get("vllm_model_impl")
    if values["tensor_parallel_size"] == 1:
        del values["tensor_parallel_size"]
    return {name: value for name, value in values.items() if value is not None}


def _importance(port: Port) -> None:
    """The correction for vLLM's log-probs, where our default is another one."""
    if port.written.get("algorithm.name") == "vespo":
        return  # its own weight contains the correction
    if not port.get("vllm_importance_sampling_correction"):
        port.write("algorithm.importance", "none")
        return
    mode, cap = port.get("vllm_importance_sampling_mode"), _cap(port)
    level, _, bound = mode.partition("_")
    if level not in ("token", "sequence") or bound not in ("mask", "truncate"):
        port.lose_value("vllm_importance_sampling_mode", "no such mode")
        return
    port.write("algorithm.importance", level, "as theirs; token, truncate and 2 are ours")
    port.write("algorithm.importance_mode", bound)
    if cap is None:
        port.write("algorithm.importance_cap", 1e9, "no upper bound there")
    else:
        port.write("algorithm.importance_cap", cap)
    if (floor := port.get("vllm_importance_sampling_clip_min")) is not None:
        port.write("algorithm.importance_floor", floor)


def _cap(port: Port) -> float | None:
    old: float | None = port.get("vllm_importance_sampling_cap")
    most: float | None = port.get("vllm_importance_sampling_clip_max")
    return most if old is None else old


ENGINE = Group(
    title="vLLM, and what is logged",
    options=(
        changed(
            "use_vllm",
            "`sampler: {name: vllm, ...}`",
            _sampler,
            False,
            "[servers](engines.md) that you start, or that the run starts",
        ),
        settled(
            "vllm_mode",
            here="`sampler.start` with `sleep: true`, or `sampler.servers`",
            note="`colocate`, or `server`",
            default="colocate",
        ),
        settled("vllm_server_base_url", here="`sampler.servers`"),
        settled("vllm_server_host", here="`sampler.servers`", default="0.0.0.0"),
        settled("vllm_server_port", here="`sampler.servers`", default=8000),
        settled(
            "vllm_server_timeout",
            here="`sampler.patience`",
            note="not written: theirs waits for the start, ours repeats failed requests",
            default=240.0,
        ),
        settled("vllm_group_port", note="ports are chosen by the run", default=51216),
        settled(
            "vllm_gpu_memory_utilization",
            here="`sampler.start.options`",
            default=0.3,
        ),
        settled("vllm_max_model_length", here="`sampler.start.options`, as `max_model_len`"),
        settled("vllm_tensor_parallel_size", here="`sampler.start.options`", default=1),
        settled("vllm_model_impl", here="`sampler.start.options`", default="vllm"),
        settled(
            "vllm_enable_sleep_mode",
            here="`sampler.sleep`",
            note="always on where the GPU is shared",
            default=False,
        ),
        absent("vllm_structured_outputs_regex", note="no structured outputs"),
        settled(
            "vllm_importance_sampling_correction",
            here="`algorithm.importance`",
            note="`none` if off",
            default=True,
        ),
        settled(
            "vllm_importance_sampling_mode",
            here="`algorithm.importance`, `importance_mode`",
            note="`sequence_mask` there, `token` and `truncate` here unless set",
            default="sequence_mask",
        ),
        settled(
            "vllm_importance_sampling_clip_max",
            here="`algorithm.importance_cap`",
            note="3 there, 2 here unless set",
            default=3.0,
        ),
        settled("vllm_importance_sampling_clip_min", here="`algorithm.importance_floor`"),
        settled(
            "vllm_importance_sampling_cap",
            here="`algorithm.importance_cap`",
            note="the older name of `..._clip_max`",
        ),
        settled(
            "log_completions",
            "log_multimodal",
            "num_completions_to_print",
            "log_unique_prompts",
            here="`samples/`, the page, `tracking`",
            note="completions of evaluations are always kept",
        ),
        absent("log_completions_hub_repo", note="nothing is sent to the hub"),
    ),
)
