"""A Hugging Face directory as a transformer and its parameters, and back."""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from reticent.errors import Refused
from reticent.finetune.huggingface import gemma, gpt2, llama, qwen
from reticent.finetune.huggingface.config import read_config
from reticent.finetune.huggingface.family import Family, Place
from reticent.finetune.huggingface.family import Path as Where
from reticent.finetune.huggingface.tensors import (
    Stored,
    aligned,
    digest_of,
    open_tensors,
    write_tensors,
)
from reticent.models.model import Params
from reticent.models.transformer import Shape, init

FAMILIES: tuple[Family, ...] = (gpt2.FAMILY, llama.FAMILY, qwen.FAMILY, gemma.FAMILY)
# What a directory has besides weights, for text to become tokens and tokens text.
BESIDE = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json",
    "chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model", "LICENSE", "LICENSE.txt", "NOTICE",
    "USE_POLICY.md",
)  # fmt: skip
SHARD_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Checkpoint:
    """A directory that was found to be whole: every key of its configuration and every array is accounted for."""

    directory: Path
    family: Family
    config: dict[str, Any]
    shape: Shape
    tensors: dict[str, Stored]

    @property
    def places(self) -> dict[Where, Place]:
        """Where each of our arrays is in the files."""
        return dict(self.family.places(self.shape, self.config["model_type"]))

    def digest(self) -> str:
        """Equal for checkpoints of the same configuration and weights; reads all of them."""
        return digest_of([self.directory / "config.json", *{stored.path for stored in self.tensors.values()}])

    def params(self, dtype_of: Callable[[Where], Any] = lambda where: np.float32) -> Params:
        """The parameters; `dtype_of` a place is the type it is held in. Beyond them a few MiB are in memory meanwhile."""
        like = jax.eval_shape(partial(init, self.shape), jax.random.key(0))
        places = self.places

        def read(path: Any, leaf: Any) -> jax.Array:
            where = tuple(key.key for key in path)
            held = aligned(leaf.shape, dtype_of(where))
            place = places[where]
            if where[0] == "layers":
                for layer in range(self.shape.layers):
                    _fill(held[layer], self.tensors[self._name(place.name.format(layer))], place)
            else:
                _fill(held, self.tensors[self._name(place.name)], place)
            return jax.device_put(held)

        return jax.tree_util.tree_map_with_path(read, like)

    def _name(self, name: str) -> str:
        return name.removeprefix(self.family.prefix) if self.headless else name

    @property
    def headless(self) -> bool:
        """Whether this was saved without its head: names then have no prefix."""
        return not any(name.startswith(self.family.prefix) for name in self.tensors)

    def check(self) -> None:
        """Refuses arrays that are missing, of another shape than the configuration says, or not known."""
        like = jax.eval_shape(partial(init, self.shape), jax.random.key(0))
        wanted: dict[str, tuple[int, ...]] = {}
        for name, parts in names_of(self.shape, self.places).items():
            wanted[self._name(name)] = _shape_in_file(like, parts)
        missing = sorted(wanted.keys() - self.tensors.keys())
        if missing:
            raise Refused(f"{self.directory} has no {_some(missing)}; fetch the checkpoint again.")
        for name, shape in wanted.items():
            found = self.tensors[name].shape
            if found != shape:
                raise Refused(
                    f"{self.tensors[name].path} has {name} of shape {list(found)}, and config.json says {list(shape)}; "
                    "the two are not of one checkpoint."
                )
        # A tied model's scores come from its embedding, whatever is kept beside it.
        tied = {"lm_head.weight"} if self.shape.tied else set()
        unknown = sorted(
            name
            for name in self.tensors.keys() - wanted.keys() - tied
            if not (self.family.unused.search(name) or name.endswith("rotary_emb.inv_freq"))
        )
        if unknown:
            raise Refused(
                f"{self.directory} has arrays that a {self.family.name} does not: {_some(unknown)}; it is not loaded rather "
                "than loaded approximately."
            )

    def write(self, params: Params, out: Path, shard_bytes: int = SHARD_BYTES) -> None:
        """Writes weights in float32, configuration and tokenizer into the directory `out`, as `transformers` loads them."""
        names = names_of(self.shape, self.places)
        sizes = {name: 4 * math.prod(_shape_in_file(params, parts)) for name, parts in names.items()}
        write_tensors(out, _arrays(params, names), sizes, shard_bytes)
        config = {key: value for key, value in self.config.items() if key not in ("dtype", "torch_dtype")}
        (out / "config.json").write_text(
            json.dumps({**config, "dtype": "float32", "torch_dtype": "float32"}, indent=2) + "\n"
        )
        self.copy_beside(out)

    def copy_beside(self, out: Path) -> None:
        """Copies tokenizer and licence."""
        for name in BESIDE:
            if (self.directory / name).is_file():
                shutil.copyfile(self.directory / name, out / name)


