"""Pictures as users give them: forms, errors, and their places in prompts."""

import base64
import importlib.util
import io
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from groupwise.kit.errors import UserError
from groupwise.prompt_source import PlacedRow
from groupwise_llm.vision.album import Album
from groupwise_llm.vision.family import Family
from groupwise_llm.vision.picture import Picture
from groupwise_llm.vision.reader import BLOCK, Reader
from groupwise_messages.images import ImageError, measured, opened


def picture(width=6, height=4, color=(200, 10, 30), mode="RGB"):
    return Image.new("RGB", (width, height), color).convert(mode)


def encoded(image, kind="PNG", **options):
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "red.png"
    path.write_bytes(encoded(picture()))
    return path


def forms(file):
    data = file.read_bytes()
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {
        "PIL": picture(),
        "path": str(file),
        "Path": file,
        "bytes": data,
        "of datasets": {"bytes": data, "path": "gone.png"},
        "of datasets, not read": {"bytes": None, "path": str(file)},
        "data": url,
        "OpenAI": {"url": url},
        "array": np.asarray(picture()),
        "lazy PIL": Image.open(file),
    }


def test_every_form_of_a_picture_opens_as_the_same_pixels(file):
    for name, value in forms(file).items():
        image = opened(value)
        assert (image.mode, image.size) == ("RGB", (6, 4)), name
        assert np.array_equal(np.asarray(image), np.asarray(picture())), name


@pytest.mark.parametrize("mode", ["L", "P", "1", "CMYK", "I;16", "LA", "RGBA"])
def test_every_mode_becomes_rgb(mode):
    image = Image.new("I;16", (6, 4)) if mode == "I;16" else picture(mode=mode)
    assert opened(image).mode == "RGB"


