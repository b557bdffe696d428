"""Sampling by graphs on the simulated device, compared with sampling without; and the stand-in for
graphs itself."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from llm_job import LORA, llm, make, place_quickly, save_model
from runs import plain
from simulated import Device
from torch import Tensor

from groupwise.weights import kept_parameters
from groupwise_llm.decoding import graphs
from groupwise_llm.decoding.stepping import Fixed
from groupwise_llm.policy import LanguageModel

ROWS = [{"prompt": text} for text in ("a longer prompt: 12+34=", "Hi", "7-5")]
TOKENS = 40
Drawn = tuple[list[Any], list[float]]
"""Tokens and endings of each row; all log-probs."""


def completions(policy: LanguageModel, purpose: str = "train") -> Drawn:
    count = 1 if purpose == "greedy" else 4
    seeds = range(len(ROWS) * count)
    rollouts = policy.sample(ROWS, group_size=count, seeds=seeds, purpose=purpose)
    ends = rollouts.truncated.tolist()
    facts = rollouts.facts["completion_ids"], ends, rollouts.facts["sampled_mass"]
    log_probs = rollouts.sampler_log_probs[rollouts.mask].tolist()
    tokens, mass = [*zip(*facts[:2], strict=True)], facts[2]
    return [[list(own), end] for own, end in tokens], [*log_probs, *mass]


def with_settings(policy: LanguageModel, purpose: str = "train", **settings: Any) -> Drawn:
    with patch.object(policy, "config", policy.config.model_copy(update=settings)):
        return completions(policy, purpose)


def turns(policy: LanguageModel) -> Drawn:
    """Two turns with a limit for each row, the second by the cache of the first."""
    drawn, log_probs = [], []
    with policy.session():
        contexts = policy.encode(ROWS * 2)
        for limits in ([8, 12, 9, 7, 10, 11], [11, 7, 10, 9, 12, 8]):
            answers = policy.draw(contexts, seeds=range(6), limits=limits)
            drawn += [[list(own.ids), own.ended] for own in answers]
            log_probs += [value for own in answers for value in own.log_probs]
            contexts = [own.with_turn(turn) for own, turn in zip(contexts, answers, strict=True)]
            contexts = [policy.extend(own, "+" * n) for n, own in enumerate(contexts, 1)]
    return drawn, log_probs


def growing(policy: LanguageModel) -> Drawn:
    with patch.object(Fixed, "LEAST", 3):
        return completions(policy)


def changed(policy: LanguageModel) -> Drawn:
    """After a change of the weights in place, as by an optimizer."""
    with torch.no_grad():
        for weight in kept_parameters(policy).values():
            weight.mul_(1.1)
    drawn = completions(policy)
    with torch.no_grad():
        for weight in kept_parameters(policy).values():
            weight.div_(1.1)
    return drawn


FILTERS = {"top_k": 200, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3}
Scenarios = Mapping[str, Callable[[LanguageModel], Drawn]]
SCENARIOS: Scenarios = {
    "groups": completions,
    "greedy": partial(completions, purpose="greedy"),
    "filters": partial(with_settings, temperature=0.7, **FILTERS),
    "evaluation": partial(with_settings, purpose="evaluate", top_p=0.8),
    "stop strings": partial(with_settings, stop=["e", "ab", "never"]),
    "several batches": partial(with_settings, cache_tokens=400),
    "turns": turns,
    "room that grows": growing,
    "changed weights": changed,
}
FEW: Scenarios = {name: SCENARIOS[name] for name in ("groups", "changed weights")}


def compared(
    device: Device, policy: LanguageModel, scenarios: Scenarios, expected: Sequence[Drawn]
) -> dict[str, Any]:
    """For each scenario whether the rows are those expected, the largest difference of log-probs,
    and how many graphs were captured and replayed."""
    result = {}
    for (name, run), (rows, log_probs) in zip(scenarios.items(), expected, strict=True):
        drawn: list[Drawn] = []
        cost = device.during(lambda: drawn.append(run(policy)))  # noqa: B023
        same = drawn[0][0] == rows
        pairs = zip(drawn[0][1], log_probs, strict=same)
        gap = max(abs(own - other) for own, other in pairs)
        result[name] = {"same": same, "gap": gap, "captures": cost.captures}
    return result


def law(model: Path) -> dict[str, Any]:
    """float32 is compared with the CPU; bf16, which rounds differently in a longer room, with the
    same tokens without a capture."""
    policies = {
        "full": make(model, max_new_tokens=TOKENS),
        "lora": make(model, max_new_tokens=TOKENS, lora=LORA["lora"]),
        "bf16": make(model, max_new_tokens=16, precision="bf16"),
    }
    with torch.no_grad():
        for name, weight in kept_parameters(policies["lora"]).items():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(3), std=0.3)
    cases = {"full": SCENARIOS, "lora": FEW, "bf16": FEW}
    with plain():
        expected = {
            name: [run(policy) for run in cases[name].values()] for name, policy in policies.items()
        }
        result = {}
        with Device() as device:
            for name, policy in policies.items():
                place_quickly(policy)
                if name == "bf16":
                    with patch.object(graphs.Graph, "run", lambda _, token, left: token()):
                        expected[name] = [run(policy) for run in cases[name].values()]
                result[name] = compared(device, policy, cases[name], expected[name])
    return result


# ---- which models' tokens are captured


def trials(model: Path, folder: Path) -> dict[str, list[str]]:
    """How models are decoded, and their notes; one makes the host wait, one has sliding windows."""
    torch.manual_seed(7)
    config = llm.CONFIGS["gemma2"]()
    llm.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    llm.make_tokenizer().save_pretrained(folder)
    policies = {
        "plain": make(model, top_p=0.9, precision="bf16", compile=False),
        "off": make(model, cuda_graphs=False),
        "waits": make(model),
        "window": make(folder),
    }

    def reading(_: Any, __: Any, states: Tensor) -> None:
        states.sum().item()

    policies["waits"].model.get_input_embeddings().register_forward_hook(reading)
    found = {}
    with Device(), plain():
        for name, policy in policies.items():
            ability = policy.ability
            with patch("groupwise_llm.probing.probes.ability", lambda *_, own=ability, **__: own):
                policy.place("cuda")
            found[name] = [str(policy.ability.decoding), *policy.notes]
    return found


# ---- the stand-in for graphs


def facts() -> dict[str, Any]:
    with Device() as device:
        x, step, lent = torch.zeros(3, device="cuda"), 1, [torch.ones(3, device="cuda")]

        def token() -> None:
            x.add_(step * lent[0].sum() / 3)

        def captured(call: Callable[[], Any]) -> Any:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            return graph

        def refused(call: Callable[[], Any]) -> bool:
            try:
                call()
            except RuntimeError:
                return True
            return False

        graph = captured(token)
        after_capture = x.tolist()
        step = 7
        lent[0].mul_(2)
        counts = device.during(lambda: [graph.replay(), graph.replay()])
        after_replays = x.tolist()
        lent.clear()
        waits = {
            "item": x[0].item,
            "condition": lambda: bool((x > 1).any()),
            "nonzero": (x > 1).nonzero,
            "mask as an index": lambda: x[x > 1],
            "to the CPU": x.cpu,
            "upload": lambda: x + torch.ones(3).to("cuda"),
        }
        return {
            "after capture": after_capture,
            "after replays": after_replays,
            "launches": counts.launches,
            "released": refused(graph.replay),
            "waits": {name: refused(partial(captured, call)) for name, call in waits.items()},
            "not refused": refused(partial(captured, lambda: x.add_(1))),
        }


def main(folder: Path) -> None:
    model = folder / "model"
    save_model(model)
    result = {"law": law(model), "trials": trials(model, folder / "windowed"), "facts": facts()}
    (folder / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
