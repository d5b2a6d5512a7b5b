"""Packs a module into a wheel (https://packaging.python.org/en/latest/specifications/binary-distribution-format/):
wheel.py MODULE.so VERSION DIR. The same module gives the same bytes."""
import base64, hashlib, pathlib, sys, zipfile

module, version, out = sys.argv[1:]
tag = "cp39-abi3-linux_x86_64"
info = f"fordway-{version}.dist-info"
files = {
    "fordway.abi3.so": pathlib.Path(module).read_bytes(),
    f"{info}/METADATA": f"""Metadata-Version: 2.1
Name: fordway
Version: {version}
Summary: Sockets between domains
License: MIT OR Apache-2.0
Requires-Python: >=3.9
""".encode(),
    f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: fordway\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
}
record = f"{info}/RECORD"
sums = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() for name, data in files.items()}
lines = [f"{name},sha256={sums[name]},{len(data)}\n" for name, data in files.items()]
files[record] = "".join(lines + [f"{record},,\n"]).encode()
wheel = pathlib.Path(out) / f"fordway-{version}-{tag}.whl"
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
    for name, data in files.items():
        packed.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
print(wheel)
