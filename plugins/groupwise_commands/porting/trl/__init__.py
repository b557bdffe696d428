"""TRL 1.16: `GRPOConfig`, what it inherits, the trainer's arguments, and those of `trl grpo`."""

from groupwise_commands.porting.option import Group
from groupwise_commands.porting.trl.arguments import ARGUMENTS
from groupwise_commands.porting.trl.engine import ENGINE
from groupwise_commands.porting.trl.launch import LAUNCH
from groupwise_commands.porting.trl.objective import OBJECTIVE
from groupwise_commands.porting.trl.open_r1 import OPEN_R1
from groupwise_commands.porting.trl.sampling import SAMPLING

TABLE: tuple[Group, ...] = (*SAMPLING, OBJECTIVE, ENGINE, *ARGUMENTS, *LAUNCH, OPEN_R1)
"""In the order in which options are applied."""
