"""A worker: holds one pipeline stage of a job, dials out to the seats, computes in torch, signs what it returns."""
