"""Pictures of prompts: which question they make, where they are, and how samples keep them."""

import base64
import gc
import json
import weakref
from pathlib import Path

import numpy as np
import pytest

import groupwise
from groupwise import attachments
from groupwise.kit.errors import UserError
from groupwise.prompts.draws import Prompts
from groupwise.registry import installed
from groupwise.storage.attached import Attached
from groupwise.storage.samples import read_samples, with_completions, write_samples
from groupwise_commands.sampled_set import SampledSet

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")
Dataset = installed().load("prompts", "dataset")


def picture(path, color="red", size=(6, 4)):
    Image.new("RGB", size, color).save(path)
    return path


def prompts(rows, **options):
    return Prompts(rows, **{"fraction": 0.5, "attached": True, **options})


def asked(own):
    return [
        {
            "role": "user",
            "content": [{"type": "image", "image": own}, {"type": "text", "text": "?"}],
        }
    ]


def test_the_same_picture_is_the_same_question_in_whatever_file_it_is(tmp_path):
    one, other = picture(tmp_path / "one.png"), picture(tmp_path / "other.png")
    blue = picture(tmp_path / "blue.png", "blue")
    data = one.read_bytes()
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    forms = [
        str(one),
        other,
        data,
        {"bytes": data, "path": "x"},
        {"bytes": None, "path": str(one)},
        url,
    ]
    rows = [{"prompt": "?", "image": own} for own in forms]
    rows += [{"prompt": "?", "images": [own]} for own in forms]
    source = prompts(rows)
    assert len(set(map(source.question, rows))) == 1
    assert len({source.is_held_out(row) for row in rows}) == 1
    in_messages = [{"prompt": asked(own)} for own in forms]
    assert len(set(map(source.question, in_messages))) == 1
    others = [
        {"prompt": "?", "image": str(blue)},
        {"prompt": "!", "image": str(one)},
        {"prompt": "?", "images": [one, one]},
        {"prompt": "?"},
        {"prompt": asked(str(blue))},
    ]
    assert len(set(map(source.question, [rows[0], in_messages[0], *others]))) == 7


def test_opened_pictures_are_told_apart_by_their_pixels():
    rows = [
        {"prompt": "?", "image": Image.new("RGB", (4, 4), color)}
        for color in ("red", "blue", "red")
    ]
    red, blue, again = map(prompts(rows).question, rows)
    assert red == again != blue


def test_the_picture_alone_can_be_the_question(tmp_path):
    one, other = picture(tmp_path / "one.png"), picture(tmp_path / "other.png")
    rows = [{"prompt": "How many?", "image": str(one)}, {"prompt": "Which?", "image": str(other)}]
    source = prompts(rows, key="image")
    assert source.question(rows[0]) == source.question(rows[1])


def test_a_policy_that_reads_no_pictures_has_the_questions_of_the_prompts_alone(lab, tmp_path):
    rows = [{**row, "image": f"{row['id']}.png"} for row in lab.rows()]
    bare = Prompts(lab.rows(), fraction=0.5)
    blind, seeing = prompts(rows, attached=False), prompts(rows)
    assert [*map(blind.side, rows)] == [*map(bare.side, lab.rows())]
    assert [*map(seeing.side, rows)] != [*map(bare.side, lab.rows())]
    assert prompts(rows, attached=False, key="image").question(rows[0]) == '"0.png"'

    class Seeing(lab.Tabular):
        reads_attachments = True

    def judged(policy):
        result = groupwise.train(
            policy=policy,
            prompts=rows,
            rewards=[lab.ones],
            train={"steps": 1, "groups_per_step": 2, "group_size": 4},
            evaluation={"samples": len(rows)},
            output=tmp_path / type(policy).__name__,
            quiet=True,
            **{"prompts.held_out": 0.5},
        )
        samples = read_samples(result.folder / "samples" / "before.jsonl")
        return {sample["prompt"] for sample in samples}

    for policy, source in ((lab.Tabular(), blind), (Seeing(), seeing)):
        assert judged(policy) == {row["prompt"] for row in rows if source.is_held_out(row)}


def test_a_picture_is_read_once_for_its_side_and_its_question(tmp_path, monkeypatch):
    files = [picture(tmp_path / f"{n}.png", (n, 0, 0)) for n in range(8)]
    rows, read = [{"prompt": "?", "image": str(file)} for file in files], []
    content = attachments.content
    monkeypatch.setattr(attachments, "content", lambda own: read.append(own) or content(own))
    draws = prompts(rows, fraction=1.0).evaluation(8)
    assert [draw.row for draw in draws] == rows
    assert read == [*map(str, files)]


def test_a_draw_knows_where_its_row_is():
    rows = [{"prompt": "?"}, {"prompt": "!"}]
    source = prompts(rows, fraction=0.0, shuffle=False)
    assert [draw.row.place for draw in source.take(2)] == ["prompts, row 0", "prompts, row 1"]
    whole = prompts(rows, fraction=1.0, name="evaluation.source").evaluation(2)
    assert [draw.row.place for draw in whole] == [f"evaluation.source, row {n}" for n in range(2)]


