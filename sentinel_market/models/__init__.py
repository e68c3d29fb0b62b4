"""Pipeline stages of the Llama family, their weights, gradients, sketches and updates. Torch, and no I/O."""
