"""Message schemas, in Kafka's JSON format, of messages that kafka-python lacks, or has in fewer versions.

A request's schema makes an API of it, in its ``validVersions``; ``internal`` is one between brokers, which is not
advertised. ``kafka_python.json`` names the APIs whose requests have the library's schemas, with what differs:
``advertised`` versions, the first that ``worksFrom``, and ``large`` where a request carries data. ``make generate``
writes what follows.
"""
