"""What verification costs: the fused pass by itself, and the live path with real processes (``sentinel bench``)."""
