"""Records, ids, digests, canonical bytes, Merkle trees, errors, clock, limits. Pure: no I/O."""
