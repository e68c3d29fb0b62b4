"""Imported once by the fork server, so that fifteen processes do not each import torch for three seconds."""

from __future__ import annotations

import torch

import verifier.agent
import worker.agent
from verifier.check.check import warm

torch.set_num_threads(1)
warm()

__all__ = ["verifier", "worker"]
