"""fleetlog: brokers that speak the Apache Kafka protocol, and that Spark writes into exactly once.

Everything is imported by this name. Each room is a link to its folder beside this one. Spark's users import
``fleetlog.spark``; ``fleetlog.testing`` is a broker in a container, for tests.
"""
