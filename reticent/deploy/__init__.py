"""The same rounds on real devices."""
