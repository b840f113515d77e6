"""What is trained: language models as plain JAX functions.

`make(kind, ...)` gives a built-in one; `language_model(init, apply, ...)` makes one of any pair of JAX functions.
Importing this package does not import JAX, so that run files can be checked without it.
"""

from reticent.models.kinds import KINDS, make
from reticent.models.model import Model, language_model

__all__ = ["KINDS", "Model", "language_model", "make"]
