"""Trying to break a run's claim: the attacks the field knows, against one's own run."""

from reticent.audit.attack import audit

__all__ = ["audit"]
