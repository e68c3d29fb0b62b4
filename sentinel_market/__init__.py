"""Sentinel Market: an open market for training neural networks on machines nobody has to trust."""

__version__ = "0.1.0"
