"""Settings of TLS: what is broken ends with one sentence that names the setting; certificates change without a stop."""

from __future__ import annotations

import os
import re
import shlex
import ssl
import time
from pathlib import Path

import pytest

from fleetlog.brokers.logins.principals import PrincipalMapper
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.tls.contexts import (
    BadPem,
    CertificateFiles,
    TlsContext,
    certificate_facts,
    certificates_in_pem,
    client_context,
    server_context,
)
from fleetlog.brokers.tls.settings import TlsSettings
from tests.support.certificates import Authority, Pair, openssl

PASSWORD = "s3cr3t-of-a-key"
DAY_S = 86_400.0


class Given:
    """What the settings of these tests are made of."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory, "authority")
        self.pair = self.authority.pair("/O=fleet/CN=broker")
        self.other = self.authority.pair("/O=fleet/CN=other")
        self.encrypted = self.authority.pair("/O=fleet/CN=broker", password=PASSWORD)
        self.rsa = self.authority.pair("/CN=rsa", rsa=2048)
        self.weak = self.authority.pair("/CN=weak", rsa=1024)

    def store(self, pair: Pair) -> dict[str, str]:
        path = self.directory / f"{abs(hash(pair))}.pem"
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": pair.store(path)}

    def inline(self, chain: str, key: str, **more: str) -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key,
            **{name.replace("_", "."): text for name, text in more.items()},
        }  # fmt: skip

    def file(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        return str(path)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    return Given(tmp_path_factory.mktemp("given"))


def made(settings: dict[str, str], now_s: float | None = None) -> TlsContext:
    return server_context(TlsSettings.of(settings), time.time() if now_s is None else now_s)


def refused(settings: dict[str, str], now_s: float | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        made(settings, now_s)
    text = str(caught.value)
    assert "\n" not in text
    for piece in (PASSWORD, "-----", "MII"):
        assert piece not in text
    return text


# ---------------------------------------------------------------- what is taken


def test_defaults_are_safe(given: Given) -> None:
    found = TlsSettings.of(given.store(given.pair))
    assert (found.oldest, found.newest) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    assert found.checks_host
    assert isinstance(found.mapper, PrincipalMapper)
    context = made(given.store(given.pair)).context
    for option in (ssl.OP_NO_COMPRESSION, ssl.OP_NO_RENEGOTIATION, ssl.OP_CIPHER_SERVER_PREFERENCE):
        assert option in context.options
    assert context.verify_mode is ssl.CERT_NONE


def test_settings_of_other_subjects_are_left_alone(given: Given) -> None:
    TlsSettings.of({**given.store(given.pair), "sasl.enabled.mechanisms": "PLAIN", "listeners": "SSL://h:1"})


def test_pem_inside_settings_may_have_spaces_instead_of_line_ends(given: Given) -> None:
    chain, key = given.pair.chain.replace("\n", " "), given.pair.key.replace("\n", " ")
    facts = made(given.inline(chain, key)).certificate
    assert facts is not None
    assert facts.subject == "CN=broker,O=fleet"
    assert facts.not_before_s <= time.time() < facts.not_after_s


@pytest.mark.parametrize("form", ["pkcs8", "traditional"])
def test_an_encrypted_key_with_its_password(given: Given, form: str) -> None:
    key = given.encrypted.key
    if form == "traditional":
        path = given.file("encrypted.key", key)
        key = openssl("ec", "-in", path, "-passin", f"pass:{PASSWORD}", "-aes256", "-passout", f"pass:{PASSWORD}")
        assert "Proc-Type: 4,ENCRYPTED" in key
    settings = given.inline(given.encrypted.chain, key)
    made({**settings, "ssl.key.password": PASSWORD})
    assert re.match(r"ssl.key.password='': the private key of ssl.keystore.key is encrypted: set", refused(settings))
    wrong = refused({**settings, "ssl.key.password": "wrong-" + PASSWORD})
    assert re.match(r"ssl.key.password='.hidden.': does not decrypt the private key of ssl.keystore.key", wrong)


def test_java_names_of_cipher_suites_choose_the_version(given: Given) -> None:
    store = given.store(given.pair)
    older = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    newer = "TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256,TLS_CHACHA20_POLY1305_SHA256"
    context = made({**store, "ssl.cipher.suites": older}).context
    assert context.maximum_version == ssl.TLSVersion.TLSv1_2
    names = [suite["name"] for suite in context.get_ciphers() if suite["protocol"] != "TLSv1.3"]
    assert names == ["ECDHE-ECDSA-AES128-GCM-SHA256"]
    assert made({**store, "ssl.cipher.suites": newer}).context.minimum_version == ssl.TLSVersion.TLSv1_3
    both = made({**store, "ssl.cipher.suites": f"{newer},{older}"}).context
    assert (both.minimum_version, both.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


def test_a_client_without_truststore_trusts_the_systems_authorities_and_checks_names() -> None:
    context = client_context(TlsSettings.of({}), time.time()).context
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    without = TlsSettings.of({"ssl.endpoint.identification.algorithm": ""})
    loose = client_context(without, time.time()).context
    assert not loose.check_hostname
    assert loose.verify_mode is ssl.CERT_REQUIRED


def test_a_key_file_that_all_can_read_is_warned_of(given: Given) -> None:
    settings = given.store(given.other)
    path = settings["ssl.keystore.location"]
    assert made(settings).warnings == ()
    os.chmod(path, 0o644)
    (warning,) = server_context(TlsSettings.of(settings, "listener.name.out."), time.time()).warnings
    assert warning.startswith(f"listener.name.out.ssl.keystore.location='{path}': each user of this machine can read")
    os.chmod(path, 0o640)
    assert made(settings).warnings == ()


def test_no_secret_is_shown_by_repr(given: Given) -> None:
    settings = {**given.inline(given.pair.chain, given.pair.key), "ssl.key.password": PASSWORD}
    text = repr(TlsSettings.of(settings))
    assert PASSWORD not in text
    assert "BEGIN" not in text


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ssl.keystore.location": ""}, r"ssl.keystore.location='': ssl.keystore.type is PEM: name its file"),
        ({"ssl.keystore.location": "/nowhere/a.pem"}, r"ssl.keystore.location='/nowhere/a.pem': cannot be read \(No s"),
        ({"ssl.keystore.location": "/dev/zero"}, r"ssl.keystore.location='/dev/zero': cannot be read \(it is no reg"),
        ({"ssl.keystore.type": "BKS"}, r"ssl.keystore.type='BKS': must be one of PEM, PKCS12"),
        ({"ssl.keystore.type": "JKS"}, r"ssl.keystore.type='JKS': Java keystores .* run keytool -importkeystore"),
        ({"ssl.keystore.type": ""}, r"ssl.keystore.type='': Java keystores \(also Kafka's default"),
        ({"ssl.keystore.password": PASSWORD}, r"ssl.keystore.password='.hidden.': a PEM store has no password"),
        ({"ssl.keystore.key": "x"}, r"ssl.keystore.key='.hidden.': stands beside ssl.keystore.location"),
        ({"ssl.truststore.password": PASSWORD}, r"ssl.truststore.password='.hidden.': there is no store for it"),
        ({"ssl.truststore.certificates": ""}, r"ssl.truststore.certificates='': is empty"),
        ({"ssl.truststore.certificates": "x"}, r"ssl.truststore.type='': must be PEM, because ssl.truststore.certif"),
        ({"ssl.client.auth": "required"}, r"ssl.truststore.location='': ssl.client.auth is required: name a PEM file"),
        ({"ssl.client.auth": "requested"}, r"ssl.truststore.location='': ssl.client.auth is requested"),
        ({"ssl.client.auth": "yes"}, r"ssl.client.auth='yes': must be one of none, requested, required"),
        ({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, r"ssl.enabled.protocols='.*': TLSv1.1 is not served: name some"),
        ({"ssl.enabled.protocols": ""}, r"ssl.enabled.protocols='': is empty: name some of TLSv1.2, TLSv1.3"),
        ({"ssl.protocol": "SSLv3"}, r"ssl.protocol='SSLv3': must be one of TLS, TLSv1.2, TLSv1.3"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_RC4_128_MD5"}, r"ssl.cipher.suites=.*RC4_128_MD5 is not served: name s"),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, r"ssl.cipher.suites=.*enabled together: add TLS_AES_128_GCM"),
        ({"ssl.cipher.suites": "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "ssl.enabled.protocols": "TLSv1.3"},
         r"ssl.cipher.suites='TLS_DHE.*': has no suite for TLSv1.3"),
        ({"ssl.principal.mapping.rules": "RULE:(/x/"}, r"ssl.principal.mapping.rules='RULE:\(/x/': the pattern"),
        ({"ssl.engine.factory.class": "a.B"}, r"ssl.engine.factory.class='a.B': cannot be loaded here: remove it"),
        ({"ssl.truststore.locations": "/a"}, r"ssl.truststore.locations='.*did you mean ssl.truststore.location\?"),
        ({"ssl.endpoint.identification.algorithm": "http"}, r"ssl.endpoint.identification.algorithm='http': must be h"),
        ({"ssl.allow.dn.changes": "maybe"}, r"ssl.allow.dn.changes='maybe': must be one of false, true"),
    ],
)  # fmt: skip
def test_a_broken_setting_is_named(given: Given, more: dict[str, str], message: str) -> None:
    assert re.match(message, refused({**given.store(given.pair), **more}))


def test_half_a_pair_inside_settings(given: Given) -> None:
    settings = given.inline(given.pair.chain, given.pair.key)
    del settings["ssl.keystore.key"]
    assert re.match(r"ssl.keystore.key='': ssl.keystore.certificate.chain needs its private key", refused(settings))
    settings = given.inline(given.pair.chain, given.pair.key)
    del settings["ssl.keystore.certificate.chain"]
    assert re.match(r"ssl.keystore.certificate.chain='': ssl.keystore.key needs the cert", refused(settings))


@pytest.mark.parametrize("part", ["chain", "key", "neither"])
def test_half_a_pair_in_a_file(given: Given, part: str) -> None:
    text = {"chain": given.pair.chain, "key": given.pair.key, "neither": "-- nothing --"}[part]
    path = given.file(f"{part}.pem", text)
    found = refused({"ssl.keystore.type": "PEM", "ssl.keystore.location": path})
    advice = "has no private key: add its PEM" if part == "chain" else "has no certificate: it must have the PEM"
    assert found.startswith(f"ssl.keystore.location='{path}': {advice}")


def test_no_keystore_at_all() -> None:
    assert re.match(r"ssl.keystore.location='': a listener with TLS needs a certificate", refused({}))
    alone = refused({"ssl.key.password": PASSWORD})
    assert re.match(r"ssl.key.password='.hidden.': there is no key for it", alone)


def test_keys_that_do_not_match(given: Given) -> None:
    message = r"ssl.keystore.key='.hidden.': the private key does not belong to the first certificate"
    assert re.match(message, refused(given.inline(given.pair.chain, given.other.key)))
    assert re.match(message, refused(given.inline(given.pair.chain, given.rsa.key)))
    assert re.match(message, refused(given.inline(given.authority.pem + given.pair.chain, given.pair.key)))


def test_several_keys(given: Given) -> None:
    both = given.inline(given.pair.chain, given.pair.key + given.other.key)
    assert re.match(r"ssl.keystore.key='.hidden.': has several private keys: leave the one in use", refused(both))


def test_a_weak_key(given: Given) -> None:
    found = refused(given.inline(given.weak.chain, given.weak.key))
    assert re.match(r"ssl.keystore.certificate.chain='.hidden.': its certificate is too weak", found)


@pytest.mark.parametrize("part", ["chain", "key"])
def test_damaged_pem(given: Given, part: str) -> None:
    def damaged(pem: str) -> str:
        return pem.replace("\n", "\n!!", 1)

    chain, key = given.pair
    settings = given.inline(damaged(chain), key) if part == "chain" else given.inline(chain, damaged(key))
    name = "ssl.keystore.certificate.chain" if part == "chain" else "ssl.keystore.key"
    assert refused(settings).startswith(f"{name}='[hidden]': a PEM block is damaged")


def test_pem_around_something_else(given: Given) -> None:
    nothing = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    found = refused(given.inline(nothing, given.pair.key))
    assert found.startswith("ssl.keystore.certificate.chain='[hidden]': a certificate cannot be read")
    no_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    found = refused(given.inline(given.pair.chain, no_key))
    assert found.startswith("ssl.keystore.key='[hidden]': the certificate or the private key cannot be read")


def test_every_cut_of_a_certificate_is_refused_as_such(given: Given) -> None:
    (whole,) = certificates_in_pem(given.pair.chain)
    assert certificate_facts(whole).names
    for end in range(len(whole)):
        with pytest.raises(BadPem):
            certificate_facts(whole[:end])


def test_chains_out_of_their_time(given: Given) -> None:
    settings = given.store(given.pair)
    late = refused(settings, time.time() + 31 * DAY_S)
    assert re.search(r"ssl.keystore.location='.*': its certificate 'CN=broker,O=fleet' has expired on \d{4}-", late)
    early = refused(settings, time.time() - DAY_S)
    assert re.search(r"ssl.keystore.location='.*' is valid from .* on: check the clock", early)


def test_empty_and_expired_truststores(given: Given) -> None:
    path = given.file("empty.pem", "")
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": path, "ssl.client.auth": "required"}
    settings = {**given.store(given.pair), **trust}
    for auth in ("none", "requested", "required"):
        assert refused({**settings, "ssl.client.auth": auth}).startswith(f"ssl.truststore.location='{path}': has no ce")
    given.file("empty.pem", given.authority.pem)
    assert made(settings).context.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(ConfigError, match=r"^ssl.truststore.location='.*': has only expired certificates, the last"):
        client_context(TlsSettings.of(trust), time.time() + 31 * DAY_S)


def test_the_prefix_of_a_listener_stands_in_errors(given: Given) -> None:
    with pytest.raises(ConfigError, match=r"^listener.name.out.ssl.client.auth='yes'"):
        TlsSettings.of({"ssl.client.auth": "yes"}, "listener.name.out.")
    with pytest.raises(ConfigError, match=r"^listener.name.out.ssl.keystore.location=''"):
        server_context(TlsSettings.of({}, "listener.name.out."), 0)


# ---------------------------------------------------------------- PKCS12


def pkcs12(given: Given) -> str:
    path = str(given.directory / "store of it.p12")
    source = given.file("both.pem", given.pair.key + given.pair.chain)
    openssl("pkcs12", "-export", "-in", source, "-out", path, "-passout", f"pass:{PASSWORD}")
    return path


def test_the_command_that_an_error_gives_makes_pem_of_pkcs12(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("fleetlog.brokers.tls.contexts.importlib.import_module", absent)
    path = pkcs12(given)
    text = refused({"ssl.keystore.type": "PKCS12", "ssl.keystore.location": path, "ssl.keystore.password": PASSWORD})
    assert text.startswith("ssl.keystore.type='PKCS12': needs the package cryptography")
    command = re.search(r"run openssl (.*) and set ssl.keystore.type=PEM", text)
    assert command is not None
    words = shlex.split(command[1])
    openssl(*words, "-passin", f"pass:{PASSWORD}", "-passout", f"pass:{PASSWORD}")
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": words[-1], "ssl.key.password": PASSWORD}
    assert made(settings).certificate is not None


def test_pkcs12_with_its_package(given: Given) -> None:
    path = pkcs12(given)
    settings = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": path, "ssl.keystore.password": PASSWORD}
    assert made(settings).certificate is not None
    wrong = refused({**settings, "ssl.keystore.password": "wrong"})
    assert re.match(r"ssl.keystore.password='.hidden.': ssl.keystore.location is no PKCS12 store that", wrong)


# ---------------------------------------------------------------- reload


def replaced(path: str, text: str) -> None:
    """As tools do it: a new file takes the name of the old one."""
    other = Path(path + ".new")
    other.write_text(text)
    other.chmod(0o600)
    other.rename(path)


def test_a_new_pair_is_taken_over_and_a_bad_one_is_not(given: Given) -> None:
    settings = given.store(given.pair)
    path = settings["ssl.keystore.location"]
    now_s = time.time()
    files = CertificateFiles(TlsSettings.of(settings), server_context, now_s)
    first = files.current
    assert not files.changed()

    replaced(path, given.pair.key + given.other.chain)
    assert files.changed()
    reason = files.reloaded(time.time())
    assert isinstance(reason, str)
    assert reason.startswith(f"ssl.keystore.location='{path}': the private key does not belong")
    assert files.current is first
    assert files.changed(), "a bad pair is looked at again, until it is a good one"

    Path(path).unlink()
    assert files.changed()
    assert "cannot be read" in str(files.reloaded(time.time()))
    assert files.current is first

    again = given.authority.pair("/O=fleet/CN=broker")
    replaced(path, again.key + again.chain)
    second = files.reloaded(time.time())
    assert isinstance(second, TlsContext)
    assert files.current is second
    assert second.context is not first.context
    assert not files.changed()


def test_a_file_written_in_place_with_the_same_length_and_time_but_another_inode(given: Given) -> None:
    settings = given.store(given.pair)
    path = settings["ssl.keystore.location"]
    files = CertificateFiles(TlsSettings.of(settings), server_context, time.time())
    before = os.stat(path)
    replaced(path, Path(path).read_text())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_size == before.st_size
    assert files.changed()


def test_another_subject_and_fewer_names_need_a_setting(given: Given) -> None:
    settings = given.store(given.pair)
    path = settings["ssl.keystore.location"]
    narrow = given.authority.pair("/O=fleet/CN=broker", names="DNS:localhost")
    wide = given.authority.pair("/O=fleet/CN=broker", names="DNS:localhost,IP:127.0.0.1,DNS:more")
    now_s = time.time()
    for pair, setting in ((given.other, "ssl.allow.dn.changes"), (narrow, "ssl.allow.san.changes")):
        given.pair.store(Path(path))
        files = CertificateFiles(TlsSettings.of(settings), server_context, now_s)
        allowing = CertificateFiles(TlsSettings.of({**settings, setting: "true"}), server_context, now_s)
        replaced(path, pair.key + pair.chain)
        assert f"set {setting}=true" in str(files.reloaded(time.time()))
        assert isinstance(allowing.reloaded(time.time()), TlsContext)
    given.pair.store(Path(path))
    files = CertificateFiles(TlsSettings.of(settings), server_context, now_s)
    replaced(path, wide.key + wide.chain)
    assert isinstance(files.reloaded(time.time()), TlsContext)


def test_pem_inside_settings_never_changes(given: Given) -> None:
    files = CertificateFiles(TlsSettings.of(given.inline(*given.pair)), server_context, time.time())
    assert not files.changed()
