"""Adapters as PEFT keeps them: `adapter_config.json` and `adapter_model.safetensors`."""

import json
import re
from pathlib import Path

import numpy as np

from reticent.errors import Refused
from reticent.finetune.huggingface.checkpoint import Checkpoint
from reticent.finetune.huggingface.family import Place
from reticent.finetune.huggingface.tensors import read_header
from reticent.finetune.lora import Lora
from reticent.models.model import Params

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BEFORE = "base_model.model."
# What says nothing about what adapters compute (with the weights there, how they began is over; dropout is not used).
HARMLESS = {
    "peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "r", "lora_alpha", "target_modules", "exclude_modules", "lora_dropout", "fan_in_fan_out", "use_rslora", "bias",
    "init_lora_weights", "megatron_core", "qalora_group_size", "layers_pattern", "loftq_config", "layers_to_transform",
}  # fmt: skip


def read_adapters(directory: Path, checkpoint: Checkpoint) -> tuple[Lora, Params]:
    """The adapters in a PEFT directory, for a checkpoint. Refuses what would not be computed exactly."""
    path = directory / CONFIG
    if not path.is_file() or not (directory / WEIGHTS).is_file():
        raise Refused(f"{directory} lacks {CONFIG} or {WEIGHTS}; give the directory of PEFT adapters.")
    try:
        config = dict(json.loads(path.read_bytes()))
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"{path} is damaged ({error!r}); restore it.") from None
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none":
        raise Refused(
            f"{path} is of {config.get('peft_type')} adapters with biases {config.get('bias')!r}; only plain LoRA is known."
        )
    unknown = sorted(key for key in config.keys() - HARMLESS if config[key])
    if unknown:
        raise Refused(f"{path} has {', '.join(unknown)}, which may change what adapters compute and is not known here.")
    lora_gain = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    stored = {
        name: np.concatenate([piece for _, piece in found.rows()]).reshape(found.shape).astype(np.float32)
        for name, found in read_header(directory / WEIGHTS).items()
    }
    held: dict[str, dict[str, list[np.ndarray]]] = {}
    for name, place in _kernels(checkpoint).items():
        module = place.name.removesuffix(".weight")
        for layer in range(checkpoint.shape.layers):
            pair = [stored.get(f"{BEFORE}{module.format(layer)}.lora_{half}.weight") for half in "AB"]
            if pair[0] is None or pair[1] is None:
                continue
            inner, outer = pair[0].T, pair[1].T
            outer = outer if place.columns is None else outer[:, slice(*place.columns)]
            part = held.setdefault(name, {"inner": [], "outer": []})
            part["inner"].append(inner)
            part["outer"].append(outer)
    layers = checkpoint.shape.layers
    for name, part in held.items():
        if len(part["inner"]) != layers:
            raise Refused(
                f"{directory} adapts {name!r} in {len(part['inner'])} of {layers} layers; all or none is known here."
            )
    known = {key for name in held for key in _names(_kernels(checkpoint)[name], layers)}
    left = sorted(stored.keys() - known)
    if left or not held:
        raise Refused(
            f"{directory} adapts {left[0] if left else 'nothing'}, which {checkpoint.directory} has no linear layer for."
        )
    params = {
        name: {half: {"kernel": np.stack(arrays)} for half, arrays in part.items()} for name, part in held.items()
    }
    return Lora(rank, lora_gain, tuple(params)), params


def write_adapters(out: Path, checkpoint: Checkpoint, lora: Lora, params: Params) -> None:
    """Writes adapters into the directory `out`, as PEFT loads them.

    Where a family fuses layers of which each has its own adapter, the fused one's rank is the sum of theirs.
    """
    from safetensors.numpy import save_file

    modules: dict[str, list[str]] = {}
    kernels = _kernels(checkpoint)
    for name in lora.targets:
        modules.setdefault(kernels[name].name, []).append(name)
    fused = {place: [name for name, other in kernels.items() if other.name == place] for place in modules}
    most = max(len(names) for names in modules.values())
    rank = lora.rank * most
    arrays: dict[str, np.ndarray] = {}
    for place, names in modules.items():
        module = place.removesuffix(".weight")
        for layer in range(checkpoint.shape.layers):
            inner = np.concatenate([np.asarray(params[name]["inner"]["kernel"][layer]).T for name in names])
            blocks = []
            for name in fused[place]:
                width = params[name]["outer"]["kernel"].shape[-1] if name in params else _width(kernels[name])
                block = np.zeros((width, len(names) * lora.rank), np.float32)
                if name in names:
                    at = names.index(name) * lora.rank
                    block[:, at : at + lora.rank] = np.asarray(params[name]["outer"]["kernel"][layer]).T
                blocks.append(block)
            outer = np.concatenate(blocks)
            # One rank for all modules: the others are filled up with directions that nothing comes out of.
            short = rank - inner.shape[0]
            inner, outer = np.pad(inner, ((0, short), (0, 0))), np.pad(outer, ((0, 0), (0, short)))
            arrays[f"{BEFORE}{module.format(layer)}.lora_A.weight"] = np.ascontiguousarray(inner, np.float32)
            arrays[f"{BEFORE}{module.format(layer)}.lora_B.weight"] = np.ascontiguousarray(outer, np.float32)
    save_file(arrays, out / WEIGHTS, {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(checkpoint.config.get("_name_or_path") or checkpoint.directory.name),
        "r": rank,
        "lora_alpha": lora.gain * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": "gpt2" in checkpoint.family.types,
        # Whole names: "c_proj" alone would mean two layers of a GPT-2.
        "target_modules": sorted(
            {re.sub(r"\.\d+$", "", place.removesuffix(".weight").split("{}.")[-1]) for place in modules}
        ),
        "inference_mode": True,
    }
    (out / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def _kernels(checkpoint: Checkpoint) -> dict[str, Place]:
    """Where the kernels of the linear layers are, by our names."""
    return {
        where[1]: place for where, place in checkpoint.places.items() if where[0] == "layers" and where[-1] == "kernel"
    }


def _names(place: Place, layers: int) -> list[str]:
    module = place.name.removesuffix(".weight")
    return [f"{BEFORE}{module.format(layer)}.lora_{half}.weight" for layer in range(layers) for half in "AB"]


def _width(place: Place) -> int:
    assert place.columns is not None
    return place.columns[1] - place.columns[0]
