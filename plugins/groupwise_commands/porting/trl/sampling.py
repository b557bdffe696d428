"""TRL's options of the model, the data and sampling."""

from typing import Any

from groupwise_commands.porting.option import Group, absent, changed, same, settled
from groupwise_commands.porting.port import Port
from groupwise_commands.porting.trl.batch import write_groups

LOADED = "weights that are trained are held in float32 here; this is for frozen weights alone"


def _loading(port: Port) -> None:
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


def _trust(port: Port) -> None:
    if port.get("trust_remote_code"):
        port.write("policy.loading.trust_remote_code", value=True)


def _head(port: Port) -> None:
    if port.get("cast_lm_head_to_fp32"):
        port.write("policy.head_precision", "float32")


def _generation(port: Port) -> None:
    options = dict(port.get("generation_kwargs") or {})
    if (stop := options.pop("stop", options.pop("stop_strings", None))) is not None:
        port.write("policy.stop", [stop] if isinstance(stop, str) else stop)
    same = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}
    for name, value in options.items():
        if name in same:
            port.write(f"policy.{name}", value)
        else:
            port.lose(f"generation_kwargs: {name}: {value}", "no such option of sampling")


def _evaluated(port: Port) -> None:
    if port.get("num_generations_eval"):
        port.write("evaluation.samples", port.get("num_generations_eval"))


def _turns(port: Port) -> None:
    most = port.get("max_tool_calling_iterations")
    if most is None:
        return
    if port.get("tools") or port.get("environment_factory"):
        why = f"{most} turns with calls there, and the one that answers"
        port.write("environment.turns", most + 1, why)
    else:
        port.lose(f"max_tool_calling_iterations: {most}", "the file names no tools")


SAMPLING = (
    Group(
        title="Model and data",
        options=(
            changed(
                "model_init_kwargs",
                "`policy.loading`",
                _loading,
                note="`dtype` here only for frozen weights; trained ones are held in float32",
                kind=(dict,),
            ),
            changed("trust_remote_code", "`policy.loading.trust_remote_code`", _trust, False),
            absent(
                "router_aux_loss_coef",
                note="no load-balancing loss for mixtures of experts",
            ),
            settled(
                "disable_dropout",
                note="dropout is never applied: ratios would not be 1",
                default=False,
            ),
            changed("cast_lm_head_to_fp32", "`policy.head_precision: float32`", _head, False),
            settled("remove_unused_columns", note="rewards get every column", default=False),
            same("shuffle_dataset", "prompts.shuffle", True),
            settled(
                "pad_to_multiple_of",
                "ds3_gather_for_generation",
                note="texts are packed without padding, weights gathered as needed",
            ),
        ),
    ),
    Group(
        title="Batch and sampling",
        options=(
            same("num_generations", "train.group_size", 8, always=True),
            changed(
                "generation_batch_size",
                "`train.groups_per_step` x `train.group_size`",
                write_groups,
                kind=(int,),
                note="counts here are totals over all processes",
                always=True,
            ),
            settled(
                "steps_per_generation",
                here="`train.updates_per_rollout`",
                note="theirs / `gradient_accumulation_steps`",
            ),
            same(
                "max_completion_length", "policy.max_new_tokens", 512, "of all turns of an episode"
            ),
            same(
                "max_prompt_length",
                "policy.max_prompt_tokens",
                None,
                "of earlier versions; longer prompts are an error here, unless "
                "`policy.long_prompts: cut`",
            ),
            same("temperature", "policy.temperature", 1.0),
            same("top_p", "policy.top_p", 1.0),
            same("top_k", "policy.top_k", 0),
            same("min_p", "policy.min_p", None),
            same("repetition_penalty", "policy.repetition_penalty", 1.0),
            changed(
                "generation_kwargs",
                "keys of `policy`",
                _generation,
                kind=(dict,),
                note="those that `policy` has: `stop`, `top_k` and others",
            ),
            same("chat_template_kwargs", "policy.chat_template", None),
            changed(
                "num_generations_eval",
                "`evaluation.samples`",
                _evaluated,
                kind=(int,),
                note="1 here unless set, and a greedy one",
            ),
            settled(
                "cache_implementation",
                "use_transformers_continuous_batching",
                "transformers_continuous_batching_config",
                "use_transformers_paged",
                here="`policy.cache_tokens`",
                note="the policy has a cache and continuous batching of its own",
            ),
            changed(
                "max_tool_calling_iterations",
                "`environment.turns`",
                _turns,
                kind=(int,),
                note="turns with calls there; here all turns, so one more; no limit there, 8 here",
            ),
        ),
    ),
)
