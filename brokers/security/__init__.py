"""Security as decisions over values: rights, logins, quotas and audit, without I/O, loop or clock.

Stores, nonces and times are handed in. Connections and handlers will own the objects of this room.
"""
