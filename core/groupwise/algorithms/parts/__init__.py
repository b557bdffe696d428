"""Parts of algorithms: surrogate, advantages, divisor, divergence; a variant is a choice of them.

Each is a class with the options that it adds and the methods of `Composed` that it fills in.
"""
