"""AgainstSampler: the usual parts of variants whose ratio is to whatever drew the decisions."""

from torch import Tensor

from groupwise.algorithm import Batch
from groupwise.algorithms.parts.composed import Composed
from groupwise.algorithms.parts.divisor import Divisor
from groupwise.algorithms.parts.entropy import EntropyBonus
from groupwise.algorithms.parts.observations import Observations
from groupwise.algorithms.parts.part import Options
from groupwise.algorithms.parts.reference import ReferenceKL
from groupwise.algorithms.parts.teacher import Teacher


class AgainstSampler(
    Composed,
    divisor=Divisor,
    observations=Observations,
    entropy=EntropyBonus,
    divergence=ReferenceKL,
    teacher=Teacher,
):
    """The parts of `Usual` without importance weights, which the ratio itself contains.

    A variant adds the option `importance`; "none" compares the policy with itself before the step's
    first update.
    """

    class Config(
        Divisor.Config,
        Observations.Config,
        EntropyBonus.Config,
        ReferenceKL.Config,
        Teacher.Config,
    ):
        importance: str = "none"

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.corrects = self.config.importance != "none"

    def drawn_log_probs(self, batch: Batch) -> Tensor:
        """[b, t]: of what drew the decisions; with `importance: none` the old ones."""
        old = batch["old_log_probs"]
        return batch.get("sampler_log_probs", old) if self.corrects else old
