"""Reticent: train language models on what people wrote, without letting the model repeat any one of them."""

__version__ = "0.1.0"
