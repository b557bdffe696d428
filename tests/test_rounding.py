"""Rounding is bounded by what is computed: see `rounding.py`."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

TESTS = Path(__file__).parent
COMPARISONS = ("assert_close", "allclose", "assert_allclose", "approx")
SMALL = (1e-9, 1e-2)
"""Tolerances between these may be measurements of rounding: smaller ones compare float64 far above
its unit, and larger ones statistics."""
STATED = {
    "formulas of few operations, and numbers as they are logged, read back or published": {
        "algorithms/test_gdpo.py": 1,
        "algorithms/test_lead.py": 1,
        "algorithms/test_reinforce_pp.py": 2,
        "algorithms/test_trust_regions.py": 1,
        "clip/test_rewards.py": 1,
        "clip/test_two_phases.py": 1,
        "core/test_adamw.py": 1,
        "core/test_beta.py": 1,
        "core/test_credit.py": 2,
        "core/test_critic.py": 1,
        "core/test_extremes.py": 1,
        "core/test_invariance.py": 1,
        "core/test_learners.py": 4,
        "core/test_logged_columns.py": 3,
        "core/test_metrics.py": 2,
        "core/test_moving_reference.py": 2,
        "core/test_objective.py": 4,
        "core/test_other_weights.py": 1,
        "core/test_process_rewards.py": 1,
        "core/test_ratio.py": 3,
        "core/test_replay.py": 1,
        "core/test_run.py": 1,
        "core/test_sampler_section.py": 1,
        "core/test_samplers.py": 4,
        "core/test_teacher.py": 2,
        "core/test_trainer.py": 2,
        "core/test_training_samples.py": 1,
        "core/test_watch.py": 1,
        "flow/test_algorithm.py": 1,
        "flow/test_noise_prediction.py": 1,
        "flow/test_path_methods.py": 2,
        "flow/test_recipes.py": 1,
        "flow/test_run.py": 3,
        "flow/test_schedulers.py": 3,
        "flow/test_sde.py": 2,
        "judge/test_generative.py": 1,
        "judge/test_visual_questions.py": 1,
        "llm/test_trl_losses.py": 3,
        "llm/vllm/test_canary.py": 2,
        "llm/vllm/test_sampler.py": 1,
        "report/test_report.py": 2,
        "six_rollouts.py": 1,
        "trackers/test_trackers.py": 2,
        "verifiable/test_images.py": 1,
        "verifiable/test_per_step.py": 3,
        "verifiable/test_watches.py": 1,
    },
    "metrics of runs on a cluster, whose trial would be a run without one": {
        "cluster/conftest.py": 1,
    },
    "kernels of a GPU, and models made of several published parts": {
        "clip/test_published.py": 3,
        "clip/test_videos.py": 3,
        "flow/test_gpu.py": 2,
        "flow/test_update.py": 1,
        "judge/test_gpu.py": 1,
        "test_on_gpu.py": 1,
    },
}
"""Why files have tolerances as numbers, and how many."""


@pytest.fixture
def passes() -> Any:
    """A network's gradient, with its weights' columns in any order."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(64, 64, generator=generator, requires_grad=True) for _ in range(3)]
    x = torch.randn(8, 64, generator=generator)

    def gradient(order: Any = slice(None), factor: float = 1.0) -> torch.Tensor:
        y = x
        for weight in weights:
            y = torch.tanh(y[:, order] @ weight[order] / 8)
        return factor * torch.cat(torch.autograd.grad(y.square().sum(), weights))

    return gradient


def test_sums_in_another_order_are_the_same_and_a_gradient_wrong_by_a_tenth_is_not(
    passes: Any, rounding: Any
) -> None:
    rounding.same(passes, *(passes(torch.randperm(64)) for _ in range(5)))
    for factor in (0.9, 1.1, 1.001):
        with pytest.raises(AssertionError, match="times what rounding explains"):
            rounding.same(passes, passes(factor=factor))


def test_the_bound_follows_the_condition_and_the_type(rounding: Any) -> None:
    """A difference of large numbers is rounded as they are."""
    x = torch.rand(100, generator=torch.Generator().manual_seed(0))
    (one,) = rounding.bounds(x.sum)
    (apart,) = rounding.bounds(lambda: x.sum() - 49.0)
    assert apart == pytest.approx(one, rel=0.5)
    (half,) = rounding.bounds(lambda: x.bfloat16().sum())
    assert half > 1000 * one


def test_masked_scores_have_the_bound_of_the_others(rounding: Any) -> None:
    x = torch.rand(100, generator=torch.Generator().manual_seed(0))
    masked = torch.cat([x, torch.full((9,), -torch.inf)])
    (one,) = rounding.bounds(lambda: 1000 * (x.log_softmax(0) + 4.6))
    (other,) = rounding.bounds(lambda: 1000 * (masked.log_softmax(0)[:100] + 4.6))
    assert other == pytest.approx(one, rel=0.5)


def test_a_bound_that_would_allow_an_error_of_a_tenth_is_refused(rounding: Any) -> None:
    x = 1000 * torch.rand(1000, generator=torch.Generator().manual_seed(0))
    cancelling = torch.cat([x, -x])
    with pytest.raises(AssertionError, match=r"rounding explains .* of "):
        rounding.bounds(cancelling.sum)
    (allowed,) = rounding.bounds(cancelling.sum, unit=1000.0)
    assert 0 < allowed < 1


def tolerances(code: ast.AST) -> Iterator[float]:
    """The numbers by which a module's comparisons allow a difference."""
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in COMPARISONS:
            own = [k.value for k in node.keywords if k.arg in ("rtol", "atol", "rel", "abs")]
            values = [number(value) for value in own]
            yield max((value for value in values if value is not None), default=0.0)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.LtE):
            yield number(node.comparators[0]) or 0.0


def number(node: ast.expr) -> float | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, float) else None


def test_no_comparison_has_a_tolerance_as_a_number_but_those_that_are_stated() -> None:
    """What passes of a model are compared by is computed: a new number needs a reason above."""
    counts: Counter[str] = Counter()
    for path in TESTS.rglob("*.py"):
        name = path.relative_to(TESTS).as_posix()
        if not name.startswith(("benchmarks/", "device/")):
            code = ast.parse(path.read_text(encoding="utf-8"))
            counts[name] += sum(SMALL[0] < value < SMALL[1] for value in tolerances(code))
    assert +counts == Counter(dict(pair for own in STATED.values() for pair in own.items()))