def test_rows_without_pictures_ask_what_they_asked_before():
    rows = [{"prompt": "one", "image": None}, {"prompt": [{"role": "user", "content": "one"}]}]
    source = prompts(rows)
    assert source.question(rows[0]) == '"one"'
    assert source.question(rows[1]) == '[{"content": "one", "role": "user"}]'


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_paths_begin_at_the_data_file(tmp_path, monkeypatch):
    (tmp_path / "data" / "pics").mkdir(parents=True)
    red = picture(tmp_path / "data" / "pics" / "red.png")
    here = picture(tmp_path / "here.png")
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "?", "image": "pics/red.png"}, {"prompt": "?", "image": "here.png"}]
    file = write(tmp_path / "data" / "rows.jsonl", rows)
    source = Dataset(Dataset.Config(path=str(file)))
    assert source[0]["image"] == str(red)
    assert source[1]["image"] == here.name  # of the working directory
    file = write(tmp_path / "data" / "chats.jsonl", [{"prompt": asked("pics/red.png")}] * 2)
    (message,) = Dataset(Dataset.Config(path=str(file)))[0]["prompt"]
    assert message["content"][0]["image"] == str(red)
    table = tmp_path / "data" / "rows.csv"
    table.write_text("prompt,image\n?,pics/red.png\n")
    source = Dataset(Dataset.Config(path=str(table), chat=True))
    assert source[0] == {"prompt": [{"role": "user", "content": "?"}], "image": str(red)}


def test_a_table_holds_pictures_itself(tmp_path):
    red = picture(tmp_path / "red.png")
    features = datasets.Features({"prompt": datasets.Value("string"), "image": datasets.Image()})
    rows = {"prompt": ["?", "!"], "image": [str(red), str(red)]}
    data = datasets.Dataset.from_dict(rows, features=features)
    data.to_parquet(str(tmp_path / "rows.parquet"))
    source = Dataset(Dataset.Config(path=str(tmp_path / "rows.parquet")))
    assert source[0]["image"].size == (6, 4)  # opened, as in TRL


def test_a_picture_that_a_table_cannot_open_is_named(tmp_path):
    features = datasets.Features({"prompt": datasets.Value("string"), "image": datasets.Image()})
    red = picture(tmp_path / "red.png").read_bytes()
    rows = {
        "prompt": ["?", "?"],
        "image": [{"bytes": red, "path": None}, {"bytes": b"words", "path": None}],
    }
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "rows.parquet"))
    source = Dataset(Dataset.Config(path=str(tmp_path / "rows.parquet")))
    assert source[0]["image"].size == (6, 4)
    with pytest.raises(
        UserError, match=r"rows.parquet, row 1, column 'image' cannot be read: Unid"
    ):
        source[1]


# ---- samples


def sample(draw, prompt, **others):
    return {
        "prompt": prompt,
        "completion": "red",
        "draw": draw,
        "index": 0,
        "greedy": False,
        **others,
    }


def test_samples_keep_each_picture_once(tmp_path):
    red = picture(tmp_path / "red.JPG")
    opened = Image.new("RGB", (4, 4), "blue")
    answer = [{"role": "tool", "content": [{"type": "image", "image": opened}]}]
    samples = [
        sample(0, "?", images=[str(red), opened]),
        sample(1, asked(red.read_bytes())),
        sample(2, asked(opened), completion=answer),
        sample(
            3, "?", images=["gone.png", "https://example.invalid/x.png", Image.new("CMYK", (4, 4))]
        ),
    ]
    path = tmp_path / "run" / "samples" / "before.jsonl"
    path.parent.mkdir(parents=True)
    write_samples(path, samples)
    write_samples(path.with_name("after.jsonl"), samples)
    files = sorted(file.name for file in (path.parent / "attached").iterdir())
    assert {name.partition(".")[2] for name in files} == {"jpg", "png"}
    assert len(files) == 2
    read = read_samples(path)
    names = read[0]["images"]
    assert read[1]["prompt"] == asked(names[0])
    assert all(name.startswith("samples/attached/") for name in names)
    assert (tmp_path / "run" / names[0]).read_bytes() == red.read_bytes()
    with Image.open(tmp_path / "run" / names[1]) as stored:
        assert stored.getpixel((0, 0)) == (0, 0, 255)
    key = tmp_path / "id_rsa"
    key.write_text("a secret")
    write_samples(path, [sample(0, asked(str(key)), images=[str(key), {"path": str(key)}])])
    assert read_samples(path)[0]["images"] == [str(key)] * 2
    assert b"a secret" not in [file.read_bytes() for file in (path.parent / "attached").iterdir()]
    assert read[2]["completion"][0]["content"] == [{"type": "image", "image": names[1]}]
    assert read[2]["prompt"][0]["content"][0]["image"] == names[1]
    assert read[3]["images"] == ["gone.png", "https://example.invalid/x.png", "[picture 4x4]"]
    (whole,) = with_completions([read[2]], tmp_path / "run")
    assert whole["completion"][0]["content"][0]["image"] == str(tmp_path / "run" / names[1])


