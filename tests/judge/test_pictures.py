"""Which pictures a judge opens, and how."""

import io
from base64 import b64encode
from urllib.parse import quote

import numpy as np
import pytest
from PIL import EpsImagePlugin, ExifTags, Image

from groupwise_judge.pictures import opened


def test_no_picture_starts_a_program(monkeypatch):
    """PIL starts Ghostscript for an EPS picture, whatever its file is called."""
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args: started.append(args))
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n%%EndComments\nshowpage\n%%EOF\n"
    assert Image.open(io.BytesIO(eps)).format == "EPS"
    with pytest.raises(ValueError, match="is not a picture"):
        opened(eps)
    assert started == []


def test_a_judge_sees_what_a_policy_sees():
    """Files as their EXIF data turn them, arrays, and `data:` URLs with percent signs."""
    picture = Image.new("RGB", (4, 2), "red")
    exif, turned, plain = picture.getexif(), io.BytesIO(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = 6
    picture.save(turned, "PNG", exif=exif)
    picture.save(plain, "PNG")
    assert opened(turned.getvalue()).size == (2, 4)
    assert not opened(turned.getvalue()).getexif()
    escaped_url = f"data:image/png;base64,{quote(b64encode(plain.getvalue()), safe='')}"
    assert "%" in escaped_url
    for value in (escaped_url, {"url": escaped_url}, np.asarray(picture)):
        assert opened(value).tobytes() == picture.tobytes()
    wide = Image.fromarray(np.full((2, 2), 65535 // 2, dtype=np.uint16))
    assert opened(wide).getpixel((0, 0)) == (127, 127, 127)
    assert opened(picture) is picture
