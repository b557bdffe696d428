"""There is no tokenizer, chat template or image in the core: it runs whatever a policy decides."""

import ast
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import groupwise
from groupwise import attachments
from groupwise.kit import media
from groupwise.kit.copies import copied, equal, kept
from groupwise.kit.errors import UserError
from groupwise.prompts.identity import identity

CORE = Path(groupwise.__file__).parent
LIBRARIES = {"PIL", "cv2", "diffusers", "jinja2", "tokenizers", "torchvision", "transformers"}
BY_NAME = {"kit/trust.py": {"transformers"}}
"""What it keeps from running the code of a model."""
CHAT = {"role", "content", "tool_calls", "image", "images", "image_url"}
"""Keys of messages, of their parts, and of the columns of pictures."""
DECLARED = {
    "prompt_source.py": "a prompt is a text or messages: how a row is checked",
    "tool_call.py": "the messages that have calls of tools, and their text",
    "environment.py": "the column `role`, whose value a player has in its episode",
    "attachments.py": "where messages have parts that are no text",
    "samples/samples.py": "the files of samples: what is attached, and what is shown",
    "storage/samples.py": "the files of samples: the name of an image's file",
    "storage/attached.py": "suffixes of media, the only files of rows that are copied",
    "recording/table.py": "messages of files of samples, as a notebook shows them",
}
"""Modules that name such keys, and why."""


def modules():
    return {file.relative_to(CORE).as_posix(): file for file in CORE.rglob("*.py")}


def names_of(file):
    """What a module imports and names: roots of imports, names, attributes and dotted texts."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(module=str(module)):
                yield module.partition(".")[0]
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Constant(value=str(text)):
                yield from (text, text.partition(".")[0])


def keys_of(file):
    """The constants of a module, which its keys are among."""
    return {n.value for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Constant)}


def test_no_module_names_a_library_of_a_modality():
    named = {name: LIBRARIES & {*names_of(file)} for name, file in modules().items()}
    assert {name: own for name, own in named.items() if own} == BY_NAME, (
        "the core knows a modality: move this into the package that has it; `groupwise.kit.media` "
        "is for what the core does with values of a class"
    )


def test_only_declared_modules_know_the_form_of_a_chat():
    knowing = {name for name, file in modules().items() if CHAT & keys_of(file)}
    assert knowing == {*DECLARED}, (
        "move what reads or writes messages into groupwise_messages, or declare why the core must"
    )


class Sound:
    """A value of a modality that the core has never heard of."""

    def __init__(self, samples):
        self.samples = samples


class Sounds:
    columns = ("sound",)
    suffixes = (".sound",)

    def shared(self, value):
        return Sound(value.samples)

    def own(self, value):
        return Sound([*value.samples])

    def equal(self, one, other):
        return one.samples == other.samples

    def content(self, value):
        return "sound", bytes(value.samples)

    def write(self, value, path, *, small):
        whole = path.with_suffix(".sound")
        whole.write_bytes(bytes(value.samples))
        return whole

    def read(self, path):
        return Sound([*path.read_bytes()])


SOUNDS = Sounds()


@pytest.fixture
def known(monkeypatch):
    """Makes these classes those that media are registered for; none at first."""

    def register(**classes):
        points = [EntryPoint(name, value, media.GROUP) for name, value in classes.items()]
        monkeypatch.setattr(media, "entry_points", lambda group: points)
        forget()

    def forget():
        for cached in (media._of_class, media._media, media.columns):
            cached.cache_clear()

    register()
    yield register
    monkeypatch.undo()
    forget()


def test_values_of_no_medium_are_shared(known):
    sound = Sound([1, 2])
    assert copied([sound])[0] is kept([sound])[0] is sound
    assert attachments.in_columns({"prompt": "p", "sound": sound}) == []
    with pytest.raises(UserError, match="Sound"):
        identity(sound)


def test_a_package_brings_a_medium_of_its_own(known, tmp_path):
    known(**{f"{__name__}.Sound": f"{__name__}:SOUNDS"})
    sound, loud = Sound([1, 2]), type("Loud", (Sound,), {})([3])
    assert copied({"deep": [sound]})["deep"][0].samples is sound.samples
    assert kept({"deep": [sound]})["deep"][0].samples is not sound.samples
    assert equal([sound], [Sound([1, 2])])
    assert not equal([sound], [loud])
    assert identity(sound) == identity(Sound([1, 2])) != identity(loud)
    assert attachments.in_columns({"prompt": "p", "sound": sound}) == [sound]
    file = media.write(loud, tmp_path / "loud")
    assert media.read(file).samples == [3]
    with pytest.raises(OSError, match=r"no installed package reads \.png"):
        media.read(tmp_path / "picture.png")


def test_a_broken_medium_is_named_and_stops_no_other(known, capsys):
    known(Broken="no_such_module:MEDIUM", **{f"{__name__}.Sound": f"{__name__}:SOUNDS"})
    assert media.columns() == ("sound",)
    assert media.medium_of(Sound([])) is SOUNDS
    assert "warning: Broken is no medium: no_such_module:MEDIUM" in capsys.readouterr().err
