"""What a family of checkpoints is: how its configuration describes a transformer, and what it calls the arrays."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from reticent.finetune.huggingface.config import Config
from reticent.models.transformer import Shape

Path = tuple[str, ...]
"""Where an array is in the parameters of our transformer."""


@dataclass(frozen=True)
class Place:
    """Where an array is in the files: under `name`, in which {} is the layer's number. `transposed` for [out, in]; `columns`
    for a part of a fused array, from the first of these columns to before the second; `less` is what is taken off before
    writing, and added when reading."""

    name: str
    transposed: bool = False
    columns: tuple[int, int] | None = None
    less: float = 0.0


@dataclass(frozen=True)
class Family:
    """`types` are its values of `model_type`; `prefix` is what names of arrays begin with (but not in a checkpoint without
    its head); `modules` are the linear layers by the names that adapters know them by; `unused` names arrays that are
    no parameters."""

    name: str
    types: tuple[str, ...]
    architectures: tuple[str, ...]
    prefix: str
    shape: Callable[[Config], Shape]
    places: Callable[[Shape, str], Mapping[Path, Place]]
    modules: Mapping[str, tuple[str, ...]]
    default_targets: tuple[str, ...]
    unused: re.Pattern[str] = field(default=re.compile(r"rotary_emb\.inv_freq$"))
