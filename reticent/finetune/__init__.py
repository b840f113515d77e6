"""Datacenter training: ELS, ULS, example-level."""
