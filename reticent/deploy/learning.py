"""Training on the device: the client update of simulations, for one user.

The only module of a device that loads JAX. Compiled steps are kept on disk, and steps are compiled for few shapes: the
number of local steps is rounded up to a power of two, and what is padded costs nothing where there is nothing to learn.
"""

import numpy as np

from reticent.deploy.settings import DeviceSettings
from reticent.deploy.terms import Terms
from reticent.deploy.text import own_text
from reticent.errors import Refused


def update_of(settings: DeviceSettings, terms: Terms, model: bytes, round: int) -> np.ndarray:
    """This device's clipped update of a model (its parameters as float32, end to end), in units of the terms' grid."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        settings.compiled.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(settings.compiled))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return _update_of(settings, terms, model, round)


def _update_of(settings: DeviceSettings, terms: Terms, model: bytes, round: int) -> np.ndarray:
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

    from reticent.config import parse
    from reticent.data.batches import assemble
    from reticent.models.clients import local_updates
    from reticent.privacy.clipping import Clipping
    from reticent.privacy.grid import Grid
    from reticent.training.rounds import local_work
    from reticent.training.setup import model_of

    run_file = parse(terms.settings)
    assert run_file.clipping
    store = own_text(settings)
    tokenizer = store.tokenizer()
    if tokenizer.digest != terms.description["tokenizer"]:
        raise Refused(
            f"The text of this device was encoded with vocabulary {tokenizer.digest[:12]}, and the run {terms.name!r} has "
            f"{terms.description['tokenizer'][:12]}; encode it anew with the run's tokenizer."
        )
    made = model_of(run_file, tokenizer)
    if made.parameters != terms.size:
        raise Refused(f"This device's model has {made.parameters} parameters, and the run's {terms.size}.")
    work = local_work(run_file)
    clipping = Clipping(
        run_file.clipping.norm,
        Grid.of_step(terms.description["grid"]),
        run_file.clipping.style,
        run_file.clipping.zero_above,
    )
    # As in a simulation of these people: the same rows in the same order.
    batches = assemble(store, np.zeros(1, np.int64), seed=(run_file.run.seed << 32) + round, **work.rows)
    steps = 1 << (batches.tokens.shape[1] - 1).bit_length()
    tokens = np.full((1, steps, *batches.tokens.shape[2:]), -1, np.int32)
    tokens[:, : batches.tokens.shape[1]] = batches.tokens
    like = jax.eval_shape(made.init, jax.random.key(0))
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like))

    @jax.jit
    def units(flat, tokens, weights):  # type: ignore[no-untyped-def]
        repeated = jnp.tile(tokens, (1, work.epochs, 1, 1))
        sums = local_updates(made, unravel(flat), repeated, work.learning_rate, clipping, beside=(weights,), total=True)
        return ravel_pytree(sums.units)[0]

    return np.asarray(units(np.frombuffer(model, "<f4"), tokens, work.weights(batches)))
