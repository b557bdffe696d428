"""Asking a server: cache, retries, limits, schemas and refusals."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from threading import Event, Lock

import pytest
from PIL import Image
from tests.judge.conftest import metric
from tests.judge.stand_in import Reply, StandIn, text_of

from groupwise.kit import secrets
from groupwise.kit.errors import UserError
from groupwise.rewards import RewardError, SampleErrors
from groupwise_judge import client
from groupwise_judge.cache import Cache, key_of
from groupwise_judge.grading import Judge

ASPECTS = [{"name": "good", "description": "how good it is"}]
FOUR = '{"reasoning": "fine", "good": 4}'


@pytest.fixture
def slept(monkeypatch):
    """The pauses of the client, which do not take place."""
    pauses, sleep = [], asyncio.sleep

    async def pause(seconds):
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(client.asyncio, "sleep", pause)
    return pauses


def judge(server, **options):
    options = {"cache": None, "aspects": ASPECTS, **options}
    return Judge(Judge.Config(server=server.address, model="m", **options))


def values(scores):
    return scores.values[:, 0].tolist()


# ---- cache


def test_answers_outlive_the_run_that_got_them(serve, score, tmp_path):
    server, file = serve(lambda _: FOUR), str(tmp_path / "new" / "answers.sqlite")
    first = score(judge(server, cache=file), ["a", "b"])
    assert (len(server.requests), metric(first, "cache_hits")) == (2, 0)
    again = score(judge(server, cache=file), ["a", "b", "c"])
    assert values(again) == [0.75] * 3
    assert len(server.requests) == 3
    assert metric(again, "cache_hits") == pytest.approx(2 / 3)
    assert metric(again, "requests") == pytest.approx(1 / 3)


def test_equal_completions_are_asked_about_once(serve, score):
    server = serve(lambda _: FOUR)
    assert values(score(judge(server), ["a"] * 8)) == [0.75] * 8
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"temperature": 0.5},
        {"max_tokens": 99},
        {"options": {"top_p": 0.5}},
        {"aspects": [{"name": "good", "description": "something else"}]},
        {"response_format": "none"},
    ],
)
def test_whatever_changes_a_question_asks_it_again(serve, score, tmp_path, change):
    server, file = serve(lambda _: FOUR), str(tmp_path / "answers.sqlite")
    settings = {"server": server.address, "model": "m", "aspects": ASPECTS, "cache": file}
    for options in (settings, settings | change):
        score(Judge(Judge.Config(**options)), ["a"])
    assert len(server.requests) == 2


def test_another_server_is_another_judge(serve, score, tmp_path):
    """Of the same model's name: a stand-in for it, or other weights."""
    file = str(tmp_path / "answers.sqlite")
    strict, lenient = (serve(lambda _, good=good: f'{{"good": {good}}}') for good in (1, 5))
    for server, value in ((strict, 0), (lenient, 1), (strict, 0)):
        assert values(score(judge(server, cache=file, reasoning=False), ["a"])) == [value]
    assert (len(strict.requests), len(lenient.requests)) == (1, 1)


def test_a_cache_that_fails_during_a_run_costs_no_answer(serve, score, tmp_path, capsys):
    file = tmp_path / "answers.sqlite"
    reward = judge(serve(lambda _: FOUR), cache=str(file))
    reward.load()
    with sqlite3.connect(file) as other:
        other.execute(
            "CREATE TRIGGER full BEFORE INSERT ON answers "
            "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
        )
    assert values(score(reward, ["a", "b"])) == [0.75] * 2
    note = capsys.readouterr().err
    assert note.count("answers.sqlite' fails (database or disk is full)") == 1


def test_pictures_are_told_apart_by_their_pixels(serve, score):
    server = serve(lambda _: FOUR)
    pictures = [Image.new("RGB", (2, 2), color) for color in ("red", "blue", "red")]
    score(judge(server), pictures)
    assert len(server.requests) == 2
    assert text_of(server.requests[0]).count("[picture]") == 1


def test_unreadable_answers_are_not_kept(serve, score, tmp_path):
    replies = iter(["Good!", FOUR])
    server = serve(lambda _: next(replies))
    reward = judge(server, cache=str(tmp_path / "answers.sqlite"))
    assert score(reward, ["a"]).failed.tolist() == [True]
    assert values(score(reward, ["a"])) == [0.75]


def test_processes_write_to_one_file_at_the_same_time(tmp_path):
    """Each finds what was stored first, by whomever."""
    program = (
        "import sys; from groupwise_judge.cache import Cache; cache = Cache(sys.argv[1])\n"
        "print([cache.put(str(n), sys.argv[2]) for n in range(200)])"
    )
    file = str(tmp_path / "answers.sqlite")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, file, name], stdout=subprocess.PIPE, text=True
        )
        for name in "ab"
    ]
    first, second = (process.communicate()[0] for process in started)
    cache = Cache(file)
    assert first == second == f"{[cache.get(str(n)) for n in range(200)]}\n"


