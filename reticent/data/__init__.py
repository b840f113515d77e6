"""What they wrote: user-partitioned token stores, tokenizers, vocabularies."""
