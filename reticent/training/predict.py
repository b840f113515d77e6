"""What a trained model would say next."""

import jax
import numpy as np

from reticent.errors import Refused
from reticent.training.finished import TrainedModel


def next_words(trained: TrainedModel, text: str, count: int = 3) -> list[tuple[str, float]]:
    """The `count` likeliest next words after a text, with their probabilities. "" is the end of the text; the unknown
    word is never among them."""
    if not trained.model.of_tokens:
        raise Refused(
            f"A model of kind {trained.model.kind!r} is of images and predicts no words; see `reticent evaluate`."
        )
    tokenizer = trained.tokenizer
    ids = tokenizer.encode(text)[:-1]  # without the end
    scores = trained.model.apply(trained.params, ids[None].astype(np.int32))[0, -1]
    chances = np.asarray(jax.nn.softmax(scores.astype(np.float32)), np.float64)
    never = {tokenizer.pad, tokenizer.unknown, tokenizer.begin} - {tokenizer.end}
    order = [int(index) for index in np.argsort(-chances, kind="stable") if index not in never]
    return [(tokenizer.decode([index]), float(chances[index])) for index in order[:count]]
