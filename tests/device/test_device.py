"""Training on a simulated accelerator: no operation mixes devices, results are those of the CPU bit
for bit, and the host waits no more often than `BOUNDS` has it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.core.launching import Job

HERE = Path(__file__).parent
IMPORTS = {
    "llm_job": ["groupwise_llm.policy"],
    "graphs_job": ["groupwise_llm.policy"],
    "flow_job": ["groupwise_flow.policy"],
    "vision_job": ["groupwise_llm.vision_language_model"],
}
BOUNDS = {
    # Every 16 tokens the host reads which rows have ended.
    "llm": {"token": 1 / 16, "forward": 6, "micro-batch": 14},
    "flow": {"denoising step": 0, "forward": 7, "micro-batch": 14},
}
"""Waits of the host per token, denoising step and micro-batch, and in one forward pass."""
LAUNCHES = 30
"""Most launches per token with graphs, checks for ended rows among them."""
READS = [
    *("item", "bool", "index of a list", "bound of a slice", "tolist", "to the CPU", "equal"),
    *("nonzero", "unique", "masked_select", "mask as an index", "repeats of the device"),
    "isin many",
]
UPLOADS = ["index of the CPU", "upload", "made of numbers", "new_tensor"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """finished(script) -> the folder of its results; each script runs once, in its own process."""
    folders: dict[str, Path] = {}

    def run(script: str) -> Path:
        if script not in folders:
            folder = tmp_path_factory.mktemp(script)
            Job(
                *(HERE / f"{script}.py", folder),
                terminals=folder / script,
                environment={"CUDA_VISIBLE_DEVICES": ""},
                limit=200,
                imports=IMPORTS.get(script, []),
            ).succeed()
            folders[script] = folder
        return folders[script]

    return run


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a file without timings."""
    timed = ("time/", "reward_time/", "decisions_per_second", "memory/")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(timed)} for line in lines]


def test_reads_and_uploads_are_counted(finished):
    for name, cost in result(finished("facts"))["costs"].items():
        assert cost == [int(name in READS), int(name in UPLOADS)], name


def test_operations_on_tensors_of_two_devices_raise(finished):
    errors = result(finished("facts"))["errors"]
    assert all(errors.values()), errors
    assert "cuda:0 and cpu [5] meet" in errors["cat of both"]


def test_a_module_moves_to_the_device_and_the_context_ends(finished):
    facts = result(finished("facts"))
    assert facts["a module moves"]
    assert facts["gone"]


@pytest.mark.parametrize(
    ("job", "training"),
    [(job, training) for job in ("llm", "flow") for training in ("full", "lora")]
    + [("flow", "final latents")],
)
def test_a_run_is_that_of_the_cpu_bit_for_bit(finished, job, training):
    cpu, device = (finished(f"{job}_job") / training / place for place in ("cpu", "device"))
    lines = records(cpu / "metrics.jsonl")
    assert records(device / "metrics.jsonl") == lines
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["grad_norm"] > 0 and line["trained_decisions"] for line in steps)
    assert steps[-1]["kl"] > 0
    saved = sorted(path.relative_to(cpu) for path in cpu.rglob("*.safetensors"))
    assert {"kept_average", "optimizer", "weights"} < {path.stem for path in saved}
    assert saved == sorted(path.relative_to(device) for path in device.rglob("*.safetensors"))
    for path in saved:
        expected, actual = load_file(cpu / path), load_file(device / path)
        assert expected.keys() == actual.keys()
        for name, value in expected.items():
            assert torch.equal(actual[name], value), (path, name)
    for when in ("before", "after"):
        name = f"samples/{when}.jsonl"
        assert (device / name).read_text() == (cpu / name).read_text()


@pytest.mark.parametrize("job", BOUNDS)
def test_the_host_waits_within_bounds(finished, job):
    costs = result(finished(f"{job}_job"))["costs"]
    measured = {name.partition(",")[0] for name in costs}
    assert measured == BOUNDS[job].keys()
    assert costs["forward, full"] > 0
    for name, waits in costs.items():
        assert waits <= BOUNDS[job][name.partition(",")[0]], name


