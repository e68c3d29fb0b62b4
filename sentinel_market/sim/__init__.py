"""The mesh simulation: the live verifier's engine over many replicas in one process (``sentinel sim``)."""
