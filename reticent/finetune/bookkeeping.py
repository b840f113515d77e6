"""Sums of clipped gradients without the gradients: one forward and one backward pass for a whole micro-batch.

A gradient of a kernel is made of the layer's inputs a and of the cotangents g of its outputs: sum_t a_t g_t^T. Both are kept
for the micro-batch (book-keeping, Bu et al. 2022). The norm of a unit's gradient follows from them: from the products of all
pairs of its tokens (ghost norm, Li et al. 2021), or from the gradient of one layer and one unit at a time, whichever is less
work; and the sum over units, each times its clip factor, is one matrix product per layer.

    sums = clipped_sums(model, params, tokens, norm)        # tokens: int32[units, rows, length + 1], padded with -1

A unit is what is clipped: a user with several rows (ULS), or one row (ELS). Its gradient is that of the mean over its rows
of each row's mean loss (ULDP, Algs. 1 and 2).
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from reticent.models import Model
from reticent.models.layers import Layers
from reticent.models.losses import token_losses
from reticent.models.model import inputs_of, targets_of

EXACT = jax.lax.Precision.HIGHEST
UNIT = 2.0**-24
# Matrix products add in at least so many parts side by side.
LANES = 4
# A layer's gradients of all units at once, where they fit this many bytes; else unit after unit.
BYTES_AT_ONCE = 2**28


class Sums(NamedTuple):
    """What a micro-batch adds: `total`, a pytree like the parameters, float32; `norms` of the units before clipping; `bad`
    units, those with a norm that is no finite number, which count as zero."""

    total: Any
    norms: jax.Array
    bad: jax.Array


def supports(model: Model) -> bool:
    """Whether every parameter of a model enters through layers that are known by their inputs."""
    return model.layered is not None


def unit_loss(losses: jax.Array, targets: jax.Array) -> jax.Array:
    """The loss of each unit, of the losses of its tokens [units, rows, length]: the mean over the rows that have a target
    of each row's mean; 0 where none has."""
    return (losses * token_weights(targets)).sum((1, 2))


def token_weights(targets: jax.Array) -> jax.Array:
    """What each token's loss counts in its unit's: [units, rows, length] of the same."""
    counts = (targets >= 0).sum(-1, keepdims=True)
    rows = (counts > 0).sum(1, keepdims=True)
    return jnp.where(targets >= 0, 1.0 / (jnp.maximum(counts, 1) * jnp.maximum(rows, 1)), 0.0).astype(jnp.float32)


def clipped_sums(model: Model, params: Any, tokens: jax.Array, norm: float, shares: jax.Array | None = None) -> Sums:
    """The sum over units of their gradients, each clipped to `norm`, times its share (one without).

    Norms are float32 with what they can be wrong by added, so that none comes out too small; what is added up is float32,
    and no single gradient ever exists: round the sum once, and account for it (`reticent.finetune.work`).
    """
    tape = _tape(model, params, tokens)
    units = tokens.shape[0]
    norms = jnp.sqrt(sum(record.square(units) for record in tape.records))
    good = jnp.isfinite(norms)
    factors = jnp.where(good, jnp.minimum(1.0, norm / jnp.maximum(norms, 1e-30)), 0.0)
    if shares is not None:
        factors = factors * shares
    total = tape.assembled(lambda record: record.total(units, factors, good))
    return Sums(total, norms, (~good).astype(jnp.int32))


@dataclass(frozen=True)
class Kernel:
    """A linear layer, or stacked ones: inputs [layers, rows, length, p] and cotangents [layers, rows, length, q]."""

    inputs: jax.Array
    cotangents: jax.Array
    bias: bool

    def _by_unit(self, units: int) -> tuple[jax.Array, jax.Array]:
        layers, _, _, wide = self.inputs.shape
        return (
            self.inputs.reshape(layers, units, -1, wide),
            self.cotangents.reshape(layers, units, -1, self.cotangents.shape[-1]),
        )

    def square(self, units: int) -> jax.Array:
        inputs, cotangents = self._by_unit(units)
        return _squares(inputs, cotangents, self.bias)

    def total(self, units: int, factors: jax.Array, good: jax.Array) -> dict[str, jax.Array]:
        inputs, cotangents = self._by_unit(units)
        kept = good[:, None, None]
        inputs = jnp.where(kept, inputs, 0)
        scaled = jnp.where(kept, cotangents, 0).astype(jnp.float32) * factors[:, None, None]
        found = {"kernel": _outer("luti,lutj->lij", inputs, scaled)}
        return {**found, "bias": scaled.sum((1, 2))} if self.bias else found