def test_a_file_of_something_else_is_refused_before_the_run(serve, score, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("not a database " * 100, encoding="utf-8")
    with pytest.raises(UserError, match=r"notes\.txt' cannot be used as a file of answers"):
        score(judge(serve(lambda _: FOUR), cache=str(file)), ["a"])
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})


# ---- requests that fail


def test_failed_requests_are_repeated_ever_more_slowly(serve, score, slept):
    replies = iter([Reply("busy", 503), Reply("busy", 500), Reply("busy", 429), FOUR])
    scores = score(judge(serve(lambda _: next(replies))), ["a"])
    assert values(scores) == [0.75]
    assert [pause for pause in slept if pause] == [0.5, 1.0, 2.0]
    assert (metric(scores, "requests"), metric(scores, "retries")) == (4, 3)


def test_a_server_says_when_to_come_back(serve, score, slept):
    replies = iter([Reply("slow down", 429, {"Retry-After": "7"}), FOUR])
    assert values(score(judge(serve(lambda _: next(replies))), ["a"])) == [0.75]
    assert 7 in slept


def test_a_server_that_never_answers_makes_failed_samples_and_no_zeros(serve, score, slept):
    server = serve(lambda _: Reply("overloaded", 503))
    scores = score(judge(server, retries=2), ["a", "b"])
    assert scores.failed.tolist() == [True, True]
    assert scores.total.isnan().all()
    assert len(server.requests) == 6
    assert metric(scores, "unreadable_unanswered") == 1
    assert scores.reasons[0] == (
        f"reward 'judge' got no answer from the judge at {server.address}, which failed with "
        f"status 503: overloaded"
    )


def test_a_request_has_a_deadline(serve, score):
    over = Event()
    scores = score(judge(serve(lambda _: over.wait(30) and FOUR), timeout=0.1, retries=0), ["a"])
    over.set()
    assert scores.failed.tolist() == [True]
    assert "did not answer within 0.1 s (`timeout`)" in scores.reasons[0]


def test_at_the_deadline_of_the_reward_what_was_answered_counts(serve):
    """The run cancels the call then."""
    over, logged = Event(), {}

    def hangs(request):
        if "slow" in text_of(request):
            over.wait(30)
        return FOUR

    async def called():
        server = serve(hangs)
        reward = judge(server)
        await reward(["p"], ["quick"])
        late = asyncio.create_task(
            reward(["p"] * 2, ["slow", "quick"], log_metric=logged.setdefault)
        )
        while len(server.requests) < 2:
            await asyncio.sleep(0.01)
        late.cancel()
        with pytest.raises(SampleErrors) as caught:
            await late
        over.set()
        reward.close()
        return caught.value

    error = asyncio.run(called())
    assert [str(value) for value in error.values] == ["nan", "0.75"]
    assert error.errors == {0: "got no answer within the `deadline` of its reward"}
    assert logged["unreadable_unanswered"] == 0.5


def test_what_nobody_waits_for_takes_no_place_of_later_requests(serve):
    """At the deadline: a slow request would hold the only place."""
    over = Event()

    def hangs(request):
        if "slow" in text_of(request):
            over.wait(30)
        return FOUR

    server = serve(hangs)

    async def called():
        reward = judge(server, concurrency=1)
        late = asyncio.create_task(reward(["p"], ["slow"]))
        both = asyncio.create_task(reward(["p"] * 2, ["slow", "slow"]))
        while not server.requests:
            await asyncio.sleep(0.01)
        late.cancel()
        with pytest.raises(SampleErrors):
            await late
        await asyncio.sleep(0)
        assert not both.done()  # it waits for the same answer, which still comes
        both.cancel()
        with pytest.raises(SampleErrors):
            await both
        after = await asyncio.wait_for(reward(["p"], ["quick"]), 10)
        over.set()
        reward.close()
        return after

    assert asyncio.run(called()) == [0.75]
    assert len(server.requests) == 2


def test_a_request_that_one_stops_waiting_for_is_answered_to_the_others(serve):
    over = Event()
    server = serve(lambda _: over.wait(30) and FOUR)

    async def called():
        reward = judge(server)
        late, other = (asyncio.create_task(reward(["p"], ["same"])) for _ in range(2))
        while not server.requests:
            await asyncio.sleep(0.01)
        late.cancel()
        with pytest.raises(SampleErrors):
            await late
        over.set()
        return await other

    assert asyncio.run(called()) == [0.75]
    assert len(server.requests) == 1


