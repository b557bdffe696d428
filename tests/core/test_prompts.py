"""Prompts: the split, the order, and going on in the middle of it."""

import json

import pytest

from groupwise.errors import UserError
from groupwise.prompts.draws import Prompts
from groupwise.prompts.rows import Rows
from groupwise.prompts.split import held_out


def rows(count=60):
    return [{"prompt": f"question {number}", "id": number} for number in range(count)]


def ids(draws):
    return [draw.row["id"] for draw in draws]


def test_split_is_disjoint_and_of_the_size_asked_for():
    prompts = Prompts(rows(2000), fraction=0.25)
    held = sum(held_out(row["prompt"], 0.25) for row in rows(2000))
    assert 430 < held < 570
    exam = set(ids(prompts.evaluation(held)))
    trained = set(ids(prompts.take(2000 - held)))
    assert not exam & trained
    assert len(exam | trained) == 2000


def test_split_survives_seed_order_and_growth():
    first = {row["id"] for row in rows(50) if held_out(row["prompt"], 0.3)}
    for seed in range(3):
        for source in (rows(50), rows(50)[::-1], rows(80)):
            prompts = Prompts(source, seed=seed, fraction=0.3)
            trained = set(ids(prompts.take(3 * len(source))))
            assert not first & trained


def test_growing_the_share_only_adds():
    texts = [row["prompt"] for row in rows(300)]
    small = {text for text in texts if held_out(text, 0.1)}
    assert small < {text for text in texts if held_out(text, 0.4)}
    assert not any(held_out(text, 0.0) for text in texts)
    assert all(held_out(text, 1.0) for text in texts)


def test_equal_questions_are_on_one_side():
    source = [
        {"prompt": f"{style} {row['prompt']}", "question": row["prompt"], "id": row["id"]}
        for row in rows()
        for style in ("Please:", "Now:")
    ]
    prompts = Prompts(source, fraction=0.4, key="question")
    held = len({row["id"] for row in source if held_out(row["question"], 0.4)})
    exam = ids(prompts.evaluation(held))
    assert len(exam) == len(set(exam)) == held  # each question once
    assert not set(exam) & set(ids(prompts.take(200)))
    with pytest.raises(UserError, match=f"only {held} of 120"):
        prompts.evaluation(held + 1)


def test_a_column_is_the_key_only_where_somebody_says_so():
    source = [{**row, "question": "the same for all"} for row in rows()]
    held = [row["id"] for row in source if held_out(row["prompt"], 0.4)]
    prompts = Prompts(source, fraction=0.4)
    assert ids(prompts.evaluation(len(held))) == held

    class Stating(list):
        key = "question"

    stated = Prompts(Stating(source), fraction=0.4)
    assert stated.question(source[0]) == '"the same for all"'
    assert len({stated.is_held_out(row) for row in source}) == 1
    assert ids(Prompts(Stating(source), fraction=0.4, key="prompt").evaluation(len(held))) == held
    with pytest.raises(
        UserError, match=r"prompts\.key: a row has no column 'asks' \(it has prompt"
    ):
        Prompts(source, fraction=0.4, key="asks").take(1)


def test_rows_that_the_policy_skips_are_never_drawn():
    plain, prompts = Prompts(rows(), fraction=0.3), Prompts(rows(), fraction=0.3)
    prompts.skips = lambda row: row["id"] % 5 == 0
    exam = prompts.evaluation(100, strict=False)
    assert {row % 5 for row in ids(exam)} == {1, 2, 3, 4}
    expected = [number for number in ids(plain.take(60)) if number % 5]
    assert ids(prompts.take(30)) == expected[:30]
    assert prompts.skipped > 0
    again = Prompts(rows(), fraction=0.3)
    again.skips = prompts.skips
    again.load_state_dict(prompts.state_dict())
    assert (ids(again.take(20)), again.skipped) == (ids(prompts.take(20)), prompts.skipped)
    prompts.skips = lambda _: True
    with pytest.raises(UserError, match=r"leaves none of 60 prompts .*the policy skips"):
        prompts.take(1)


def test_messages_are_prompts_too():
    source = [{"prompt": [{"role": "user", "content": f"q {n}"}], "id": n} for n in range(40)]
    prompts = Prompts(source, fraction=0.5)
    held = [row["id"] for row in source if held_out(row["prompt"], 0.5)]
    assert ids(prompts.evaluation(len(held))) == held
    assert set(ids(prompts.take(40 - len(held)))).isdisjoint(held)
    # The order of a message's keys is not its content.
    turned = {"content": "q 1", "role": "user"}
    assert held_out([turned], 0.5) == held_out(source[1]["prompt"], 0.5)


