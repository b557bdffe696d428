"""The recipe for Qwen3 with a tool: a step of it, with a small model behind a stand-in for vLLM."""

import json
from pathlib import Path

import pytest
import torch
from trl.chat_template_utils import qwen3_instruct_2507_chat_template

from groupwise.config.load import load_config
from groupwise.run.train import train_from_config

RECIPES = Path(__file__).parents[3] / "examples" / "recipes"
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"formula": "6 * 7"}}\n</tool_call>'
SMALL = (
    "policy.precision=float32",
    "prompts.subset=null",
    "prompts.held_out=0.5",
    "sampler.start=null",
    "train.steps=1",
    "train.groups_per_step=2",
    "train.group_size=2",
    "train.max_refills=0",
    "evaluation.prompts=2",
    "evaluation.every=0",
)


def scripted(engine):
    """Let completions with an even seed call the calculator and repeat what it answers, and others
    guess; with the model's own log-probs."""
    model, tokenizer = engine.choice, engine.tokenizer

    def choice(prompt, inputs, sampling, number):
        if "seed" not in sampling:  # it scores the prompt after new weights
            return model(prompt, inputs, sampling, number)
        asked = "<tool_response>\n42" in tokenizer.decode(prompt)
        text = "It is 42." if asked else "It is 41." if sampling["seed"] % 2 else CALL
        ids = tokenizer(f"{text}<|end|>")["input_ids"]
        if len(ids) > sampling["max_tokens"]:  # a request that tries the server
            return model(prompt, inputs, sampling, number)
        own = model(prompt, inputs, {**sampling, "max_tokens": 1}, number)
        logits = engine.model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        log_probs = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
        scores = [
            {"token_id": token, "logprob": log_prob}
            for token, log_prob in zip(ids, log_probs, strict=True)
        ]
        return own | {
            "token_ids": ids,
            "finish_reason": "stop",
            "logprobs": own["logprobs"] and {"content": scores},
            "weight_versions": [each | {"end": len(ids)} for each in own["weight_versions"]],
        }

    engine.choice = choice


@pytest.mark.slow
def test_a_step_of_qwen3_with_a_calculator(saved, engine, tmp_path, rounding):
    shape = {"template": qwen3_instruct_2507_chat_template, "max_position_embeddings": 2560}
    server = engine("qwen3", model=shape, max_tokens=2560, lora_rank=32)
    scripted(server)
    rows = [{"question": f"{n}: how much is 6 * 7?", "answer": "It is\n#### 42"} for n in range(9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    overrides = [
        *SMALL,
        f"policy.model={saved('qwen3', **shape)}",
        f"sampler.servers=[{server.url}]",
        f"sampler.folder={tmp_path}",
        f"prompts.path={tmp_path / 'rows.jsonl'}",
        f"output={tmp_path / 'run'}",
    ]
    result = train_from_config(load_config(RECIPES / "qwen3_tools.yaml", overrides), quiet=True)
    assert result.steps == 1
    assert result.before["accuracy"] == result.before["environment/calls"]
    logged = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    step = next(each for line in logged if "environment/calls" in (each := json.loads(line)))
    assert 0 < step["accuracy"] == step["environment/calls"] < 1
    assert step["mismatch/max"] <= rounding.ratio_bound(result.policy, {"prompt": "6 * 7"})


@pytest.mark.parametrize(
    ("formula", "value"),
    [("6 * 7", "42"), ("(12 + 3) * 4 / 5", "12"), ("-0.1 + 0.2 ", "0.1"), ("1 / 3", "0.333333")],
)
def test_formulas_have_values(monkeypatch, formula, value):
    monkeypatch.syspath_prepend(str(RECIPES))
    from formulas import calculate

    assert calculate(formula) == value


@pytest.mark.parametrize("text", ["", "a + 1", "2 ** 9", "f(1)", "1 if 1 else 2", "1j", "9" * 201])
def test_what_is_no_formula_is_refused_and_never_run(monkeypatch, text):
    monkeypatch.syspath_prepend(str(RECIPES))
    from formulas import calculate

    with pytest.raises((ValueError, SyntaxError)):
        calculate(text)
