"""A verifier: holds a seat of a job, drives and relays microbatches, checks every tensor, reduces, and signs."""
