"""Text that a model writes, one token after another."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.data.tokenizers import Tokenizer
from reticent.errors import Refused
from reticent.models import Model


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the likeliest at temperature 0, otherwise drawn, of the `top` likeliest (0: of all)."""

    temperature: float = 0.8
    top: int = 40
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top < 0:
            raise Refused(f"temperature and top are at least 0, got {self.temperature} and {self.top}.")


def generate(
    model: Model,
    params: Any,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int = 50,
    sampling: Sampling = Sampling(),
    ends: Collection[int] = (),
) -> str:
    """What a model writes after a prompt, up to `tokens` tokens or its end token (or one of `ends`). The unknown word and
    padding are never written. The same seed gives the same text on the same machine."""
    ids = tokenizer.encode(prompt)[:-1].astype(np.int32)  # without the end
    start, last = len(ids), {tokenizer.end, *ends}
    # A file without a padding token has something to say at the id that stands for it.
    unsaid = {tokenizer.unknown, tokenizer.begin} | ({tokenizer.pad} if tokenizer.kind == "words" else set())
    never = [one for one in unsaid - last if 0 <= one < model.vocabulary]
    # Beyond the tokenizer's, an embedding may have rows for nothing.
    never.extend(range(tokenizer.size, model.vocabulary))
    closed = jnp.zeros(model.vocabulary).at[jnp.asarray(never, jnp.int32)].set(-jnp.inf)

    @jax.jit
    def next_one(params: Any, frozen: Any, row: jax.Array, place: jax.Array, key: jax.Array) -> jax.Array:
        scores = model.holding(frozen).apply(params, row[None])[0, place].astype(jnp.float32) + closed
        if sampling.temperature == 0:
            return jnp.argmax(scores)
        if sampling.top:
            lowest = jax.lax.top_k(scores, min(sampling.top, model.vocabulary))[0][-1]
            scores = jnp.where(scores >= lowest, scores, -jnp.inf)
        return jax.random.categorical(key, scores / sampling.temperature)

    written: list[int] = []
    for number, key in enumerate(jax.random.split(jax.random.key(sampling.seed), tokens)):
        # A few lengths to compile, not one for each token.
        length = 1 << max(4, int(len(ids) - 1).bit_length())
        row = np.zeros(length, np.int32)
        row[: len(ids)] = ids
        try:
            one = int(next_one(params, model.frozen, row, len(ids) - 1, key))
        except Refused:
            if number:
                break  # its positions are used up
            row = row[: len(ids)]
            one = int(next_one(params, model.frozen, row, len(ids) - 1, key))
        if one in last:
            break
        written.append(one)
        ids = np.append(ids, np.int32(one))
    return tokenizer.decode(ids[:start].tolist() + written)
