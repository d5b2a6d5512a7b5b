"""Bytes over QUIC, by aioquic.

quic.py serve PORT DIRECTORY        keeps a certificate in DIRECTORY; sends what comes on a stream back on it
quic.py ask HOST:PORT DIRECTORY     sends bytes on some streams at once, compares what comes back; prints "ok"
"""
import asyncio
import datetime
import hashlib
import os
import sys

from aioquic.asyncio import connect, serve
from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "quic.test"
STREAMS = 4
STREAM_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16


def certificate(directory):
    """Signed by its own key; where both lie."""
    key_file, cert_file = (os.path.join(directory, name) for name in ("key.pem", "cert.pem"))
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    with open(key_file, "wb") as file:
        file.write(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    with open(cert_file, "wb") as file:
        file.write(cert.public_bytes(pem))
    return cert_file, key_file


async def send_back(reader, writer):
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
    writer.write_eof()


async def answer(port, directory):
    configuration = QuicConfiguration(is_client=False)
    configuration.load_cert_chain(*certificate(directory))
    tasks = set()

    def begin(reader, writer):
        tasks.add(task := asyncio.create_task(send_back(reader, writer)))
        task.add_done_callback(tasks.discard)

    await serve("0.0.0.0", port, configuration=configuration, stream_handler=begin)
    await asyncio.Event().wait()


async def one_stream(client):
    reader, writer = await client.create_stream()
    sent, come = hashlib.sha256(), hashlib.sha256()
    for _ in range(STREAM_BYTES // CHUNK_BYTES):
        data = os.urandom(CHUNK_BYTES)
        sent.update(data)
        writer.write(data)
    writer.write_eof()
    count = 0
    while data := await reader.read(CHUNK_BYTES):
        come.update(data)
        count += len(data)
    assert count == STREAM_BYTES, f"{count} bytes came back"
    assert sent.digest() == come.digest(), "other bytes came back"


async def ask(host, port, directory):
    configuration = QuicConfiguration(is_client=True, server_name=NAME)
    configuration.load_verify_locations(os.path.join(directory, "cert.pem"))
    async with connect(host, port, configuration=configuration) as client:
        await asyncio.gather(*(one_stream(client) for _ in range(STREAMS)))
    print("ok")


if sys.argv[1] == "serve":
    asyncio.run(answer(int(sys.argv[2]), sys.argv[3]))
else:
    host, port = sys.argv[2].split(":")
    asyncio.run(ask(host, int(port), sys.argv[3]))