@dataclass(frozen=True)
class Table:
    """An embedding: the ids looked up [rows, length] with the cotangents of what came out; the inputs of scores and the
    cotangents of those; or both, where one table serves both."""

    size: int
    ids: jax.Array | None
    looked: jax.Array | None
    inputs: jax.Array | None
    scored: jax.Array | None
    bias: bool

    def square(self, units: int) -> jax.Array:
        square, slack = jnp.zeros(units), jnp.zeros(units)
        if self.ids is not None and self.looked is not None:
            ids, looked = self.ids.reshape(units, -1), self._flat(self.looked, units)
            pairs = _pairs(looked, looked)
            square += jnp.where(ids[:, :, None] == ids[:, None, :], pairs, 0).sum((1, 2))
            slack += _slack(jnp.ones((1, *ids.shape)), jnp.linalg.norm(looked, axis=-1)[None], looked.shape[-1])
        if self.inputs is not None and self.scored is not None:
            inputs, scored = self._flat(self.inputs, units), self._flat(self.scored, units)
            square += _squares(inputs[None], scored[None], self.bias)
            if self.ids is not None and self.looked is not None:
                # Both parts fall on the same rows: 2 <lookups, scores>.
                columns = jnp.broadcast_to(ids[:, None, :], (*scored.shape[:2], ids.shape[1]))
                hit = jnp.take_along_axis(scored, columns, axis=2)
                square += 2 * (hit * _pairs(inputs, looked)).sum((1, 2))
        return jnp.maximum(square, 0.0) + slack

    def total(self, units: int, factors: jax.Array, good: jax.Array) -> dict[str, jax.Array]:
        kept, found = good[:, None, None], {}
        table = None
        if self.inputs is not None and self.scored is not None:
            inputs = jnp.where(kept, self._flat(self.inputs, units), 0)
            scored = jnp.where(kept, self._flat(self.scored, units), 0)
            table = _outer("utv,utw->vw", scored, inputs * factors[:, None, None])
            if self.bias:
                found["bias"] = jnp.einsum("utv,u->v", scored, factors, precision=EXACT)
        if self.ids is not None and self.looked is not None:
            looked = jnp.where(kept, self._flat(self.looked, units), 0) * factors[:, None, None]
            into = jnp.zeros((self.size, looked.shape[-1]), jnp.float32) if table is None else table
            table = into.at[self.ids.reshape(-1)].add(looked.reshape(-1, looked.shape[-1]))
        assert table is not None
        return {**found, "table": table}

    @staticmethod
    def _flat(values: jax.Array, units: int) -> jax.Array:
        return values.astype(jnp.float32).reshape(units, -1, values.shape[-1])


