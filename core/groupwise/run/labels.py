"""Labels: that those of learners are nobody else's name."""

from groupwise.config.learners import LISTS
from groupwise.config.load import LoadedConfig
from groupwise.errors import UserError
from groupwise.rewards import OWN_ARGUMENTS
from groupwise.scoring.scorer import FAMILIES


def check_learner_labels(loaded: LoadedConfig) -> None:
    """Raise UserError for a label by which a metric or an argument of rewards is called, too."""
    config = loaded.config
    titles = [section.title for section in [*config.rewards, *config.watch]]
    for key in LISTS:
        for number, section in enumerate(getattr(config, key) or ()):
            label = section.label
            problem = None
            if label in FAMILIES:
                problem = f"the run's own metrics are called `{label}/...`"
            elif label in titles:
                problem = f"a reward is named {label!r}, and what it logs is called `{label}/...`"
            elif key == "chain" and label in OWN_ARGUMENTS:
                problem = f"rewards have an argument {label!r} of another meaning"
            if problem:
                path = (key, number, "label")
                raise UserError(loaded.origin.message(path, f"{problem}; choose another label"))
