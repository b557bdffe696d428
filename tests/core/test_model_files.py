"""A model's files: what is said of a folder follows from names and headers, and is what is so."""

import json

import pytest
import torch
from safetensors.torch import save_file

from groupwise.kit.model_files import NAME, PICKLED, folder_problem, weight_files, weights_problem


@pytest.fixture
def folder(tmp_path):
    save_file({"a": torch.zeros(3, 5), "b": torch.ones(2)}, tmp_path / NAME, metadata={"x": "y"})
    return tmp_path


def divided(folder):
    """The same weights in two files with an index, by save_pretrained's names."""
    parts = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for part in parts:
        save_file({part: torch.zeros(4)}, folder / part)
    (folder / NAME).unlink()
    index = {"metadata": {}, "weight_map": {part: part for part in parts}}
    (folder / f"{NAME}.index.json").write_text(json.dumps(index), encoding="utf-8")
    return parts


def test_whole_weights_have_no_problem(folder):
    assert weights_problem(folder) is None
    assert weight_files(folder) == [folder / NAME]
    parts = divided(folder)
    assert weights_problem(folder) is None
    assert weight_files(folder) == [folder / part for part in parts]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 30, -30, -1])
def test_a_file_of_any_shorter_length_is_cut_off(folder, length):
    data = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(data[:length])
    assert f"{NAME} is cut off: it has {len(data[:length]):,} " in weights_problem(folder)


OTHER = {
    "longer": (lambda data: data + b"0", "is too long"),
    "a page": (lambda _: b"<html>not found</html>", "is no safetensors file"),
    "a pointer": (lambda _: b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "deep": (lambda _: (200_008).to_bytes(8, "little") + b"[" * 200_008, "is no safetensors file"),
    "a list": (lambda _: (2).to_bytes(8, "little") + b"[]", "is no safetensors file"),
    "offsets": (lambda _: (7).to_bytes(8, "little") + b'{"a":1}', "is no safetensors file"),
}


@pytest.mark.parametrize("kind", OTHER)
def test_files_that_are_not_weights(folder, kind):
    change, message = OTHER[kind]
    (folder / NAME).write_bytes(change((folder / NAME).read_bytes()))
    problem = weights_problem(folder)
    assert message in problem
    assert "pickled" not in problem


def test_a_divided_model_without_one_of_its_files(folder):
    _, second = divided(folder)
    (folder / second).unlink()
    assert f"{second} is missing, which the index of its weights names" in weights_problem(folder)
    (folder / f"{NAME}.index.json").write_text('{"weight_map": {"a":', encoding="utf-8")
    assert "index.json is damaged" in weights_problem(folder)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["pytorch_model.bin"], PICKLED),
        (["model.fp16.safetensors"], "policy.loading.variant: fp16"),
        (["model.fp16-00001-of-00002.safetensors"], "policy.loading.variant: fp16"),
        (["weights.safetensors"], "expected its weights in model.safetensors, found weights.safe"),
        (["config.json"], "it has no weights"),
        ([], "it has no weights"),
    ],
)
def test_weights_under_other_names(tmp_path, names, message):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert message in weights_problem(tmp_path)


def test_the_files_of_a_variant(folder):
    (folder / NAME).rename(folder / "model.fp16.safetensors")
    assert weights_problem(folder, variant="fp16") is None


def test_a_folder_with_the_file_that_describes_a_model_is_one(folder):
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "small.gguf").write_bytes(b"")
    assert folder_problem(folder, "config.json", of_file="", of_gguf="") is None
