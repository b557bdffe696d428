"""What a test needs of a client: a request, and an episode whose player is scripted."""

import asyncio
import json
from http.client import HTTPConnection
from urllib.parse import urlsplit

from groupwise.environment import Reply
from groupwise.tool_call import ToolCall
from groupwise_agents.agent import Agent


def ask(base_url, body=None, *, path="/chat/completions", headers=None):
    """The status and the JSON of an answer; body: text as it is, anything else as JSON; None is a
    GET."""
    parts = urlsplit(base_url)
    connection = HTTPConnection(parts.netloc, timeout=30)
    data = body if isinstance(body, str | None) else json.dumps(body)
    connection.request("GET" if body is None else "POST", parts.path + path, data, headers or {})
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


def chat(base_url, *messages, **options):
    """The message that answers these."""
    body = {"model": "policy", "messages": [*messages], **options}
    status, answer = ask(base_url, body)
    assert status == 200, answer
    return answer["choices"][0]["message"]


def user(text):
    return {"role": "user", "content": text}


GOOD = {"model": "policy", "messages": [user("Hi")]}


def says(text="", *calls, **options):
    return Reply(text, "policy", calls=calls, **options)


ADD = ToolCall("add", {"a": [1, 2], "b": None})


class Player:
    """Says what a test wrote down, the last reply again and again; raises exceptions among them."""

    def __init__(self, replies):
        self.replies, self.contexts, self.options = replies, [], []

    async def __call__(self, context, *, limit=None, tools=None):
        self.contexts.append([*context])
        self.options.append((limit, tools))
        reply = self.replies[min(len(self.contexts), len(self.replies)) - 1]
        if isinstance(reply, Exception):
            raise reply
        return reply(context) if callable(reply) else reply


def played(agent, *replies, row=None, labels=("policy",), **options):
    """What `play` returned of one episode, and its player; agent: a function, or a Config."""
    environment, player = Agent(agent, **options), Player([*replies])

    async def play():
        try:
            return await environment.play(row or {"prompt": "Hi"}, dict.fromkeys(labels, player))
        finally:
            await environment.close()

    return asyncio.run(play()), player
