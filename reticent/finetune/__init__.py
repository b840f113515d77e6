"""Datacenter training: ELS, ULS, example-level.

from reticent.finetune import work_of
from reticent.training import train

train(run_file, "runs/mine", work_of=work_of)       # algorithm = "els", "uls" or "dpsgd"
"""

from reticent.finetune.work import work_of

__all__ = ["work_of"]
