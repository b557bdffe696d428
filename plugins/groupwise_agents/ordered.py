"""OrderedToolbox: tools that share a state, whose calls are made one after the other."""

from collections.abc import Sequence

from groupwise.tool_call import ToolCall
from groupwise_agents.toolbox import Answers, Toolbox


class OrderedToolbox(Toolbox):
    """The tools of an episode, of which a call may depend on earlier ones: a game, a file system.

    The calls of a turn are made in their order, each with the deadline, and none after one that
    ended the episode.
    """

    async def answers(self, calls: Sequence[ToolCall]) -> Answers:
        each = list[Answers]()
        for call in calls:
            each.append(await super().answers([call]))
            if each[-1].is_final:
                break
        return Answers(
            messages=[message for answers in each for message in answers.messages],
            errors=sum(answers.errors for answers in each),
            seconds=sum(answers.seconds for answers in each),
            is_final=any(answers.is_final for answers in each),
        )
