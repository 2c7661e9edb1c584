"""A ZooKeeper with a TLS port beside its plain one, which asks for client certificates and takes logins by them."""

from __future__ import annotations

from pathlib import Path

from fleetlog.coordination.ensemble import ZooKeeperNode, find_classpath
from fleetlog.coordination.ports import free_ports
from tests.support.certificates import Authority


class SecureZooKeeper:
    """Not started. ``authority`` signs the server's certificate, and those that it trusts."""

    def __init__(self, directory: Path, client_auth: str = "need") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(directory, "authority")
        own = self.authority.pair("/CN=zookeeper").store(directory / "zookeeper.pem")
        port, self.secure_port = free_ports(2)
        settings = [
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
            f"secureClientPort={self.secure_port}",
            "secureClientPortAddress=127.0.0.1",
            f"ssl.keyStore.location={own}",
            "ssl.keyStore.type=PEM",
            f"ssl.trustStore.location={self.authority.file}",
            "ssl.trustStore.type=PEM",
            f"ssl.clientAuth={client_auth}",
        ]
        jars = Path(find_classpath().split(":")[0]).parent.glob("netty-*.jar")
        classpath = ":".join([find_classpath(), *map(str, jars)])
        self.node = ZooKeeperNode(directory / "node", port, settings=settings, classpath=classpath)

    @property
    def address(self) -> str:
        """``zookeeper.connect`` of the TLS port."""
        return f"127.0.0.1:{self.secure_port}"

    def settings(self, directory: Path, subject: str = "/CN=fleet") -> dict[str, str]:
        """Of a broker that connects by TLS with a certificate of its own."""
        directory.mkdir(parents=True, exist_ok=True)
        own = self.authority.pair(subject).store(directory / "own.pem")
        return {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.keystore.location": own,
            "zookeeper.ssl.truststore.location": self.authority.file,
        }

    def start(self) -> SecureZooKeeper:
        self.node.start()
        self.node.wait_serving()
        return self

    def stop(self) -> None:
        self.node.stop()
