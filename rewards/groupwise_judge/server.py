"""JudgeServer: asks a model on a server, from the cache where it was asked before."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from groupwise.kit import terminal
from groupwise_judge.cache import Cache, key_of
from groupwise_judge.client import Client, RejectedError
from groupwise_judge.digests import digest_of
from groupwise_judge.form import Answer, UnreadableError, Value
from groupwise_judge.messages import Message
from groupwise_judge.settings import ServerSettings
from groupwise_judge.usage import Usage

Read = tuple[dict[str, Value], str] | UnreadableError
"""The values of an answer and its reasons, or why it does not count."""


@dataclass(frozen=True)
class Question:
    """What a judge is asked once: messages, and the form of the answer."""

    chat: Sequence[Message]
    form: Answer


@dataclass(frozen=True)
class Verdict:
    """All answers to one question: the values that could be read, their reasons, and why others
    could not be read."""

    answers: Sequence[dict[str, Value]]
    reasons: Sequence[str]
    failures: Sequence[UnreadableError]

    @property
    def failure(self) -> str | None:
        """Why there is no verdict: half of the answers or more do not count. None if there is one.

        An exception here and there says nothing; but if a completion makes its judge stumble, a
        mean over what is left would be one that the completion has chosen.
        """
        if len(self.answers) > len(self.failures):
            return None
        return self.failures[0].reason

    def mean(self, name: str) -> float:
        """The mean of an integer field."""
        return sum(int(answer[name]) for answer in self.answers) / len(self.answers)


@dataclass
class _Pending:
    """A request on its way, and how many wait for its answer."""

    task: asyncio.Task[str]
    waiting: int = 0


class JudgeServer:
    """A model on a server. Equal questions, also those that wait for an answer, are asked once."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._client, self._cache = Client(settings), Cache(settings.cache)
        self._pending: dict[str, _Pending] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        known = {"auto": None, "json_schema": True, "none": False}
        self._takes_schema = known[settings.response_format]

    def load(self) -> None:
        """Open the cache, and see whether the server can be reached and takes the key."""
        self._cache.open()
        self._client.check()

    def close(self) -> None:
        """Close the cache."""
        self._cache.close()

    async def verdicts(self, questions: Sequence[Question], usage: Usage) -> list[Verdict]:
        """The verdict of each question; questions that are not answered when this is cancelled have
        none. Raises JudgeError if the server cannot be used at all."""
        numbers = range(self.settings.answers)
        if not questions:
            return []
        if self._loop is not asyncio.get_running_loop():  # nobody ends the tasks of another loop
            self._loop, self._pending = asyncio.get_running_loop(), {}
        tasks = [
            asyncio.create_task(self._answer(question, number, usage))
            for question in questions
            for number in numbers
        ]
        # At the reward's deadline: what has been answered counts, the rest has failed.
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        usage.unreadable["unanswered"] += sum(not task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        answers = [_taken(task) for task in tasks]
        size = len(numbers)
        return [_verdict(answers[start : start + size]) for start in range(0, len(answers), size)]

    async def _answer(self, question: Question, number: int, usage: Usage) -> Read:
        usage.answers += 1
        try:
            return question.form.read(await self._content(question, number, usage))
        except UnreadableError as error:
            usage.unreadable[error.kind] += 1
            return error

    async def _content(self, question: Question, number: int, usage: Usage) -> str:
        """The text of an answer: from the cache, of an equal question that waits, or the server's.

        Only what can be read is stored: a judge that answers prose today may be corrected.
        """
        body = self._body(number)
        chat = [{**message, "content": _keyed(message["content"])} for message in question.chat]
        form = [self.settings.response_format, question.form.schema()]
        # Two servers may give one name to two models; a server may take no seed.
        key = key_of([self.settings.address, body, chat, form, number])
        if (stored := self._stored(key, question.form)) is not None:
            usage.cached += 1
            return stored
        if key in self._pending:
            usage.cached += 1
        else:
            task = asyncio.create_task(self._asked(question, body, key, usage))
            self._pending[key] = _Pending(task)
        return await self._awaited(key)

    def _stored(self, key: str, form: Answer) -> str | None:
        """The stored answer. One that cannot be read was damaged since; it is removed."""
        stored = self._cache.get(key)
        if stored is None:
            return None
        try:
            form.read(str(stored))
        except UnreadableError:
            self._cache.remove(key)
            return None
        return str(stored)

    async def _awaited(self, key: str) -> str:
        """The answer to a pending question. The last who stops waiting ends the request: it would
        take the place of later ones, and nobody would count what it costs."""
        pending = self._pending[key]
        pending.waiting += 1
        try:
            return await asyncio.shield(pending.task)
        finally:
            pending.waiting -= 1
            if not pending.waiting:
                pending.task.cancel()  # does nothing to one that has ended
                if self._pending.get(key) is pending:
                    del self._pending[key]

    def _body(self, number: int) -> dict[str, Any]:
        """A request without its messages; answers to one question differ by their seed."""
        settings = self.settings
        temperature = settings.temperature
        if temperature is None:
            temperature = 0.0 if settings.answers == 1 else 1.0
        body = {
            "model": settings.model,
            "temperature": temperature,
            "max_tokens": settings.max_tokens,
            "seed": number,
            **settings.options,
        }
        return {name: value for name, value in body.items() if value is not None}

    async def _asked(self, question: Question, body: dict[str, Any], key: str, usage: Usage) -> str:
        answer = await self._completed({**body, "messages": question.chat}, question.form, usage)
        usage.add_tokens(answer.get("usage"))
        text = _text(answer)
        question.form.read(text)
        return str(self._cache.put(key, text))

    async def _completed(self, body: dict[str, Any], form: Answer, usage: Usage) -> dict[str, Any]:
        """The server's answer, by the schema if it takes schemas.

        Whether it does shows at the first request that it rejects: if it takes the same one without
        a schema, later ones have none either.
        """
        fields = form.schema()
        if self._takes_schema is False or fields is None:
            return await self._client.complete(body, usage)
        schema = {"name": "judgement", "strict": True, "schema": fields}
        constrained = {**body, "response_format": {"type": "json_schema", "json_schema": schema}}
        try:
            answer = await self._client.complete(constrained, usage)
        except RejectedError:
            if self._takes_schema:
                raise
            answer = await self._client.complete(body, usage)
            if self._takes_schema is None:  # no other request has shown meanwhile that it does
                self._note_without_schema()
        else:
            self._takes_schema = True
        return answer

    def _note_without_schema(self) -> None:
        terminal.say(
            f"note: the judge at {self.settings.address} takes no JSON schema; its answers are "
            f"read all the same, and those of another form are failed samples"
        )
        self._takes_schema = False


def _keyed(content: Any) -> Any:
    """A content as JSON for the cache's key: a picture by the hash of its pixels."""
    if isinstance(content, str):
        return content
    return [
        block if block["type"] == "text" else {"image": digest_of(block["image"]).hex()}
        for block in content
    ]


def _text(answer: dict[str, Any]) -> str:
    """The text of a chat completion; UnreadableError if it is cut off, refused or missing."""
    try:
        choice = answer["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
        text = message.get("content")
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise UnreadableError("unanswered", "got no chat completion from its server") from error
    if message.get("refusal") or reason == "content_filter":
        raise UnreadableError(
            "refused", f"was refused by its judge: {message.get('refusal')!r:.120}"
        )
    if reason == "length":
        raise UnreadableError("cut", "got an answer that was cut off: raise `max_tokens`")
    if not isinstance(text, str):
        raise UnreadableError("prose", "got an answer without text")
    return text


def _taken(task: asyncio.Task[Read]) -> Read:
    """The answer of a task; one that has not ended was too late. Raises JudgeError."""
    if task.done() and not task.cancelled():
        return task.result()
    return UnreadableError("unanswered", "got no answer within the `deadline` of its reward")


def _verdict(answers: Sequence[Read]) -> Verdict:
    read = [answer for answer in answers if not isinstance(answer, UnreadableError)]
    failures = [answer for answer in answers if isinstance(answer, UnreadableError)]
    return Verdict([values for values, _ in read], [reason for _, reason in read], failures)
