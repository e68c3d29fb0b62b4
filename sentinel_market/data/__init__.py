"""Training data and finished models on disk."""
