"""TRL's options of vLLM, and of what is logged."""

from typing import Any

from groupwise_commands.porting.port import Port


def write_sampler(port: Port) -> None:
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