def open_checkpoint(directory: str | Path) -> Checkpoint:
    """The checkpoint in a directory. Refuses families, configurations and arrays that would not be loaded exactly."""
    directory = Path(directory)
    if not directory.is_dir():
        raise Refused(f"There is no directory {directory}.")
    config = read_config(directory)
    type_ = config.content.get("model_type")
    family = next((family for family in FAMILIES if type_ in family.types), None)
    if family is None:
        known = "; ".join(f"{family.name} ({', '.join(family.types)})" for family in FAMILIES)
        raise Refused(f"{config.path} is of model_type {type_!r}; there are {known}.")
    said = set(map(str, config.content.get("architectures") or ()))
    headless = {re.sub("(ForCausalLM|LMHeadModel)$", "Model", name) for name in family.architectures}
    if not said <= {*family.architectures, *headless}:
        raise Refused(
            f"{config.path} is of {', '.join(sorted(said))}, not a language model of its family "
            f"({', '.join(family.architectures)})."
        )
    if config.content.get("quantization_config"):
        raise Refused(f"{config.path} is of quantised weights; dequantise them first, or use the original checkpoint.")
    raw = dict(config.content)
    try:
        shape = family.shape(config)
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise Refused(f"{config.path} has a value of a kind that is not known here ({error}).") from None
    config.finish()
    found = Checkpoint(directory, family, raw, shape, open_tensors(directory))
    found.check()
    return found


Part = tuple[Where, int | None, Place]
"""One of our arrays (of its layer), and where it is."""


def names_of(shape: Shape, places: dict[Where, Place]) -> dict[str, list[Part]]:
    """The arrays of the files by name, each with our arrays that it is made of."""
    found: dict[str, list[Part]] = {}
    for where, place in places.items():
        for layer in range(shape.layers) if where[0] == "layers" else [None]:
            found.setdefault(place.name.format(layer), []).append((where, layer, place))
    return found


def _shape_in_file(tree: Any, parts: list[Part]) -> tuple[int, ...]:
    shapes = []
    for where, layer, place in parts:
        shape = _at(tree, where).shape
        shape = shape if layer is None else shape[1:]
        shapes.append(shape[::-1] if place.transposed else shape)
    return (*shapes[0][:-1], sum(shape[-1] for shape in shapes)) if len(shapes) > 1 else shapes[0]


def _at(tree: Any, where: Where) -> Any:
    for key in where:
        tree = tree[key]
    return tree


def _fill(held: np.ndarray, stored: Stored, place: Place) -> None:
    for first, piece in stored.rows():
        piece = piece if place.columns is None else piece[:, slice(*place.columns)]
        if held.ndim == 1:
            held[:] = piece[0]
        elif place.transposed:
            held[:, first : first + len(piece)] = piece.T
        else:
            held[first : first + len(piece)] = piece
    if place.less:
        held += place.less


def _arrays(params: Params, names: dict[str, list[Part]]) -> Iterator[tuple[str, np.ndarray]]:
    for name, parts in names.items():
        arrays = []
        for where, layer, place in parts:
            leaf = _at(params, where)
            array = np.asarray(leaf if layer is None else leaf[layer], np.float32) - np.float32(place.less)
            arrays.append(array.T if place.transposed else array)
        yield name, np.ascontiguousarray(arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
