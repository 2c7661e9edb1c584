"""Handlers by subject: each a plain function from a decoded request to an answer. ``wire.apis`` lists them."""
