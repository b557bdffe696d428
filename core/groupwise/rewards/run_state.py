"""RunState: what rewards know of the run's progress."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The argument `trainer_state` of rewards: the fields of transformers' `TrainerState`.

    A run sets the steps done (`global_step`), the steps in all (`max_steps`), the passes over the
    training prompts (`epoch`), and which process this is. The other fields have transformers'
    defaults, since they concern its Trainer only.
    """

    global_step: int = 0
    max_steps: int = 0
    epoch: float = 0.0
    is_world_process_zero: bool = True
    is_local_process_zero: bool = True

    num_train_epochs: int = 0
    logging_steps: int = 500
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: int | None = None
    num_input_tokens_seen: int = 0
    total_flos: float = 0.0
    log_history: list[dict[str, float]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None
