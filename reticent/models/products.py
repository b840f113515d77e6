"""Matrix products in a chosen precision."""

from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(left: jax.Array, right: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """left[..., m] @ right[m, n] in `dtype`, accumulated and returned in float32; so are both products of its gradient.

    Both are float32.
    """
    return _forward(left, right, dtype)[0]


def _forward(left: jax.Array, right: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    left, right = left.astype(dtype), right.astype(dtype)
    return jnp.matmul(left, right, preferred_element_type=jnp.float32), (left, right)


def _backward(
    dtype: jnp.dtype, saved: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    # JAX's own rule would multiply the float32 cotangent, and lose what `dtype` gains.
    left, right = saved
    cotangent = cotangent.astype(dtype)
    rows, columns = left.reshape(-1, left.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
    return (
        jnp.matmul(cotangent, right.T, preferred_element_type=jnp.float32),
        jnp.matmul(rows.T, columns, preferred_element_type=jnp.float32),
    )


product.defvjp(_forward, _backward)