def test_a_rejected_request_fails_its_sample_alone(serve, score):
    def judges(request):
        return Reply("too long", 400) if "x" * 99 in text_of(request) else FOUR

    scores = score(judge(serve(judges)), ["a", "x" * 100, "b"])
    assert scores.failed.tolist() == [False, True, False]
    assert "rejected by its server with status 400: too long" in scores.reasons[1]
    assert metric(scores, "unreadable_refused") == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "set `api_key`"), (404, "is 'm' the name of its `model`")]
)
def test_what_only_settings_can_correct_stops_the_run_at_once(serve, score, status, hint):
    server = serve(lambda _: Reply("no", status))
    with pytest.raises(RewardError, match=f"refuses \\(status {status}: no\\): {hint}"):
        score(judge(server), ["a"])


def test_a_refusal_ends_the_requests_that_have_not_been_sent(serve):
    server = serve(lambda _: Reply("no", 401))

    async def called():
        reward = judge(server, concurrency=2)
        with pytest.raises(client.JudgeError, match="set `api_key`"):
            await reward(["p"] * 40, [f"completion {number}" for number in range(40)])
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(called())
    assert len(server.requests) < 20


def test_a_key_is_sent_and_a_wrong_one_refused_before_the_run(serve, score):
    server = serve(lambda _: FOUR)
    server.key = "right-key"
    score(judge(server, api_key="right-key\n"), ["a"])
    assert server.keys == ["Bearer right-key"]
    with pytest.raises(UserError, match=r"refuses \(status 401\): set `api_key`"):
        score(judge(server), ["a"])


@pytest.mark.parametrize("key", ["", "wrong\nkey", "clé"])
def test_a_key_that_no_header_can_have_is_refused_and_not_shown(serve, key):
    with pytest.raises(UserError, match="`api_key` is empty, or has characters") as caught:
        judge(serve(lambda _: FOUR), api_key=key)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize("status", [401, 503])
def test_no_message_has_the_password_of_an_address(serve, score, status):
    server = serve(lambda _: Reply("no", status))
    whole = server.address.replace("//", "//me:pass-word@")
    settings = {"server": f"{whole}/", "model": "m", "aspects": ASPECTS, "cache": None}
    reward = Judge(Judge.Config(**settings, retries=0))
    try:
        (message,) = score(reward, ["a"]).reasons
    except RewardError as error:
        message = str(error)
    assert f"the judge at {server.address}" in message
    assert "pass-word" not in message


def test_a_server_that_quotes_the_key_does_not_show_it(serve, score):
    """A key that was read from a file ends with a newline, which is not sent."""
    secrets.revealed(secrets.concealed({"api_key": "key-of-a-file\n"}))
    server = serve(lambda request: Reply("bad key: key-of-a-file", 401))
    with pytest.raises(RewardError, match="refuses") as caught:
        score(judge(server, api_key="key-of-a-file\n"), ["a"])
    assert "key-of-a-file" not in str(caught.value)


def test_a_server_that_is_not_there_is_reported_before_the_run(score):
    with StandIn(lambda _: FOUR) as server:
        reward = judge(server)
    with pytest.raises(UserError, match=r"the judge at .* cannot be reached .* is it running"):
        score(reward, ["a"])


# ---- limits


def test_no_more_requests_are_in_flight_than_permitted(serve, score):
    lock, flying, most, both = Lock(), [], [], Event()

    def judges(request):
        with lock:
            flying.append(request)
            most.append(len(flying))
            if len(flying) == 2:
                both.set()
        both.wait(30)
        with lock:
            flying.pop()
        return FOUR

    score(judge(serve(judges), concurrency=2), list("abcdefgh"))
    assert max(most) == 2


def test_requests_keep_to_a_rate(serve, score, slept):
    score(judge(serve(lambda _: FOUR), requests_per_minute=1), list("abc"))
    assert [round(pause / 60) for pause in slept] == [0, 1, 2]


# ---- requests


def test_a_request_has_the_schema_and_the_settings(serve, score):
    server = serve(lambda _: FOUR)
    score(judge(server, options={"top_p": 0.5, "seed": None}), ["a"])
    (request,) = server.requests
    assert {name: request.get(name) for name in ("temperature", "max_tokens", "top_p", "seed")} == {
        "temperature": 0.0,
        "max_tokens": 1024,
        "top_p": 0.5,
        "seed": None,
    }
    schema = request["response_format"]["json_schema"]
    assert schema["schema"]["properties"]["good"]["enum"] == [1, 2, 3, 4, 5]


def test_a_server_without_schemas_is_asked_without_them(serve, score, capsys):
    def judges(request):
        return Reply("what is response_format?", 400) if "response_format" in request else FOUR

    server = serve(judges)
    reward = judge(server, concurrency=1)
    assert values(score(reward, ["a"])) == values(score(reward, ["b"])) == [0.75]
    assert ["response_format" in request for request in server.requests] == [True, False, False]
    assert capsys.readouterr().err.count("takes no JSON schema") == 1


