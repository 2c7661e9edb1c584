"""The old name of ``fleetlog.testing``, for one release."""

from fleetlog.renamed import rename

rename(__name__, "fleetlog.testing")
