"""The causal model: its precision, its adapters, and log-probs from its hidden states.

The reference of a KL term is a copy of the trained weights, in `KeptWeights`. With LoRA no copy is
needed if the model with its adapters switched off is the model before training. That is not so if
the adapters' initial product is not 0 (PiSSA), or if biases of the model are trained, too. If an
algorithm moves the reference, it becomes a copy of the adapters at the first move.
"""
