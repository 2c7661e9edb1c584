"""Handlers by subject: functions from a decoded request to an answer; :mod:`brokers.api.rows` finds their rows."""