def test_a_token_takes_few_launches(finished):
    launches = result(finished("llm_job"))["launches"]
    eager = launches.pop("eager")
    assert eager > 100
    assert launches.keys() == {"full", "lora", "filtered", "stopped"}
    for name, count in launches.items():
        assert count <= LAUNCHES, name


def test_text_encoders_are_where_the_settings_say(finished):
    assert result(finished("flow_job"))["places"] == {
        "resident": {"encoding": "cuda", "denoising": "cuda", "afterwards": "cuda"},
        "offload": {"encoding": "cuda", "denoising": "cpu", "afterwards": "cpu"},
        "cached": {"encoding": "cuda", "denoising": "none", "afterwards": "none"},
    }


@pytest.mark.parametrize("training", ["full", "lora"])
def test_a_changed_weight_is_cast_once_for_any_number_of_tokens(finished, training):
    one_token, _, nine_tokens, again = result(finished("llm_job"))["casts"][training]
    assert sum(name.endswith("weight") for name in one_token) >= (7 if training == "full" else 4)
    assert set(one_token.values()) == {1}
    assert nine_tokens == one_token
    assert again == {}


# ---- pictures


@pytest.mark.parametrize("tower", ["trained tower", "frozen tower", "kept features"])
def test_pictures_are_read_as_on_the_cpu_with_as_many_waits_for_any_number(finished, tower):
    measured = result(finished("vision_job"))[tower]
    assert len(measured["equal"]) > 20
    assert all(measured["equal"].values()), measured["equal"]
    without, one, *more = measured["waits"]
    if tower == "frozen tower":  # it sees each picture once, alone
        assert more[1] - more[0] == more[0] - one <= one - without
    else:
        assert more == [one, one]
    if tower == "kept features":
        assert one <= BOUNDS["llm"]["forward"] + 6
    # A tower that learns sees a picture in every pass.
    assert (without == one) == (tower == "trained tower")


# ---- sampling by graphs


@pytest.mark.parametrize("kind", ["full", "lora", "bf16"])
def test_sampling_by_graphs_is_sampling_without(finished, kind):
    """Log-probs differ where sums in float32 have other terms, zeros, between the same ones."""
    scenarios = result(finished("graphs_job"))["law"][kind]
    assert len(scenarios) == (9 if kind == "full" else 2)
    for name, scenario in scenarios.items():
        assert scenario["same"], name
        assert scenario["gap"] <= (0 if kind == "bf16" else 5e-6), name
        assert scenario["captures"] > 0, name


def test_graphs_are_captured_anew_where_rows_leave_or_the_room_grows(finished):
    law = result(finished("graphs_job"))["law"]
    assert law["bf16"]["groups"]["captures"] == 1  # too short for a check
    assert law["full"]["groups"]["captures"] == 2
    assert law["full"]["room that grows"]["captures"] == 3


def test_models_that_cannot_be_captured_say_so(finished):
    trials = result(finished("graphs_job"))["trials"]
    assert trials["plain"] == ["prompts shared, CUDA graphs"]
    assert trials["off"] == ["prompts shared"]
    for name, reason in (("waits", "the host would wait"), ("window", "cache does not keep")):
        way, *_, note = trials[name]
        assert way == "prompts shared"
        assert note.startswith("decoding without CUDA graphs: ")
        assert reason in note


def test_recorded_graphs_are_as_strict_as_those_of_cuda(finished):
    facts = result(finished("graphs_job"))["facts"]
    assert facts["after capture"] == [0.0] * 3
    # The device's number has changed since the capture, the host's is still that of the capture.
    assert facts["after replays"] == [4.0] * 3
    assert facts["launches"] == 2
    assert facts["released"]
    assert all(facts["waits"].values())
    assert not facts["not refused"]
