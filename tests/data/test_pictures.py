"""Columns of pictures by the names and in the forms in which published data sets have them."""

import io
import json

import pytest
from PIL import Image

from groupwise.kit.errors import UserError
from groupwise_data.dataset import Dataset
from groupwise_messages.attached import instruction_of, pictures_of


def png(color):
    data = io.BytesIO()
    Image.new("RGB", (2, 2), color).save(data, "PNG")
    return data.getvalue()


def media(uri, **fields):
    return {"modality": "image", "role": "condition", "uri": uri, **fields}


@pytest.fixture
def read(tmp_path):
    (tmp_path / "a.png").write_bytes(png("red"))
    (tmp_path / "b.png").write_bytes(png("blue"))

    def first(row, **options):
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
        return Dataset(Dataset.Config(path=str(tmp_path / "rows.jsonl"), **options))[0]

    return first


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a.png", {"image": "a.png"}),
        (["a.png", "b.png"], {"images": ["a.png", "b.png"]}),
        ([media("b.png")], {"images": ["b.png"]}),
        ([media("b.png"), media("a.png", role="target")], {"images": ["b.png"]}),
        ([media("a.png", modality="video"), media("b.png")], {"images": ["b.png"]}),
        (None, {}),
    ],
)
def test_a_column_of_any_name_becomes_image_or_images(read, tmp_path, value, expected):
    row = read({"prompt": "p", "media": value}, image="media")
    whole = {
        name: [str(tmp_path / one) for one in own] if isinstance(own, list) else str(tmp_path / own)
        for name, own in expected.items()
    }
    assert row == {"prompt": "p", **whole}


def test_gedits_columns(read, tmp_path):
    row = {
        "instruction": "Make it red.",
        "input_image_raw": "a.png",
        "instruction_language": "en",
        "task_type": "color_alter",
    }
    read_row = read(row, prompt="instruction", image="input_image_raw")
    assert (read_row["prompt"], read_row["image"]) == ("Make it red.", str(tmp_path / "a.png"))
    assert "input_image_raw" not in read_row


def test_a_column_that_is_missing_is_named(read):
    with pytest.raises(UserError, match="has no column 'picture'"):
        read({"prompt": "p", "image": "a.png"}, image="picture")


def test_pictures_and_instructions_of_messages():
    """verl's rows have `<image>` in texts, others have parts; a part without one has a column's."""
    parts = [{"type": "image", "image": "c"}, {"type": "image"}, {"type": "text", "text": "go"}]
    system = {"role": "system", "content": "Describe."}
    chat = [system, {"role": "user", "content": parts}]
    assert pictures_of({"prompt": chat, "image": "a"}) == ["c", "a"]
    assert pictures_of({"prompt": chat}) == ["c", None]
    assert instruction_of(chat) == "go"
    verl = [system, {"role": "user", "content": "Picture 1: <image>make it blue"}]
    row = {"prompt": verl, "images": [{"bytes": b"x"}]}
    assert pictures_of(row) == [{"bytes": b"x"}]
    assert instruction_of(verl) == "make it blue"
    assert instruction_of("<image> is kept") == "<image> is kept"
