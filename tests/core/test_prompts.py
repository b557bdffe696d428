"""Prompts: the held-out split, the order, resuming."""

import json

import pytest

from groupwise.kit.errors import UserError
from groupwise.prompts.draws import Prompts
from groupwise.prompts.split import held_out
from groupwise.registry import installed


def rows(count=60):
    return [{"prompt": f"question {number}", "id": number} for number in range(count)]


def ids(draws):
    return [draw.row["id"] for draw in draws]


def test_the_split_is_disjoint_and_of_the_configured_size():
    prompts = Prompts(rows(2000), fraction=0.25)
    held_count = sum(held_out(row["prompt"], 0.25) for row in rows(2000))
    assert 430 < held_count < 570
    evaluated = set(ids(prompts.evaluation(held_count)))
    trained = set(ids(prompts.take(2000 - held_count)))
    assert not evaluated & trained
    assert len(evaluated | trained) == 2000


def test_the_split_does_not_depend_on_seed_order_or_added_rows():
    evaluated = {row["id"] for row in rows(50) if held_out(row["prompt"], 0.3)}
    for seed in range(3):
        for source in (rows(50), rows(50)[::-1], rows(80)):
            prompts = Prompts(source, seed=seed, fraction=0.3)
            trained = set(ids(prompts.take(3 * len(source))))
            assert not evaluated & trained


def test_a_larger_share_only_adds_held_out_prompts():
    texts = [row["prompt"] for row in rows(300)]
    smaller = {text for text in texts if held_out(text, 0.1)}
    assert smaller < {text for text in texts if held_out(text, 0.4)}
    assert not any(held_out(text, 0.0) for text in texts)
    assert all(held_out(text, 1.0) for text in texts)


def test_equal_questions_are_on_the_same_side_of_the_split():
    source = [
        {"prompt": f"{style} {row['prompt']}", "question": row["prompt"], "id": row["id"]}
        for row in rows()
        for style in ("Please:", "Now:")
    ]
    prompts = Prompts(source, fraction=0.4, key="question")
    held_count = len({row["id"] for row in source if held_out(row["question"], 0.4)})
    evaluated = ids(prompts.evaluation(held_count))
    assert len(evaluated) == len(set(evaluated)) == held_count  # each question once
    assert not set(evaluated) & set(ids(prompts.take(200)))
    with pytest.raises(UserError, match=f"only {held_count} of 120"):
        prompts.evaluation(held_count + 1)


def test_a_column_is_the_key_only_if_the_source_or_the_configuration_names_it():
    source = [{**row, "question": "the same for all"} for row in rows()]
    expected = [row["id"] for row in source if held_out(row["prompt"], 0.4)]
    prompts = Prompts(source, fraction=0.4)
    assert ids(prompts.evaluation(len(expected))) == expected

    class SourceWithKey(list):
        key = "question"

    prompts_by_key = Prompts(SourceWithKey(source), fraction=0.4)
    assert prompts_by_key.question(source[0]) == '"the same for all"'
    assert len({prompts_by_key.is_held_out(row) for row in source}) == 1
    assert (
        ids(Prompts(SourceWithKey(source), fraction=0.4, key="prompt").evaluation(len(expected)))
        == expected
    )
    with pytest.raises(
        UserError, match=r"prompts\.key: a row has no column 'asks' \(it has prompt"
    ):
        Prompts(source, fraction=0.4, key="asks").take(1)


def test_rows_that_the_policy_skips_are_never_drawn():
    plain, prompts = Prompts(rows(), fraction=0.3), Prompts(rows(), fraction=0.3)
    prompts.skips = lambda row: row["id"] % 5 == 0
    evaluated = prompts.evaluation(100, strict=False)
    assert {row % 5 for row in ids(evaluated)} == {1, 2, 3, 4}
    expected = [number for number in ids(plain.take(60)) if number % 5]
    assert ids(prompts.take(30)) == expected[:30]
    assert prompts.skipped > 0
    resumed = Prompts(rows(), fraction=0.3)
    resumed.skips = prompts.skips
    resumed.load_state_dict(prompts.state_dict())
    assert (ids(resumed.take(20)), resumed.skipped) == (ids(prompts.take(20)), prompts.skipped)
    prompts.skips = lambda _: True
    with pytest.raises(UserError, match=r"leaves none of 60 prompts .*the policy skips"):
        prompts.take(1)


def test_prompts_may_be_lists_of_messages():
    source = [{"prompt": [{"role": "user", "content": f"q {n}"}], "id": n} for n in range(40)]
    prompts = Prompts(source, fraction=0.5)
    expected = [row["id"] for row in source if held_out(row["prompt"], 0.5)]
    assert ids(prompts.evaluation(len(expected))) == expected
    assert set(ids(prompts.take(40 - len(expected)))).isdisjoint(expected)
    # The order of a message's keys does not matter.
    reordered = {"content": "q 1", "role": "user"}
    assert held_out([reordered], 0.5) == held_out(source[1]["prompt"], 0.5)