def test_epochs_hold_every_prompt_once_and_are_reshuffled():
    prompts = Prompts(rows(20), fraction=0.0)
    epochs = [ids(prompts.take(20)) for _ in range(4)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert epochs[0] != list(range(20))


def test_order_is_a_function_of_the_seed():
    def order(seed):
        return ids(Prompts(rows(20), seed=seed, fraction=0.0).take(20))

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_unshuffled_order_is_the_sources():
    prompts = Prompts(rows(5), fraction=0.0, shuffle=False)
    assert ids(prompts.take(12)) == [0, 1, 2, 3, 4] * 2 + [0, 1]


def test_draws_are_numbered_without_gaps():
    prompts = Prompts(rows(10), fraction=0.3)
    numbers = [draw.number for count in (3, 1, 30) for draw in prompts.take(count)]
    assert numbers == list(range(34))


@pytest.mark.parametrize("taken", [0, 1, 7, 20, 33, 61])
def test_resuming_goes_on_in_the_middle_of_an_epoch(taken):
    through = Prompts(rows(20), seed=5, fraction=0.2)
    through.take(taken)
    state = json.loads(json.dumps(through.state_dict()))
    expected = through.take(50)
    fresh = Prompts(rows(20), seed=5, fraction=0.2)
    fresh.take(3)  # what it did before does not matter
    fresh.load_state_dict(state)
    assert fresh.take(50) == expected


def test_evaluation_prompts_are_fixed():
    source = rows(80)
    expected = [row["id"] for row in source if held_out(row["prompt"], 0.3)][:10]
    for seed in (0, 1):
        prompts = Prompts(source, seed=seed, fraction=0.3)
        prompts.take(17)
        draws = prompts.evaluation(10)
        assert ids(draws) == expected
        assert [draw.number for draw in draws] == list(range(10))
        assert prompts.evaluation(10) == draws
        assert prompts.evaluation(4) == draws[:4]
    # Asking for evaluation prompts is no draw.
    again = Prompts(source, seed=1, fraction=0.3)
    again.evaluation(10)
    assert again.take(5) == Prompts(source, seed=1, fraction=0.3).take(5)


def test_a_source_of_its_own_is_taken_whole():
    repeated = rows(4) * 2
    prompts = Prompts(repeated, fraction=1.0, shuffle=False)
    assert ids(prompts.evaluation(4)) == [0, 1, 2, 3]
    with pytest.raises(UserError, match="only 4 of 8"):
        prompts.evaluation(5)


def test_sources_that_only_have_len_and_getitem():
    class Source:
        def __len__(self):
            return 12

        def __getitem__(self, index, /):
            if not 0 <= index < 12:
                raise IndexError(index)
            return {"prompt": f"q {index}", "id": index}

    assert sorted(ids(Prompts(Source(), fraction=0.0).take(12))) == list(range(12))


def test_rows_of_the_configuration():
    source = Rows(Rows.Config(rows=rows(3)))
    assert len(source) == 3
    assert source[1] == {"prompt": "question 1", "id": 1}


# ---- errors


def test_empty_source():
    with pytest.raises(UserError, match="no rows"):
        Prompts([])


def test_nothing_left_to_train_on():
    held = [row for row in rows(50) if held_out(row["prompt"], 0.5)]
    with pytest.raises(
        UserError, match=f"prompts.held_out: 0.5 leaves none of {len(held)} prompts"
    ):
        Prompts(held, fraction=0.5).take(1)
    assert Prompts(held, fraction=0.0).take(1)


def test_too_few_held_out():
    with pytest.raises(UserError, match=r"asks for 1 held-out prompts, but only 0 of 3 rows"):
        Prompts(rows(3), fraction=0.0).evaluation(1)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"text": "hello", "id": 1}, r"no column 'prompt' \(it has text, id\)"),
        ({}, r"no column 'prompt' \(it has none\)"),
        ("hello", "expected a mapping, found str"),
        ({"prompt": ""}, "non-empty string or a list of messages"),
        ({"prompt": None}, "found None"),
        ({"prompt": []}, r"found \[\]"),
        ({"prompt": [{"role": "user"}]}, "'role' and 'content'"),
        ({"prompt": ["hello"]}, "'role' and 'content'"),
        ({"prompt": 3}, "found 3"),
    ],
)
def test_a_bad_row_is_named_by_its_number(row, told):
    with pytest.raises(UserError, match=f"prompts, row 0: .*{told}"):
        Prompts([row])
    source = [*rows(5), row]
    with pytest.raises(UserError, match=f"prompts, row 5: .*{told}"):
        Prompts(source, fraction=0.0).take(6)
    with pytest.raises(UserError, match=f"prompts, row 5: .*{told}"):
        Prompts(source, fraction=1.0).evaluation(6)


def test_messages_about_rows_are_short():
    with pytest.raises(UserError) as caught:
        Prompts([{"prompt": ["x" * 5000]}])
    assert len(str(caught.value)) <= 400


@pytest.mark.parametrize("prompt", ["cut \ud83d", [{"role": "user", "content": "cut \ud83d"}]])
def test_half_a_character_in_a_prompt_is_named(prompt):
    with pytest.raises(UserError, match=r"row 1: 'prompt' holds half of a surrogate pair.*ud83d"):
        list(Prompts([{"prompt": "whole"}, {"prompt": prompt}]).rows())


def test_half_a_character_in_the_key_is_no_reason_to_end():
    assert held_out("cut \ud83d", 1.0)
