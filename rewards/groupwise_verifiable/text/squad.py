"""How SQuAD compares answers, and Search-R1 with it: by their words, arXiv:1606.05250."""

import re
import string
from collections import Counter
from functools import lru_cache

from groupwise_verifiable.text.accepted import Accepted, AcceptedConfig

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@lru_cache(maxsize=512)
def normal(text: str) -> str:
    """Returns a text in lower case, without ASCII's punctuation, articles and further white space.

    A text of nothing else, such as the name "The The", keeps its articles and its punctuation:
    otherwise every text without words would equal it.
    """
    lower = text.lower()
    plain = _ARTICLES.sub(" ", lower.translate(_NO_PUNCTUATION))
    return " ".join(plain.split()) or " ".join(lower.split())


def word_f1(answer: str, gold: str) -> float:
    """Returns the harmonic mean of the shares of words that both have, 0.0 to 1.0."""
    answers, golds = Counter(normal(answer).split()), Counter(normal(gold).split())
    common = (answers & golds).total()
    return 2 * common / (answers.total() + golds.total()) if common else 0.0


class AnswerF1(Accepted):
    """The F1 of the words of an answer and of gold, 0 to 1; of several gold answers the best.

    Words are those of SQuAD's evaluation (arXiv:1606.05250): in lower case, without punctuation and
    articles. With p the share of the answer's words that gold has, and r that of gold's words that
    the answer has, it is 2 p r / (p + r). With `extract: tag`, a completion without the tag gets 0.
    """

    judges = False
    name = "answer_f1"

    class Config(AcceptedConfig):
        """Settings of the reward `answer_f1`."""

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or self.Config())

    def score(self, answer: str, gold: str) -> float:
        """Returns the F1 of the words."""
        return word_f1(answer, gold)
