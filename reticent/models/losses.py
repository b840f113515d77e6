"""Next-token cross-entropy with its gradient in closed form."""

import jax
import jax.numpy as jnp

from reticent.models import metrics


def next_token_loss(
    logits: jax.Array, targets: jax.Array, unknown: int | None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The mean cross-entropy over the targets that are not -1 (0 where all are), and the metric sums."""
    logits = logits.astype(jnp.float32)
    losses = token_losses(logits, targets)
    sums = metrics.sums(jax.lax.stop_gradient(losses), logits, targets, unknown)
    return losses.sum() / jnp.maximum(sums["tokens"], 1.0), sums


@jax.custom_vjp
def token_losses(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """-log softmax(logits)[target], 0 where the target is -1. float32[...] of float32[..., vocabulary]."""
    return _forward(logits, targets)[0]


def _forward(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    return jnp.where(targets >= 0, normaliser - chosen, 0.0), (logits, normaliser, targets)


def _backward(saved: tuple[jax.Array, jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, None]:
    # softmax - one-hot in one pass; differentiating the gather instead would write a second array of this size.
    logits, normaliser, targets = saved
    scale = jnp.where(targets >= 0, cotangent, 0.0)[..., None]
    hit = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1) == targets[..., None]
    return (jnp.exp(logits - normaliser[..., None]) - hit) * scale, None


token_losses.defvjp(_forward, _backward)
