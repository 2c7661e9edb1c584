"""fleetlog: brokers that speak the Apache Kafka protocol, and that Spark writes into exactly once.

Everything is imported by this name. Each room is a link to its folder beside this one. Spark's users import
``fleetlog.spark``; ``fleetlog.testing`` is a broker in a container, for tests.
"""


def how_to_install(extra: str) -> str:
    """What a person types who lacks an extra: no index has fleetlog, so pip takes it from a checkout or a wheel."""
    return f"pip install '.[{extra}]' in the checkout, or 'FILE.whl[{extra}]'"
