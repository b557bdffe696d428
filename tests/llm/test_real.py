"""A real model: SmolLM2-135M-Instruct, downloaded by `examples/get_smollm.py`.

The model is kept in a folder of the system's temporary files, so that it is downloaded once.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[2] / "examples" / "get_smollm.py"
CACHE = Path(tempfile.gettempdir()) / "groupwise-tests" / "smollm"
ROWS = [
    {"prompt": [{"role": "user", "content": text}]}
    for text in ("What is 2 + 2?", "Name the capital of France in one word.")
]


@pytest.fixture(scope="module")
def folder():
    spec = importlib.util.spec_from_file_location("get_smollm", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    try:
        return script.fetch(CACHE)
    except script.FetchError as error:
        pytest.skip(str(error).splitlines()[0])


@pytest.fixture(scope="module")
def policy(folder):
    torch.manual_seed(0)
    settings = {"loading": {"gguf_file": "model.gguf"}, "lora": {"rank": 8}, "max_new_tokens": 16}
    policy = LanguageModel(Settings(model=str(folder), **settings))
    policy.place("cpu")
    return policy


@pytest.fixture(scope="module")
def rollouts(policy):
    return policy.sample(ROWS, group_size=3, seeds=range(6))


def test_it_shares_prompts_and_uses_the_plain_head(policy):
    assert policy.notes == []
    assert policy.ability.numerics.plain_head
    assert policy.ability.shared_training


def test_chat_template_and_end_tokens(policy, rollouts):
    text = policy.tokenizer.decode(rollouts.trajectory["prompt_ids"][0])
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n")
    assert policy.tokenizer.convert_tokens_to_ids("<|im_end|>") in policy.ends


def test_shared_prompts_give_the_log_probs_of_transformers_and_of_the_sampler(
    policy, rollouts, transformers_log_probs, rounding
):
    with torch.no_grad():
        theirs = transformers_log_probs(policy, rollouts)
        rounding.same(lambda: policy(rollouts).log_probs, theirs, rollouts.sampler_log_probs)


def test_greedy_is_generate(policy):
    rollouts = policy.sample(ROWS, group_size=1, seeds=[0, 1], purpose="greedy")
    for prompt, tokens in zip(
        rollouts.trajectory["prompt_ids"], rollouts.facts["completion_ids"], strict=True
    ):
        ids = prompt.unsqueeze(0)
        output = policy.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16,
            eos_token_id=policy.ends, pad_token_id=policy.ends[0],
        )  # fmt: skip
        assert tokens == output[0, len(prompt) :].tolist()


def test_an_update_raises_the_rewarded_log_prob_and_peft_loads_the_result(
    policy, rollouts, folder, tmp_path, rounding
):
    rewarded = rollouts.select([0])
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4)
    before = policy(rewarded).log_probs.sum()
    (-before).backward()
    optimizer.step()
    with torch.no_grad():
        after = policy(rewarded).log_probs.sum()
    assert after > before.detach()

    # The code of the card loads it, from any folder.
    policy.save_pretrained(tmp_path / "adapter")
    ids = rollouts.trajectory["prompt_ids"][0].unsqueeze(0)
    code = policy.card["usage"].replace("{path}", str(tmp_path / "adapter"))
    code += f"""
import json, torch
with torch.no_grad():
    print(json.dumps(model(input_ids=torch.tensor({ids.tolist()})).logits[0, -1].tolist()))
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not process.returncode, process.stderr
    loaded = torch.tensor(json.loads(process.stdout.splitlines()[-1]))
    with torch.no_grad():
        rounding.same(lambda: policy.model(input_ids=ids).logits[0, -1], loaded)