def test_an_epoch_has_every_prompt_once_in_a_new_order():
    prompts = Prompts(rows(20), fraction=0.0)
    epochs = [ids(prompts.take(20)) for _ in range(4)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert epochs[0] != list(range(20))


def test_the_order_is_determined_by_the_seed():
    def order(seed):
        return ids(Prompts(rows(20), seed=seed, fraction=0.0).take(20))

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_without_shuffling_the_order_is_that_of_the_source():
    prompts = Prompts(rows(5), fraction=0.0, shuffle=False)
    assert ids(prompts.take(12)) == [0, 1, 2, 3, 4] * 2 + [0, 1]


def test_draws_are_numbered_without_gaps():
    prompts = Prompts(rows(10), fraction=0.3)
    numbers = [draw.number for count in (3, 1, 30) for draw in prompts.take(count)]
    assert numbers == list(range(34))


@pytest.mark.parametrize("count", [0, 1, 7, 20, 33, 61])
def test_resuming_continues_in_the_middle_of_an_epoch(count):
    uninterrupted = Prompts(rows(20), seed=5, fraction=0.2)
    uninterrupted.take(count)
    state = json.loads(json.dumps(uninterrupted.state_dict()))
    expected = uninterrupted.take(50)
    resumed = Prompts(rows(20), seed=5, fraction=0.2)
    resumed.take(3)  # earlier draws do not matter
    resumed.load_state_dict(state)
    assert resumed.take(50) == expected


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
    # Evaluation prompts do not count as draws.
    other = Prompts(source, seed=1, fraction=0.3)
    other.evaluation(10)
    assert other.take(5) == Prompts(source, seed=1, fraction=0.3).take(5)


def test_an_evaluation_source_is_used_completely_without_repeats():
    repeated = rows(4) * 2
    prompts = Prompts(repeated, fraction=1.0, shuffle=False)
    assert ids(prompts.evaluation(4)) == [0, 1, 2, 3]
    with pytest.raises(UserError, match="only 4 of 8"):
        prompts.evaluation(5)


def test_a_source_needs_only_len_and_getitem():
    class Source:
        def __len__(self):
            return 12

        def __getitem__(self, index, /):
            if not 0 <= index < 12:
                raise IndexError(index)
            return {"prompt": f"q {index}", "id": index}

    assert sorted(ids(Prompts(Source(), fraction=0.0).take(12))) == list(range(12))


def test_rows_may_be_in_the_configuration():
    kind = installed().load("prompts", "rows")
    source = kind(kind.Config(rows=rows(3)))
    assert len(source) == 3
    assert source[1] == {"prompt": "question 1", "id": 1}


# ---- errors


def test_an_empty_source_is_refused():
    with pytest.raises(UserError, match="no rows"):
        Prompts([])


def test_held_out_must_leave_prompts_for_training():
    source = [row for row in rows(50) if held_out(row["prompt"], 0.5)]
    with pytest.raises(
        UserError, match=f"prompts.held_out: 0.5 leaves none of {len(source)} prompts"
    ):
        Prompts(source, fraction=0.5).take(1)
    assert Prompts(source, fraction=0.0).take(1)


def test_too_few_held_out_prompts_are_refused():
    with pytest.raises(UserError, match=r"asks for 1 held-out prompts, but only 0 of 3 rows"):
        Prompts(rows(3), fraction=0.0).evaluation(1)


@pytest.mark.parametrize(
    ("row", "message"),
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
def test_a_bad_row_is_named_by_its_number(row, message):
    with pytest.raises(UserError, match=f"prompts, row 0: .*{message}"):
        Prompts([row])
    source = [*rows(5), row]
    with pytest.raises(UserError, match=f"prompts, row 5: .*{message}"):
        Prompts(source, fraction=0.0).take(6)
    with pytest.raises(UserError, match=f"prompts, row 5: .*{message}"):
        Prompts(source, fraction=1.0).evaluation(6)


def test_error_messages_about_rows_are_short():
    with pytest.raises(UserError) as caught:
        Prompts([{"prompt": ["x" * 5000]}])
    assert len(str(caught.value)) <= 400


@pytest.mark.parametrize("prompt", ["cut \ud83d", [{"role": "user", "content": "cut \ud83d"}]])
def test_an_unpaired_surrogate_in_a_prompt_is_refused(prompt):
    with pytest.raises(UserError, match=r"row 1: 'prompt' holds half of a surrogate pair.*ud83d"):
        list(Prompts([{"prompt": "whole"}, {"prompt": prompt}]).rows())


def test_an_unpaired_surrogate_in_the_key_of_the_split_is_allowed():
    assert held_out("cut \ud83d", 1.0)