def test_one_rejection_does_not_end_schemas_that_work_for_another_request(serve, capsys):
    """The longest prompt is too long with the schema, and is answered late without it."""
    taken = Event()

    def judges(request):
        is_long, has_schema = "long" in text_of(request), "response_format" in request
        if is_long and has_schema:
            return Reply("too long", 400)
        if is_long:
            taken.wait(30)
        return FOUR

    server = serve(judges)

    async def called():
        reward = judge(server)
        late = asyncio.create_task(reward(["p"], ["long"]))
        while len(server.requests) < 2:  # it has been rejected, and asked again
            await asyncio.sleep(0.01)
        await reward(["p"], ["short"])
        taken.set()
        await late
        await reward(["p"], ["another"])

    asyncio.run(called())
    assert "response_format" in server.requests[-1]
    assert "takes no JSON schema" not in capsys.readouterr().err


def test_tokens_cost_and_latency_are_metrics(serve, score):
    reward = judge(serve(lambda _: FOUR), input_price=2.0, output_price=30.0)
    scores = score(reward, ["a", "b"])
    assert metric(scores, "input_tokens") == 100
    assert metric(scores, "output_tokens") == 10
    assert metric(scores, "cost") == pytest.approx((100 * 2 + 10 * 30) / 1e6)
    assert metric(scores, "latency") > 0


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (Reply(FOUR, finish_reason="length"), "cut"),
        (Reply(FOUR, finish_reason="content_filter"), "refused"),
        (Reply(None), "prose"),
    ],
)
def test_answers_that_did_not_end_do_not_count(serve, score, body, kind):
    scores = score(judge(serve(lambda _: body)), ["a"])
    assert scores.failed.tolist() == [True]
    assert metric(scores, f"unreadable_{kind}") == 1


def test_a_body_that_is_no_chat_completion_fails_its_sample(serve, score):
    server = serve(lambda _: FOUR)
    server.envelope = lambda _: json.loads('{"object": "error"}')
    scores = score(judge(server), ["a"])
    assert "got no chat completion from its server" in scores.reasons[0]


DEEP = "[" * 200_000


@pytest.mark.parametrize("text", [DEEP, f'{{"good": {DEEP}', f"{'[' * 900}{']' * 900}"])
@pytest.mark.parametrize("status", [200, 400, 503])
def test_nesting_in_an_answer_or_an_error_fails_its_sample(serve, score, slept, text, status):
    scores = score(judge(serve(lambda _: Reply(text, status)), retries=0), ["a"])
    assert scores.failed.tolist() == [True]


@pytest.mark.parametrize("envelope", [DEEP, '{"choices": ' + DEEP, "7", '{"choices": {"0": 1}}'])
def test_a_body_of_any_json_fails_its_sample(serve, score, monkeypatch, envelope):
    class Written(str):
        """JSON that is sent as it is."""

    server, dumps = serve(lambda _: FOUR), json.dumps
    server.envelope = lambda _: Written(envelope)
    monkeypatch.setattr(
        "tests.judge.stand_in.json.dumps",
        lambda value, **how: str(value) if isinstance(value, Written) else dumps(value, **how),
    )
    assert score(judge(server, retries=0), ["a"]).failed.tolist() == [True]


@pytest.mark.parametrize(
    "count", [10**400, -1, True, 1e308, "many", None, [1]], ids=lambda count: str(count)[:9]
)
def test_counts_that_cannot_be_ones_of_tokens_do_not_count(serve, score, count):
    server = serve(lambda _: FOUR)
    server.envelope = lambda whole: {**whole, "usage": {"prompt_tokens": count}}
    scores = score(judge(server, input_price=1.0), ["a"])
    assert values(scores) == [0.75]
    assert (metric(scores, "input_tokens"), metric(scores, "cost")) == (0, 0)


@pytest.mark.parametrize(
    "row", ["not json", None, 5, b"\xff", '{"good": 1}', '"{}"', DEEP, '"Good!"', '["a"]', "true"]
)
def test_a_damaged_row_of_the_cache_is_asked_for_again_once(serve, score, tmp_path, row):
    server, file = serve(lambda _: FOUR), tmp_path / "answers.sqlite"
    assert values(score(judge(server, cache=str(file)), ["a"])) == [0.75]
    with sqlite3.connect(file) as other:
        other.execute("UPDATE answers SET answer = ?", (row,))
    for _ in range(2):
        assert values(score(judge(server, cache=str(file)), ["a"])) == [0.75]
    assert len(server.requests) == 2
