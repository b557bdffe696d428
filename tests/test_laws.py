"""Every part that this distribution registers is held to the laws of `groupwise.testing`."""

import ast
from itertools import chain
from pathlib import Path

from groupwise import testing
from groupwise.registry import installed

TESTS = Path(__file__).parent
CHECKS = {
    "policies": testing.check_policy,
    "samplers": testing.check_sampler,
    "adapters": testing.check_adapter,
    "rewards": testing.check_reward,
    "environments": testing.check_environment,
    "algorithms": testing.check_algorithm,
}
"""By kind; what is registered of other kinds has no laws."""
BY_FIXTURES = ("policies", "samplers")
"""Kinds whose parts are built by fixtures of their tests' folder."""
HELD_BY = {
    "core/test_laws.py::test_grpo": ("grpo",),
    "algorithms/test_laws.py::test_algorithms": (
        *("dr_grpo", "dapo", "gspo", "gdpo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
        *("rloo", "reinforce_pp", "reinforce_pp_baseline", "guard", "lead"),
        *("dppo", "gmpo", "maxrl", "opo", "pass_at_k", "rae"),
    ),
    "core/test_laws.py::test_environments": ("single", "pool", "chain"),
    "agents/test_environment.py::test_laws": ("tools",),
    "agents/test_repository.py::test_laws": ("repository",),
    "agents/test_trl.py::test_it_keeps_the_laws": ("trl",),
    "agents/test_trl.py::test_the_laws_of_its_reward": ("environment_reward",),
    "agents/test_openenv.py::test_it_keeps_the_laws": ("openenv",),
    "agents/test_endpoint.py::test_laws": ("agent",),
    "llm/test_laws.py::test_architectures": ("language_model",),
    "llm/vision/test_laws.py::test_policy": ("vision_language_model",),
    "llm/vllm/test_sampler.py::test_it_passes_check_sampler": ("vllm",),
    "flow/test_laws.py::test_policy": ("flow",),
    "flow/test_forward_process.py::test_laws_of_policies": ("forward_process",),
    "flow/test_laws.py::test_algorithm": (
        *("flow_grpo", "flow_guard", "flow_dppo", "flash_grpo", "tempflow"),
        *("nft", "awm", "elbo_grpo"),
    ),
    "flow/test_laws.py::test_adapter": (
        *("StableDiffusion3Pipeline", "FluxPipeline"),
        *("StableDiffusionPipeline", "StableDiffusionXLPipeline"),
    ),
    "flow/test_models.py::test_it_passes_check_adapter": (
        *("ZImagePipeline", "QwenImagePipeline", "Flux2Pipeline", "Flux2KleinPipeline"),
        *("SanaPipeline", "Lumina2Pipeline", "WanPipeline"),
        *("LTXPipeline", "HunyuanVideo15Pipeline"),
        *("FluxKontextPipeline", "QwenImageEditPlusPipeline"),
    ),
    "verifiable/test_laws.py::test_rewards_of_texts": (
        *("math", "exact_answer", "numeric_answer", "think_answer_format", "think_format"),
        *("tag_count", "length", "cosine_length", "token_count", "soft_overlong", "repetition"),
        "self_correction",
        *("language_consistency", "answer_f1"),
    ),
    "verifiable/test_laws.py::test_rewards_of_images": (
        *("image_contents", "image_text", "jpeg_size", "image_diversity", "unchanged"),
    ),
    "verifiable/test_videos.py::test_laws_of_motion": ("motion", "smoothness"),
    "verifiable/test_videos.py::test_laws_of_frames": ("per_frame",),
    "clip/test_videos.py::test_laws_of_frame_consistency": ("frame_consistency",),
    "clip/test_videos.py::test_laws_of_video_reward": ("video_reward",),
    "verifiable/test_laws.py::test_steps_of_denoising": ("per_step",),
    "verifiable/test_laws.py::test_steps_of_sums": ("sum_steps",),
    "verifiable/test_laws.py::test_puzzles": ("reasoning_gym",),
    "verifiable/test_reward_model.py::test_it_passes_check_reward": ("reward_model",),
    "verifiable/test_learned_text.py::test_laws": ("learned_text",),
    "code/test_code_tests.py::test_laws": ("code_tests",),
    "code/test_repository_tests.py::test_laws": ("repository_tests",),
    "proofs/test_lean.py::test_laws": ("proof",),
    "proofs/test_invariant.py::test_laws": ("invariant",),
    "judge/test_laws.py::test_rewards": ("judge", "judge_ranking", "constitution"),
    "judge/test_generative.py::test_laws": ("generative_judge",),
    "judge/test_visual_questions.py::test_probabilities_are_those_of_transformers_and_the_picture"
    "_comes_first": ("visual_questions",),
    "judge/test_generative_ranking.py::test_laws": ("generative_ranking",),
    "clip/test_published.py::test_laws_of_image_reward": ("image_reward",),
    "clip/test_published.py::test_laws_of_hps_v3": ("hps_v3",),
    "clip/test_laws.py::test_rewards": (
        *("clip_similarity", "aesthetic", "learned_image", "preference"),
    ),
}
"""By test, which shows how they are built: the names of the parts that it checks."""


def test_every_registered_part_is_held_to_the_laws_of_its_kind():
    registry = installed()
    assert registry.failures == {}
    ours = [entry for entry in registry.entries if entry.distribution == "groupwise"]
    parts = [entry for entry in ours if entry.kind in CHECKS]
    # A new part needs a test of its laws, and its name above.
    assert sorted(part.name for part in parts) == sorted(chain(*HELD_BY.values()))
    for part in parts:
        (test,) = (test for test, names in HELD_BY.items() if part.name in names)
        file, _, function = test.partition("::")
        text = (TESTS / file).read_text(encoding="utf-8")
        functions = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
        (code,) = (ast.unparse(node) for node in functions if node.name == function)
        assert f"{CHECKS[part.kind].__name__}(" in code, test
        if part.kind not in BY_FIXTURES:
            names = (f'"{part.name}"', part.target.partition(":")[2])
            assert any(name in text for name in names), f"{test} does not build {part.name}"


SOURCES = [
    path
    for folder in ("core", "plugins", "rewards")
    for path in (TESTS.parent / folder).rglob("*.py")
]
OWN_JSON = {
    "foreign_json.py": "the reader of others' JSON",
    "json_file.py": "rows that were read and written again",
    "tensors.py": "in files of a run",
    "training_samples.py": "in files of a run",
    "samples.py": "in files of a run",
    "metrics.py": "in files of a run",
    "disk.py": "in files of a run",
    "run_data.py": "in files of a run",
    "tracker.py": "in files of a run",
    "stored.py": "in checkpoints of a run",
    "saving.py": "of a configuration in memory",
    "frames.py": "of a sandbox: what the run says to a program, beside what it reads back",
    "server.py": "of a sandbox: what the run asks its server",
    "connection.py": "what the sandbox's server, which runs no program, reports",
    "driver.py": "on a server, beside the program: what the run asks of it",
    "clip_colors.py": "a model's file, read once at the start",
    "rules.py": "in a worker, where each answer may fail by itself",
}
"""By file that reads JSON by `json.loads`, whose JSON it is."""
PRINTS = {
    "terminal.py": "the one place of notes and warnings",
    "exits.py": "as the process ends, without imports",
    "watchdog.py": "as the process ends, without imports",
}


def calls(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_json_of_others_is_read_by_one_reader_and_notes_are_printed_in_one_place():
    """So it is bounded in depth, and what is printed has no control characters and no secrets."""
    by_file = {path: calls(path) for path in SOURCES}
    readers = {p.name for p, names in by_file.items() if names & {"json.loads", "json.load"}}
    assert readers == set(OWN_JSON)
    assert {path.name for path, names in by_file.items() if "print" in names} == set(PRINTS)
