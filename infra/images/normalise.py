#!/usr/bin/env python3
"""normalise.py NAME SECONDS - makes an image reproducible: reads an archive of `docker save` from
standard input, and writes one for `docker load` to standard output. The result does not depend on
the time or the engine of the build: the digest is that of the files and of the configuration.

    docker save braid | normalise.py braid "$(git log -1 --format=%ct)" | docker load

- Files and folders get the time 0 (1970), because a layer from an engine's cache may be older than the
  commit. A layer whose times are 0 already stays the same byte by byte, so images go on sharing it.
- The image was created at SECONDS (since 1970). An engine's own fields in the configuration are left
  out, including the history, because their text differs between versions."""

import datetime
import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tempfile

# Fields of the configuration: the image's properties and how it runs. OCI demands no others.
IMAGE_KEYS = ("architecture", "os", "variant")
RUN_KEYS = ("Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "Labels", "OnBuild", "Shell", "StopSignal", "User", "Volumes", "WorkingDir")
GZIP_MAGIC = b"\x1f\x8b"


def on_disk(stream):
    """The bytes in an unnamed file: layers may be larger than the memory."""
    file = tempfile.TemporaryFile()
    shutil.copyfileobj(stream, file)
    file.seek(0)
    return file


def plain(layer):
    """Some engines compress layers; the digest is that of the content."""
    packed = layer.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    layer.seek(0)
    return on_disk(gzip.GzipFile(fileobj=layer)) if packed else layer


def settle(layer):
    """The layer without times."""
    with tarfile.open(fileobj=layer, mode="r:") as old:
        members = old.getmembers()
        if any(member.mtime != 0 for member in members):
            file = tempfile.TemporaryFile()
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as new:
                for member in members:
                    member.mtime = 0
                    member.uname = member.gname = ""
                    for time in ("mtime", "atime", "ctime"):
                        member.pax_headers.pop(time, None)
                    new.addfile(member, old.extractfile(member) if member.isreg() else None)
            layer = file
    layer.seek(0)
    return layer


def measure(file):
    """Digest and size."""
    digest, size = hashlib.sha256(), 0
    while piece := file.read(1 << 20):
        digest.update(piece)
        size += len(piece)
    file.seek(0)
    return digest.hexdigest(), size


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    name, seconds = sys.argv[1], int(sys.argv[2])
    with tarfile.open(fileobj=on_disk(sys.stdin.buffer), mode="r:") as saved:
        (entry,) = json.load(saved.extractfile("manifest.json"))
        before = json.load(saved.extractfile(entry["Config"]))
        layers = [settle(plain(on_disk(saved.extractfile(path)))) for path in entry["Layers"]]
    measured = [measure(layer) for layer in layers]
    digests = [digest for digest, _ in measured]
    config = {key: before[key] for key in IMAGE_KEYS if before.get(key)}
    config["config"] = {key: before["config"][key] for key in RUN_KEYS if before["config"].get(key)}
    config["created"] = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    config["rootfs"] = {"type": "layers", "diff_ids": ["sha256:" + digest for digest in digests]}
    config = json.dumps(config, sort_keys=True, separators=(",", ":")).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    tag = name if ":" in name.rpartition("/")[2] else name + ":latest"
    manifest = [{"Config": config_name, "Layers": [digest + ".tar" for digest in digests], "RepoTags": [tag]}]

    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        def add(path, file, size):
            member = tarfile.TarInfo(path)
            member.size = size
            archive.addfile(member, file)
        # Two layers may be equal; the archive has each once.
        for (digest, size), layer in dict(zip(measured, layers)).items():
            add(digest + ".tar", layer, size)
        for path, content in ((config_name, config), ("manifest.json", json.dumps(manifest).encode())):
            add(path, io.BytesIO(content), len(content))


main()
