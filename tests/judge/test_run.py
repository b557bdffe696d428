"""Judges in runs: away for some steps, back after a resume, and refused by `groupwise check`."""

import json
import sys

import pytest
import torch
import yaml
from tests.command_line import call
from tests.judge.stand_in import Reply, text_of

import groupwise
from groupwise.kit.errors import UserError

QUESTIONS = [{"prompt": f"question {n}"} for n in range(40)]
ASPECTS = [{"name": "good", "description": "how good it is"}]


class Coin(groupwise.Policy):
    """Says yes or no."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        rows = [row for row in prompts for _ in range(group_size)]
        draws = [torch.rand((), generator=torch.Generator().manual_seed(s)) for s in seeds]
        yes = (torch.stack(draws) < self.bias.sigmoid()).long()
        return groupwise.Rollouts(
            prompts=rows,
            completions=["yes" if each else "no" for each in yes.tolist()],
            mask=torch.ones(len(rows), 1, dtype=torch.bool),
            trajectory={"yes": yes},
            groups=torch.arange(len(prompts)).repeat_interleave(group_size),
            truncated=torch.zeros(len(rows), dtype=torch.bool),
        )

    def forward(self, rollouts, decisions=slice(None)):
        sign = 2 * rollouts.tensor("yes") - 1
        log_probs = torch.nn.functional.logsigmoid(sign * self.bias).unsqueeze(1)
        return groupwise.LogProbs(log_probs=log_probs[:, decisions])


def test_a_judge_that_stays_away_ends_the_run_which_goes_on_when_it_is_back(serve, tmp_path):
    is_away = False

    def judges(request):
        if is_away:
            return Reply("out of memory", 503)
        return json.dumps({"good": 5 if "\nyes\n" in text_of(request) else 1})

    def leaves_after(step):
        class Leaves(groupwise.Callback):
            def on_step(self, done, metrics):
                nonlocal is_away
                is_away = done >= step

        return Leaves()

    server = serve(judges)
    reward = {"name": "judge", "server": server.address, "model": "m", "aspects": ASPECTS}
    reward |= {"retries": 0, "reasoning": False, "cache": str(tmp_path / "answers.sqlite")}
    settings = {
        "prompts": {"name": "rows", "rows": QUESTIONS, "held_out": 0.3},
        "rewards": [reward],
        "train": {"steps": 8, "groups_per_step": 2, "group_size": 4, "learning_rate": 0.1},
        "evaluation": {"prompts": 2},
        "output": tmp_path / "run",
        "quiet": True,
    }
    with pytest.raises(UserError) as caught:
        groupwise.train(policy=Coin(), callbacks=[leaves_after(2)], **settings)
    assert str(caught.value).startswith(
        "step 5: 8 of 8 completions failed, and more than 0.5 of them did"
    )
    assert (
        f"got no answer from the judge at {server.address}, which failed with status 503: out of "
        f"memory, at the prompt"
    ) in str(caught.value)
    is_away = False
    result = groupwise.train(policy=Coin(), **settings, resume=True)
    assert result.steps == 8
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    steps = {row["step"]: row for row in rows if "failed" in row}
    assert [steps[n]["failed"] for n in range(1, 9)] == [0, 0, 8, 8, 8, 0, 0, 0]
    assert steps[3]["judge/unreadable_unanswered"] == 1
    assert steps[8]["judge/unreadable_unanswered"] == 0
    answered = [json.dumps(r["messages"]) for r in server.requests]
    assert len(answered) - len(set(answered)) <= 3 * 8  # of the steps in which it was away


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api_key": "${NO_SUCH_KEY}"}, "there is no environment variable NO_SUCH_KEY"),
        ({"server": "https://api.example.com/v1"}, "needs a key: set `api_key"),
        ({"aspects": None, "rubric": "missing.md"}, "the rubric 'missing.md' cannot be read"),
    ],
)
def test_check_refuses_a_judge_that_cannot_work(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    judge = {"name": "judge", "server": "http://localhost:8000/v1", "model": "m"}
    config = {
        "policy": "tests.judge.test_run:Coin",
        "prompts": {"name": "rows", "rows": QUESTIONS},
        "rewards": [{**judge, "aspects": ASPECTS, **options}],
        "train": {"steps": 1, "groups_per_step": 2, "group_size": 4},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    result = call("check", "run.yaml")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
