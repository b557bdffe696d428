"""Two processes, of which one has pictures and the other none, compute what one process does."""

import json
from pathlib import Path

import pytest
import torch
from tests.core.launching import launch
from tests.llm.vision import processes_job as job
from tests.llm.vision import standins

from groupwise_llm.vision_language_model import VisionLanguageModel, VisionSettings

pytestmark = pytest.mark.slow

MODEL = {"model": str(standins.folder("qwen2_5_vl")), "max_new_tokens": 4}
CASES = {
    "DDP": ({**MODEL, "vision": "trained"}, False),
    "sharded": ({**MODEL, "vision": "trained"}, True),
    "sharded, frozen": (MODEL, True),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder with the results of both processes."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "cases.json").write_text(json.dumps(CASES))
    code = Path(job.__file__).read_text()
    launch(code, folder, 2, imports=["groupwise_llm.vision_language_model"])
    return folder


@pytest.mark.parametrize("name", CASES)
def test_they_sample_and_learn_as_one_process(finished, name, rounding):
    parts = [torch.load(finished / f"{name}-{rank}.pt") for rank in range(2)]
    policy = VisionLanguageModel(VisionSettings(**CASES[name][0]))
    policy.place("cpu")
    options = {"group_size": job.GROUP, "seeds": range(2 * job.GROUP)}
    rollouts = policy.sample(job.ROWS, **options)
    assert [own for part in parts for own in part["tokens"]] == rollouts.facts["completion_ids"]
    trained = job.trained(policy)
    assert parts[0]["gradient"].keys() == trained.keys()

    def gradient():
        policy.zero_grad()
        for _ in range(2):
            policy(rollouts).log_probs.sum().backward()
        return torch.cat([p.grad.flatten() for p in trained.values()])

    ours = [parts[1]["gradient"][weight].flatten() for weight in trained]
    rounding.same(gradient, torch.cat(ours))
    gradient()
    job.step(policy)
    again = policy.sample(job.ROWS, **options)
    after = policy(rollouts).log_probs.detach()
    allowed = rounding.bounds(lambda: policy(rollouts).log_probs)
    for rank, part in enumerate(parts):
        rows = slice(job.GROUP * rank, job.GROUP * (rank + 1))
        width = part["after"].shape[1]
        assert rounding.excess(part["after"], after[rows, :width], allowed) <= 1
        tokens, log_probs = part["sampled"]
        assert tokens == again.facts["completion_ids"][rows]
        expected = again.sampler_log_probs[rows, : log_probs.shape[1]]
        assert rounding.excess(log_probs, expected, allowed) <= 1
