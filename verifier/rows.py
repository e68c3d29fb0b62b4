"""The rows that a job's data gives: what a microbatch is made of, for every seat alike."""

from __future__ import annotations

import torch

from sentinel_market.data.corpus import Corpus, batch
from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.wire.tensors import tensor_hash


class Rows:
    """Tokens and targets [B, T] of each (step, microbatch)."""

    def __init__(self, spec: JobSpec, corpus: Corpus) -> None:
        self._spec = spec
        self._corpus = corpus

    def batch(self, step: int, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, targets."""
        spec = self._spec
        return batch(
            self._corpus.train,
            seed=spec.seed,
            step=step,
            microbatch=microbatch,
            batch_size=spec.training.microbatch_size,
            seq_len=spec.model.seq_len,
        )

    def hashes(self, step: int, microbatch: int) -> frozenset[bytes]:
        """Of both: what the input of the first stage and the targets of the last must be."""
        return frozenset(tensor_hash(t) for t in self.batch(step, microbatch))