def test_grey_of_sixteen_bits_keeps_its_brightness():
    ramp = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    for image in (Image.fromarray(ramp), encoded(Image.fromarray(ramp)), ramp):
        grey = np.asarray(opened(image))
        assert np.array_equal(grey, np.repeat((ramp // 257)[..., None], 3, axis=2))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_without_a_known_white_are_refused(dtype):
    for read in (opened, measured):
        with pytest.raises(ImageError, match="nobody knows how bright white is"):
            read(np.ones((4, 4), dtype))


def test_transparent_parts_are_white_and_exif_turns():
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert opened(clear).getpixel((0, 0)) == (255, 255, 255)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    for kind in ("JPEG", "PNG", "TIFF", "WEBP"):
        turned = encoded(picture(), kind, exif=exif)
        assert opened(turned).size == measured(turned) == (4, 6)
        assert measured(encoded(picture(), kind)) == (6, 4)


def test_what_cannot_be_opened_is_a_sentence(tmp_path, file, monkeypatch):
    def error(value, **options):
        with pytest.raises(ImageError) as raised:
            opened(value, **options)
        text = str(raised.value)
        assert "\n" not in text
        return text

    words = tmp_path / "words.png"
    words.write_text("these are words")
    assert "is not a picture (PNG, JPEG" in error(words)
    assert error(tmp_path / "gone.png").startswith("there is no file ")
    assert "cannot be opened" in error(encoded(Image.effect_noise((64, 64), 50))[:900])
    assert "not base64" in error("data:image/png;base64,%%%")
    assert "found Tensor" in error(torch.zeros(3, 4, 4))
    assert "found list" in error([[1, 2], [3, 4]])
    assert "cannot be opened" in error(np.zeros((2, 2, 7)))
    assert "a web address, which is not fetched" in error("https://example.invalid/cat.png")
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    assert "is not a picture" in error(postscript)  # PIL would start Ghostscript
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    assert "more than 20 pixels" in error(file)
    assert "more than 20 pixels" in error(picture())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)  # beyond twice of it PIL raises
    assert "more than 5 pixels" in error(file)


def test_a_web_address_is_fetched_only_where_that_is_set(file):
    import http.server
    import threading

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/red.png" else 404)
            self.end_headers()
            self.wfile.write(file.read_bytes())

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        assert opened(f"{address}/red.png", fetch=True).size == (6, 4)
        with pytest.raises(ImageError, match="404"):
            opened(f"{address}/gone.png", fetch=True)
    finally:
        server.shutdown()
        server.server_close()


# ---- places


class Marks(Family):
    """A family whose pictures have a token for each pixel, and no narrow ones."""

    placeholder = "<picture>"

    def __init__(self):
        super().__init__(None, None)

    def picture(self, image, **limits):
        if image.width < 2:
            raise ValueError("absolute aspect ratio must be smaller than 2")
        pixels = torch.from_numpy(np.array(image)).flatten()
        count = image.width * image.height
        return Picture(
            inputs={"pixels": pixels},
            text="",
            offsets=torch.zeros(1, count, dtype=torch.int64),
            advances=torch.ones(count, dtype=torch.int64),
        )

    def text_model(self, model): ...
    def towers(self, model): ...
    def features(self, model, pictures): ...


@pytest.fixture
def reader():
    return Reader(Album(Marks(), {}), fetch=False)


def sizes(read):
    return [len(picture) for picture in read.pictures]


def message(*parts, role="user"):
    return {"role": role, "content": [*parts] if len(parts) != 1 else parts[0]}


TEXT = {"type": "text", "text": "What?"}


def test_columns_stand_before_the_first_message_of_the_user(reader):
    system = message("Be brief.", role="system")
    row = {"prompt": [system, message("What?")], "images": [picture(2, 1), picture(3, 1)]}
    read = reader.row(row)
    assert read.prompt == [system, message(BLOCK, BLOCK, TEXT)]
    assert sizes(read) == [2, 3]
    row = {"prompt": [message("What?")], "image": picture(), "images": None}
    assert reader.row(row).prompt == [message(BLOCK, TEXT)]
    row = {"prompt": [message(TEXT, TEXT)], "image": picture()}
    assert reader.row(row).prompt == [message(BLOCK, TEXT, TEXT)]


def test_blocks_take_the_columns_in_order_or_have_their_own(reader):
    own = {"type": "image", "image": picture(4, 1)}
    # As a table keeps parts: each with all fields.
    empty = {"type": "image", "image": None, "text": None}
    prompt = [message(empty, own, TEXT), message("So?", role="assistant"), message(TEXT, BLOCK)]
    read = reader.row({"prompt": prompt, "images": [picture(2, 1), picture(3, 1)]})
    assert read.prompt == [
        message(BLOCK, BLOCK, TEXT),
        message("So?", role="assistant"),
        message(TEXT, BLOCK),
    ]
    assert sizes(read) == [2, 4, 3]
    data = base64.b64encode(encoded(picture(5, 1))).decode()
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    assert sizes(reader.row({"prompt": [message(url, TEXT)]})) == [5]


@pytest.fixture(scope="module")
def data_utils():
    """TRL's `data_utils`, without the seconds that the whole package takes."""
    trl = importlib.util.find_spec("trl")
    if trl is None:
        pytest.skip("TRL is not installed")
    file = Path(trl.origin).with_name("data_utils.py")
    spec = importlib.util.spec_from_file_location("trl_data_utils", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(30))
def test_pictures_stand_where_trl_puts_them(reader, data_utils, seed):
    chance = random.Random(seed)
    pictures = [picture(2 + n, 1) for n in range(6)]
    messages, own = [], iter(pictures)
    for number in range(chance.randint(1, 4)):
        role = ("user", "assistant")[number % 2]
        parts = [dict(TEXT)]
        if chance.random() < 0.5:
            parts.insert(0, {"type": "image", "image": next(own)} if seed % 3 else dict(BLOCK))
        content = parts if len(parts) > 1 or chance.random() < 0.3 else f"text {number}"
        messages.append({"role": role, "content": content})
    blocks = [p for m in messages if isinstance(m["content"], list) for p in m["content"]]
    empty = sum(part == BLOCK for part in blocks)
    filled = sum(part["type"] == "image" for part in blocks) - empty
    for own_message in messages[::2] if empty else ():
        if isinstance(own_message["content"], str):
            own_message["content"] = [dict(TEXT)]  # else TRL would give it the pictures, too
    # TRL takes no pictures of columns for a first message of the user that is in parts.
    takes = not filled and not empty and isinstance(messages[0]["content"], str)
    columns = [*own][: empty or (2 if takes else 0)]
    theirs = data_utils.prepare_multimodal_messages(messages, images=columns)
    read = reader.row({"prompt": messages, "images": columns})
    assert shape(read.prompt) == shape(theirs)
    given = [p["image"] for m in theirs for p in m["content"] if p["type"] == "image"]
    assert sizes(read) == [image.width for image in given]


def shape(messages):
    """The parts of messages, without the pictures themselves."""

    def parts(content):
        own = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return [part.get("text", "picture") for part in own]

    return [(message["role"], parts(message["content"])) for message in messages]


def test_a_text_has_the_placeholder_of_the_family(reader):
    row = {"prompt": "<picture> or <picture>?", "images": [picture(2, 1), picture(3, 1)]}
    assert reader.row(row).prompt == row["prompt"]
    assert sizes(reader.row(row)) == [2, 3]
    assert sizes(reader.row({"prompt": "no picture"})) == []
    assert sizes(reader.row({"prompt": [message("no picture")], "image": None})) == []


def test_replies_have_pictures_in_their_blocks(reader):
    seen = message({"type": "image", "image": picture(2, 1)}, TEXT, role="tool")
    read = reader.replies([seen])
    assert read.prompt == [message(BLOCK, TEXT, role="tool")]
    assert sizes(read) == [2]


def test_replies_read_no_files_and_no_addresses(reader, file, monkeypatch):
    def reply(value, kind="image"):
        return [message({"type": kind, kind: value}, TEXT, role="tool")]

    read = forms(file)
    paths = [reply(read.pop(name)) for name in ("path", "Path", "of datasets, not read")]
    for name, value in read.items():
        assert sizes(reader.replies(reply(value))) == [24], name
    reader.fetch = True
    monkeypatch.setattr("groupwise_messages.images.urlopen", None)
    address = "http://127.0.0.1/red.png"
    urls = [reply(address), reply({"url": address}, "image_url"), reply(address, "image_url")]
    for own in (*urls, *paths, reply({"url": str(file)}, "image_url")):
        with pytest.raises(UserError, match="no file or web address of a message is read"):
            reader.replies(own)


PLACE = "prompts, row 3"
WRONG = {
    "has no picture, and": ({"prompt": [message(BLOCK, TEXT)]}, "no picture, and .* 1 place"),
    "two for one": (
        {"prompt": [message(BLOCK, TEXT)], "images": [picture(), picture()]},
        "2 pictures, and .* 1 place",
    ),
    "one for two": (
        {"prompt": [message(BLOCK, BLOCK, TEXT)], "image": picture()},
        "1 picture, and .* 2 places",
    ),
    "both": ({"prompt": "x", "image": picture(), "images": [picture()]}, "both columns"),
    "no list": ({"prompt": "x", "images": "cat.png"}, "column 'images': expected a list"),
    "text": ({"prompt": "x", "image": picture()}, "no place for one; .* <picture>"),
    "no user": (
        {"prompt": [message("x", role="system")], "image": picture()},
        "first message of the user",
    ),
    "gone": (
        {"prompt": [message("x")], "image": "gone.png"},
        "column 'image': there is no file 'gone.png'",
    ),
    "address": (
        {"prompt": [message("x")], "image": "https://example.invalid/cat.png"},
        "column 'image': .* not fetched: .*, or set policy.fetch_pictures: true",
    ),
    "second": (
        {"prompt": [message("x")], "images": [picture(), "gone.png"]},
        "column 'images', picture 1: there is no file",
    ),
    "in a message": (
        {"prompt": [message({"type": "image", "image": b"words"}, TEXT)]},
        r"in a message: \[5 bytes\] is not a picture",
    ),
    "narrow": (
        {"prompt": [message("x")], "image": picture(1, 50)},
        "column 'image': the model's processor refuses a picture of 1 x 50 pixels: absolute",
    ),
    "large": (
        {"prompt": [message("x")], "image": picture(200, 200)},
        "200 x 200 pixels becomes 40,000 tokens, .*policy.max_pixels",
    ),
    "video": (
        {"prompt": [message({"type": "video", "video": "x.mp4"}, TEXT)]},
        "found one of the type 'video'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_row_that_cannot_be_read_is_named_with_its_column(reader, name):
    row, words = WRONG[name]
    with pytest.raises(UserError) as raised:
        reader.row(PlacedRow(row, PLACE))
    text = str(raised.value)
    assert text.startswith(PLACE)
    assert re.search(words, text), text
    assert "\n" not in text
    with pytest.raises(UserError, match="the row that begins"):
        reader.row(row)


def test_a_reply_with_an_empty_block_is_refused(reader):
    with pytest.raises(UserError, match=r"role 'tool': a part .* has no picture"):
        reader.replies([message(BLOCK, TEXT, role="tool")])
