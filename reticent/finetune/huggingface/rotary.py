"""The angles of rotary positions as configurations give them, once per pair of entries."""

import math
from typing import Any

import numpy as np

from reticent.errors import Refused
from reticent.finetune.huggingface.config import Config

Rates = tuple[tuple[float, ...], float]
"""Angles per position of each pair of entries of a head, and what the turned heads are multiplied by."""

_KNOWN = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    },
}  # fmt: skip


def rotary(config: Config, width: int, base: float) -> Rates:
    """The rates of a model whose layers all turn alike: `rope_parameters` as transformers 5 writes them, or `rope_theta` and
    `rope_scaling` as before; `base` is the family's own."""
    said = dict(config.take("rope_parameters", {}))
    said = {**dict(config.take("rope_scaling", {})), **said}
    base = said.pop("rope_theta", config.take("rope_theta", base))
    return rates(said, width, base, config)


def rates(said: dict[str, Any], width: int, base: float, config: Config) -> Rates:
    """The rates of one description. Refuses a kind, or a key, that is not known."""
    said = {key: value for key, value in said.items() if value is not None}
    old, new = said.pop("type", None), said.pop("rope_type", None)
    kind = new or old or "default"
    if kind not in _KNOWN:
        raise Refused(
            f"{config.path} has rotary positions of type {kind!r}, which are not known here; known are "
            f"{', '.join(_KNOWN)}."
        )
    if said.pop("partial_rotary_factor", 1.0) != 1:
        raise Refused(f"{config.path} turns a part of each head only (partial_rotary_factor), which is not known here.")
    unknown = sorted(said.keys() - _KNOWN[kind])
    if unknown:
        raise Refused(
            f"{config.path} has {', '.join(unknown)} in its rotary positions of type {kind!r}: not known here."
        )
    plain = float(base) ** -(np.arange(0, width, 2) / width)
    gain = 1.0
    try:
        if kind == "linear":
            plain = plain / said["factor"]
        elif kind == "llama3":
            plain = _llama3(plain, said)
        elif kind == "yarn":
            plain, gain = _yarn(plain, said, width, float(base))
    except KeyError as error:
        raise Refused(f"{config.path} has rotary positions of type {kind!r} without {error}; restore it.") from None
    return tuple(plain.tolist()), gain


def _llama3(plain: np.ndarray, said: dict[str, Any]) -> np.ndarray:
    """Fast pairs stay, slow ones turn `factor` times slower, between them it goes over smoothly."""
    turns = said["original_max_position_embeddings"] * plain / (2 * math.pi)
    low, high = said["low_freq_factor"], said["high_freq_factor"]
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - share) * plain / said["factor"] + share * plain


def _yarn(plain: np.ndarray, said: dict[str, Any], width: int, base: float) -> tuple[np.ndarray, float]:
    """Peng et al. 2023: pairs that turn fast stay, slow ones turn `factor` times slower, linear in the pair between."""
    factor, longest = said["factor"], said["original_max_position_embeddings"]

    def pair_that_turns(times: float) -> float:
        return width * math.log(longest / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_that_turns(said.get("beta_fast") or 32), pair_that_turns(said.get("beta_slow") or 1)
    if said.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    slowed = np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)

    def gain(by: float = 1.0) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    if said.get("attention_factor") is not None:
        times = said["attention_factor"]
    elif said.get("mscale") and said.get("mscale_all_dim"):
        times = gain(said["mscale"]) / gain(said["mscale_all_dim"])
    else:
        times = gain()
    return slowed * plain / factor + (1 - slowed) * plain, float(times)