def test_a_set_of_samples_keeps_no_opened_picture_in_memory(tmp_path):
    opened = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    alive = [weakref.ref(own) for own in opened]
    with SampledSet(tmp_path / "set.jsonl") as file:
        while opened:
            file.write([{"prompt": "?", "image": opened.pop(), "completion": "a"}])
        gc.collect()
        assert [own() for own in alive] == [None, None]


def test_files_are_listed_once_however_many_are_stored(tmp_path, monkeypatch):
    listed, iterdir = [], Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda own: listed.append(own) or iterdir(own))
    monkeypatch.setattr(Path, "glob", lambda own, pattern: pytest.fail("listed again"))
    own = Attached(tmp_path / "attached", tmp_path)
    names = [own.name(bytes([n])) for n in range(3)]
    assert own.name(bytes([0])) == names[0]
    assert listed == [tmp_path / "attached"]
    again = Attached(tmp_path / "attached", tmp_path)
    assert [again.name(bytes([n])) for n in range(3)] == names
    assert len(set(names)) == 3


def test_a_run_records_the_pictures_of_its_prompts(lab, tmp_path):
    rows = [{**row, "image": Image.new("RGB", (8, 6), (row["id"], 0, 0))} for row in lab.rows()]
    result = groupwise.train(
        policy=lab.Tabular(),
        prompts=rows,
        rewards=[lab.ones],
        train={"steps": 1, "groups_per_step": 2, "group_size": 4},
        evaluation={"prompts": 2, "samples": 2},
        output=tmp_path / "run",
        quiet=True,
        **{"prompts.held_out": 0.5},
    )
    samples = read_samples(result.folder / "samples" / "before.jsonl")
    names = {name for own in samples for name in own["images"]}
    assert len(names) == 2
    assert all((result.folder / name).is_file() for name in names)


def test_messages_about_prompts_have_pictures_in_words():
    opened = Image.new("RGB", (64, 48))
    with pytest.raises(UserError, match=r"found \[\{'content': \[\{.*\[picture 64x48\]"):
        prompts([{"prompt": [{"content": asked(opened)[0]["content"]}]}])
    wording = Dataset.Config(path="x.jsonl", template="{image}: {question}")
    for own in (opened, b"12", {"bytes": b"12", "path": None}):
        with pytest.raises(UserError, match="column 'image', which holds a picture"):
            wording.worded({"image": own, "question": "?"}, None)


def test_a_failing_reward_names_the_prompt_without_its_bytes(lab, tmp_path):
    def fails(completions):
        raise ValueError("no")

    row = {"prompt": asked(b"PNG" * 1000), "id": 0}
    with pytest.raises(UserError) as raised:
        groupwise.train(
            policy=lab.Tabular(),
            prompts=[row, row],
            rewards=[fails],
            train={"steps": 1, "groups_per_step": 2, "group_size": 4},
            evaluation={"prompts": 0},
            output=tmp_path / "run",
            quiet=True,
            **{"prompts.held_out": 0, "prompts.shuffle": False},
        )
    assert "[3,000 bytes]" in str(raised.value)


@pytest.mark.parametrize(
    "value",
    [
        Image.new("RGB", (4, 4)),
        np.zeros((4, 4, 3), np.uint8),
        b"x",
        {"bytes": b"x", "path": "x.png"},
        "data:,x",
        {"url": "data:,x", "detail": "low"},
    ],
)
def test_what_is_self_contained(value):
    assert attachments.is_self_contained(value)


@pytest.mark.parametrize(
    "value",
    [
        "x.png",
        Path("x.png"),
        "file:///x.png",
        "https://example.invalid/x.png",
        {"bytes": None, "path": "x.png"},
        {"path": "data:,x"},
        {"url": "x.png", "bytes": b"x"},
        {"url": "data:,x", "path": "x.png"},
        {"url": {"url": "x.png"}},
        [[1, 2], [3, 4]],
        None,
    ],
)
def test_what_is_not(value):
    assert not attachments.is_self_contained(value)


def test_pictures_in_words():
    opened = Image.new("RGB", (64, 48))
    url = "data:image/png;base64," + "A" * 1000
    assert attachments.named(opened) == "[picture 64x48]"
    assert attachments.named(b"12345") == "[5 bytes]"
    assert attachments.named({"bytes": b"12345", "path": "x.png"}) == "[5 bytes]"
    assert attachments.named({"bytes": None, "path": "x.png"}) == "x.png"
    assert attachments.named(url) == "data:image/png;base64,AAAAAAAAAAAAAAAAAA..."
    assert attachments.readable(asked(opened)) == asked("[picture 64x48]")
    assert attachments.readable("?") == "?"
