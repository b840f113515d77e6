"""Trying to break a run's claim."""
