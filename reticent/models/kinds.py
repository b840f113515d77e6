"""The built-in models by name, and how to make one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from reticent.errors import Refused
from reticent.models.model import Model

COMPUTE_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Kind:
    """Where a kind is made, and the sizes it has unless others are asked for.

    `module` has a function `make(compute_dtype=..., unknown=..., **sizes) -> Model`.
    """

    module: str
    about: str
    sizes: dict[str, int | None] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)


RECURRENT = "reticent.models.recurrent"
TRANSFORMER = "reticent.models.transformer"
IMAGES = "reticent.models.images"
HUGGINGFACE = "huggingface"
KINDS = {
    "lstm": Kind(
        RECURRENT,
        "an LSTM between two embeddings; by default StackOverflow's, of 4,050,748 parameters",
        {"vocabulary": 10_004, "embedding": 96, "hidden": 670},
        {"coupled": False, "tied": False},
    ),
    "lstm-tied": Kind(
        RECURRENT,
        "an LSTM under one embedding of unit norm; by default that of dpfedavg, of 1,346,144 parameters",
        {"vocabulary": 10_000, "embedding": 96, "hidden": 256},
        {"coupled": False, "tied": True},
    ),
    "cifg": Kind(
        RECURRENT,
        "a CIFG with recurrent projection between two embeddings; by default Gboard's, of 2,382,250 parameters",
        {"vocabulary": 10_000, "embedding": 96, "hidden": 670},
        {"coupled": True, "tied": False},
    ),
    "transformer": Kind(
        TRANSFORMER,
        "a decoder-only transformer; by default a small one, of 5,725,440 parameters",
        {"vocabulary": 10_004, "embedding": 256, "hidden": 688, "layers": 4, "heads": 4},
    ),
    "transformer-350m": Kind(
        TRANSFORMER,
        "a decoder-only transformer; by default of 341,099,520 parameters",
        {"vocabulary": 32_000, "embedding": 1024, "hidden": 2816, "layers": 24, "heads": 16},
    ),
    "image-digits": Kind(
        IMAGES,
        "a convolutional network for 10 classes of images of 8 by 8 values; by default of 9,530 parameters",
        {"vocabulary": 260, "hidden": 32},
        {"side": 8, "channels": 1, "widths": (16, 16), "largest": 16},
    ),
    "image-cifar": Kind(
        IMAGES,
        "a convolutional network for 10 classes of images of 32 by 32 in 3 channels; by default of 550,570 parameters",
        {"vocabulary": 260, "hidden": 128},
        {"side": 32, "channels": 3, "widths": (32, 64, 128), "largest": 255},
    ),
    HUGGINGFACE: Kind(
        "reticent.finetune.huggingface.model",
        "the model of a Hugging Face directory, model.checkpoint: GPT-2, Llama, Qwen2, Qwen3 or Gemma",
    ),
}


def make(
    kind: str,
    *,
    vocabulary: int | None = None,
    embedding: int | None = None,
    hidden: int | None = None,
    compute_dtype: str = "float32",
    unknown: int | None = 3,
    checkpointing: bool = False,
    checkpoint: Mapping[str, Any] | None = None,
    **more: int | None,
) -> Model:
    """The built-in model of this name; a size that is None is the kind's own.

    `vocabulary` counts the special ids too. `unknown` is the id of the unknown word, which is never counted as
    predicted (None: there is none). Parameters are float32; `compute_dtype` is what matrix products run in;
    `checkpointing`, for transformers, makes inner values anew in the backward pass rather than keep them. `checkpoint` is
    for "huggingface": what its own `make` takes besides.
    """
    if kind not in KINDS:
        raise Refused(f"There is no model {kind!r}; there are {', '.join(KINDS)}.")
    if compute_dtype not in COMPUTE_DTYPES:
        raise Refused(f"A model computes in {' or '.join(COMPUTE_DTYPES)}, not in {compute_dtype!r}.")
    chosen = KINDS[kind]
    sizes: dict[str, Any] = dict(chosen.sizes)
    for name, size in {"vocabulary": vocabulary, "embedding": embedding, "hidden": hidden, **more}.items():
        if size is None:
            continue
        if name not in sizes:
            raise Refused(f"A model of kind {kind!r} has no {name!r}; it takes {', '.join(sizes)}.")
        if size < 1:
            raise Refused(f"model.{name} must be at least 1, got {size}.")
        sizes[name] = size
    fixed = dict(chosen.fixed)
    if checkpointing:
        if chosen.module != TRANSFORMER and kind != HUGGINGFACE:
            raise Refused(f"A model of kind {kind!r} has no gradient checkpointing; it is for transformers.")
        fixed["checkpointing"] = True
    make_it = import_module(chosen.module).make
    if kind == HUGGINGFACE:
        sizes = dict(checkpoint or {})
    return make_it(kind=kind, compute_dtype=compute_dtype, unknown=unknown, **fixed, **sizes)
