"""check_algorithm: the properties that an update requires of an algorithm, on a toy policy."""

from collections.abc import Mapping

from groupwise.algorithm import Algorithm
from groupwise_testing.algorithm import loss, record, targets
from groupwise_testing.algorithm.case import Case
from groupwise_testing.algorithm.toy import Extra, Toy
from groupwise_testing.laws import hold

LAWS = (*targets.LAWS, *loss.LAWS, *record.LAWS)


def check_algorithm(algorithm: Algorithm, *, extras: Mapping[str, Extra] | None = None) -> None:
    """Check an algorithm on a toy policy. Raises AssertionError, naming the law that is broken.

    The toy provides log_probs, entropy, std, interval and value, each [b, t], and mean [b, t, 4].

    extras: further outputs of a policy that the algorithm needs, by name, as functions of the
        log-probs [b, t] that return [b, t, ...].
    """
    extras = extras or {}
    missing = algorithm.outputs - Toy(spread=0.0, extras=extras).provides
    if missing:
        names = ", ".join(map(repr, sorted(missing)))
        functions = ", ".join(f"{name!r}: lambda log_probs: ..." for name in sorted(missing))
        raise ValueError(
            f"check_algorithm: {type(algorithm).__name__} needs {names}, which the toy policy "
            f"does not provide; pass functions for them: extras={{{functions}}}"
        )
    hold(type(algorithm).__name__, LAWS, Case(algorithm, extras))
