"""Handlers by subject: each a plain function from a decoded request to an answer.

:mod:`brokers.api.handlers` binds them to the API table.
"""
