"""Reading JSON of others: a value, or a ValueError, whatever the text is."""

import copy
import json

import pytest

from groupwise.kit import foreign_json

VALUES = [{"a": [1, 2.5, None, True, "[{" * 200]}, [[{}]] * 500, "[" * 300, 7, None]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize("encode", [str, str.encode])
def test_json_is_read(value, encode):
    assert foreign_json.read(encode(json.dumps(value))) == value


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":['])
@pytest.mark.parametrize("times", [80, 400, 900, 200_000])
def test_depth_is_an_error_of_the_text_whether_python_can_read_it_or_not(opening, times):
    closing = {"[": "]", "{": "}"}
    ends = "".join(closing.get(letter, "") for letter in reversed(opening))
    text = f"{opening * times}1{ends * times}"
    if opening != '[{"a":[' and times <= foreign_json.DEPTH:
        copy.deepcopy(foreign_json.read(text))
        return
    with pytest.raises(ValueError, match="nested more than 100 times"):
        foreign_json.read(text)


@pytest.mark.parametrize("text", ["", "{", "[" * 200_000, b"\xff\xfe\x00", "1" * 5000, '{"a" 1}'])
def test_anything_else_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 - of json, of a codec or of int
        foreign_json.read(text)
