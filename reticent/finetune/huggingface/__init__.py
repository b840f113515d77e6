"""Checkpoints as Hugging Face keeps them: GPT-2, Llama, Qwen and Gemma, to train privately and to give back."""

from reticent.finetune.huggingface.checkpoint import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