@dataclass(frozen=True)
class Small:
    """A vector, as a norm's scale: its gradient of every row, [layers, rows, 1, width]."""

    slopes: jax.Array

    def _by_unit(self, units: int) -> jax.Array:
        layers, rows = self.slopes.shape[:2]
        return self.slopes.reshape(layers, units, rows // units, -1).sum(2)

    def square(self, units: int) -> jax.Array:
        slopes = self._by_unit(units)
        return jnp.square(slopes).sum((0, 2)) * (1 + UNIT * slopes.shape[-1])

    def total(self, units: int, factors: jax.Array, good: jax.Array) -> jax.Array:
        slopes = jnp.where(good[:, None], self._by_unit(units), 0)
        return jnp.einsum("luw,u->lw", slopes, factors, precision=EXACT)


@dataclass
class _Tape:
    """The records of one pass, and where each belongs among the parameters by layer."""

    records: list[Any] = field(default_factory=list)
    places: list[Any] = field(default_factory=list)
    assembled: Any = None


def _tape(model: Model, params: Any, tokens: jax.Array) -> _Tape:
    layered = model.layered
    assert layered is not None
    rename = model.by_layer or (lambda same: same)
    named = rename(params)
    rows = tokens.reshape(-1, tokens.shape[-1])
    ids, targets = inputs_of(rows), targets_of(tokens)
    dtype = jnp.dtype(model.compute_dtype)
    weights = token_weights(targets).reshape(rows.shape[0], -1)
    uses = _Uses()
    shape = jax.eval_shape(lambda: layered(named, ids, uses.layers()))
    probes, wide = _probes(named, rows.shape[0], rows.shape[1] - 1, dtype), {}
    for place in uses.looked:
        wide["looked", place] = jnp.zeros((*ids.shape, uses.width[place]), jnp.float32)
    for place in uses.scored:
        wide["scored", place] = jnp.zeros((*ids.shape, shape.shape[-1]), jnp.float32)

    def loss(probes: Any, wide: Any) -> tuple[jax.Array, Any]:
        recording = _Recording(wide)
        logits = layered(_merged(named, probes), ids, recording.layers())
        losses = token_losses(logits.astype(jnp.float32), targets_of(rows))
        return (losses * weights).sum(), (recording.ids, recording.inputs)

    (slopes, flowed), (looked_up, inputs) = jax.grad(loss, argnums=(0, 1), has_aux=True)(probes, wide)
    tape = _Tape()

    def walk(node: Any, slope: Any) -> Any:
        """The same tree with the number of a record in place of each group of parameters."""
        if "kernel" in node:
            lead = node["kernel"].ndim - 2
            a, g = (slope[name] if lead else slope[name][None] for name in ("in", "out"))
            return _Place(tape, Kernel(a, g, "bias" in node), lead)
        if "table" in node:
            place = id(node["table"])
            record = Table(
                node["table"].shape[0], looked_up.get(place), flowed.get(("looked", place)), inputs.get(place),
                flowed.get(("scored", place)), "bias" in node,
            )  # fmt: skip
            return _Place(tape, record, 1)
        if "scale" in node:
            lead = node["scale"].ndim - 1
            return {name: _Place(tape, Small(slope[name] if lead else slope[name][None]), lead) for name in node}
        return {name: walk(inner, slope[name]) for name, inner in node.items()}

    tree = walk(named, slopes)
    back = jax.linear_transpose(rename, params)
    tape.assembled = lambda total: back(
        jax.tree.map(lambda place: place.fill(total), tree, is_leaf=lambda node: isinstance(node, _Place))
    )[0]
    return tape


class _Place:
    """Where a record's total goes: without the axis of layers where there was none."""

    def __init__(self, tape: _Tape, record: Any, lead: int) -> None:
        tape.records.append(record)
        self.record, self.lead = record, lead

    def fill(self, total: Any) -> Any:
        found = total(self.record)
        return found if self.lead else jax.tree.map(lambda leaf: leaf[0], found)


class _Uses:
    """Which tables a model looks up in and scores with, by the identity of their arrays."""

    def __init__(self) -> None:
        self.looked: list[int] = []
        self.scored: list[int] = []
        self.width: dict[int, int] = {}

    def layers(self) -> Layers:
        plain = Layers()

        def lookup(params: Any, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
            self.looked.append(id(params["table"]))
            self.width[id(params["table"])] = params["table"].shape[1]
            return plain.lookup(params, ids, dtype)

        def scores(params: Any, inputs: jax.Array, dtype: jnp.dtype) -> jax.Array:
            self.scored.append(id(params["table"]))
            return plain.scores(params, inputs, dtype)

        return Layers(lookup=lookup, scores=scores)


class _Recording:
    """The layers that keep what gradients are made of."""

    def __init__(self, wide: dict[tuple[str, int], jax.Array]) -> None:
        self.wide = wide
        self.ids: dict[int, jax.Array] = {}
        self.inputs: dict[int, jax.Array] = {}

    def layers(self) -> Layers:
        return Layers(linear=_linear, widened=_widened, lookup=self._lookup, scores=self._scores, recurrent=_recurrent)

    def _lookup(self, params: Any, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
        place = id(params["table"])
        self.ids[place] = ids
        return (params["table"][ids] + self.wide["looked", place]).astype(dtype)

    def _scores(self, params: Any, inputs: jax.Array, dtype: jnp.dtype) -> jax.Array:
        place = id(params["table"])
        # What the product sees of its inputs.
        self.inputs[place] = inputs.astype(dtype).astype(jnp.float32)
        return Layers().scores(params, inputs, dtype) + self.wide["scored", place]


def _linear(params: Any, inputs: jax.Array, dtype: jnp.dtype) -> jax.Array:
    outputs = _kept(params["kernel"], params["in"], params["out"], inputs, dtype, dtype)
    return outputs + params["bias"].astype(dtype) if "bias" in params else outputs


def _widened(params: Any, inputs: jax.Array, dtype: jnp.dtype) -> jax.Array:
    outputs = _kept(params["kernel"], params["in"], params["out"], inputs, dtype, jnp.dtype(jnp.float32))
    return outputs + params["bias"] if "bias" in params else outputs


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _kept(
    kernel: jax.Array, before: jax.Array, after: jax.Array, inputs: jax.Array, dtype: jnp.dtype, out: jnp.dtype
) -> jax.Array:
    """inputs @ kernel. The cotangents of the probes `before` and `after` are the inputs, and the outputs' cotangents."""
    return jnp.matmul(inputs.astype(dtype), kernel.astype(dtype), preferred_element_type=out)


def _kept_forward(kernel: Any, before: Any, after: Any, inputs: Any, dtype: Any, out: Any) -> Any:
    narrow, kernel = inputs.astype(dtype), kernel.astype(dtype)
    # An empty array remembers a type.
    kept = (kernel, narrow, jnp.zeros(0, inputs.dtype))
    return jnp.matmul(narrow, kernel, preferred_element_type=out), kept


def _kept_backward(dtype: Any, out: Any, saved: Any, cotangent: jax.Array) -> Any:
    kernel, inputs, like = saved
    cotangent = cotangent.astype(dtype)
    back = jnp.matmul(cotangent, kernel.T, preferred_element_type=out).astype(like.dtype)
    return jnp.zeros(kernel.shape, jnp.float32), inputs, cotangent, back


_kept.defvjp(_kept_forward, _kept_backward)


def _recurrent(params: Any, inputs: jax.Array, run: Any, dtype: jnp.dtype) -> jax.Array:
    """What enters a step is inputs + state @ kernel, so that the cotangents of both terms are the same."""

    @jax.custom_vjp
    def states(kernel: jax.Array, before: jax.Array, after: jax.Array, inputs: jax.Array) -> jax.Array:
        return Layers().recurrent({"kernel": kernel}, inputs, run, dtype)

    def forward(kernel: jax.Array, before: jax.Array, after: jax.Array, inputs: jax.Array) -> Any:
        def of_inputs(inputs: jax.Array) -> jax.Array:
            return Layers().recurrent({"kernel": kernel}, inputs, run, dtype)

        found, pull = jax.vjp(of_inputs, inputs)
        return found, (found, pull, kernel)

    def backward(saved: Any, cotangent: jax.Array) -> Any:
        found, pull, kernel = saved
        (entering,) = pull(cotangent)
        earlier = jnp.pad(found[:, :-1], ((0, 0), (1, 0), (0, 0)))
        return jnp.zeros_like(kernel), earlier.astype(dtype), entering.astype(dtype), entering

    states.defvjp(forward, backward)
    return states(params["kernel"], params["in"], params["out"], inputs)


def _probes(named: Any, rows: int, length: int, dtype: jnp.dtype) -> Any:
    """Zeros whose cotangents are what a pass keeps; for vectors, a copy for each row."""

    def walk(node: Any) -> Any:
        if "kernel" in node:
            *lead, into, out = node["kernel"].shape
            return {
                "in": jnp.zeros((*lead, rows, length, into), dtype),
                "out": jnp.zeros((*lead, rows, length, out), dtype),
            }
        if "table" in node:
            return {}
        if "scale" in node:
            return {
                name: jnp.broadcast_to(leaf[..., None, None, :], (*leaf.shape[:-1], rows, 1, leaf.shape[-1]))
                for name, leaf in node.items()
            }
        return {name: walk(inner) for name, inner in node.items()}

    return walk(named)


def _merged(named: Any, probes: Any) -> Any:
    def walk(node: Any, probe: Any) -> Any:
        if "table" in node:
            return node
        if "kernel" in node:
            return {**node, **probe}
        if "scale" in node:
            return probe
        return {name: walk(inner, probe[name]) for name, inner in node.items()}

    return walk(named, probes)


def _squares(inputs: jax.Array, cotangents: jax.Array, bias: bool) -> jax.Array:
    """The squared norm of each unit's sum_t a_t g_t^T (with the bias's sum_t g_t), over all layers, not below the true one.
    Of [layers, units, tokens, p] and [layers, units, tokens, q]."""
    tokens, p, q = inputs.shape[2], inputs.shape[3], cotangents.shape[3]
    by_pairs = tokens * (p + q) <= p * q
    own = 1.0 if bias else 0.0
    sizes = jnp.sqrt(jnp.square(inputs.astype(jnp.float32)).sum(-1) + own)
    others = jnp.sqrt(jnp.square(cotangents.astype(jnp.float32)).sum(-1))
    if by_pairs:
        # The products of all pairs, less wrong where tokens are few.
        square = jax.lax.map(lambda one: ((_pairs(one[0], one[0]) + own) * _pairs(one[1], one[1])).sum((1, 2)),
                             (inputs, cotangents)).sum(0)  # fmt: skip
        return jnp.maximum(square, 0.0) + _slack(sizes, others, p + q)

    def whole(one: tuple[jax.Array, jax.Array]) -> jax.Array:
        a, g = one
        square = jnp.square(_outer("...ti,...tj->...ij", a, g, split=False)).sum((-1, -2))
        return square + jnp.square(g.astype(jnp.float32).sum(-2)).sum(-1) if bias else square

    if inputs.shape[1] * p * q * 4 <= BYTES_AT_ONCE and jax.default_backend() != "cpu":
        square = jax.lax.map(whole, (inputs, cotangents)).sum(0)
    else:
        square = jax.lax.map(lambda one: jax.lax.map(whole, one), (inputs, cotangents)).sum(0)
    error = UNIT * tokens / LANES * jnp.sqrt(jnp.square((sizes * others).sum(2)).sum(0))
    return jnp.square(jnp.sqrt(square) + error)


def _slack(sizes: jax.Array, others: jax.Array, terms: int) -> jax.Array:
    """How much too small a sum of products of all pairs can be: every addition is off by a rounding of at most
    |a_s| |a_t| |g_s| |g_t|."""
    return UNIT * terms / LANES * jnp.square((sizes * others).sum(2)).sum(0)


def _pairs(left: jax.Array, right: jax.Array) -> jax.Array:
    """Products of all pairs of tokens, float32[units, tokens, tokens]."""
    return jnp.einsum("usi,uti->ust", left, right, precision=EXACT, preferred_element_type=jnp.float32)


def _outer(equation: str, left: jax.Array, right: jax.Array, split: bool = True) -> jax.Array:
    """A sum of outer products, float32. Of a bfloat16 `left` and float32 `right`, the latter in two bfloat16 parts, which
    keeps 16 of its 24 bits: a clip factor that was rounded to 8 would leave a gradient longer than the norm."""
    if left.dtype == jnp.bfloat16 and right.dtype == jnp.float32 and split:
        high = right.astype(jnp.bfloat16)
        low = (right - high.astype(jnp.float32)).astype(jnp.bfloat16)
        return _outer(equation, left, high) + _outer(equation, left, low)
    return jnp.einsum(equation, left, right, precision=EXACT, preferred_element_type=jnp.float32)
