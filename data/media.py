"""Images, video, audio and files of a run: stored once each, by the hash of their bytes.

`<root>/<sha256>.<ext>`, written to disk before the name exists, so a record never names bytes that a crash
took. Equal bytes are one file whatever they were called. Records carry the hash (`Part.media_sha256`).
Not covered: removing media that no record names any more; looking inside them.
"""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
import tempfile
from pathlib import Path

from data.errors import ConfigError, RecordError, StoreError
from data.files import disk_errors, fsync_directory
from data.messages import Part, PartType

FOLDER = "media"
"""Name of the folder in a run directory and in a publication."""

MAX_BYTES = 20 * 2**20

_KINDS = {"image": PartType.IMAGE, "video": PartType.VIDEO, "audio": PartType.AUDIO}
_SUFFIXES = {"image/jpeg": "jpg", "audio/mpeg": "mp3", "application/octet-stream": "bin"}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9.+-]+")


class MediaTooLargeError(RecordError):
    """A medium above the size limit; the message names both sizes."""


class MediaStore:
    """A folder of media, made on the first write. `max_bytes` bounds each medium."""

    def __init__(self, root: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.root, self.max_bytes = root, max_bytes

    def put(self, data: bytes, media_type: str) -> Part:
        """Store `data`; the part that names it. Raises MediaTooLargeError, RecordError, StoreError."""
        part = make_part(data, media_type)
        if len(data) > self.max_bytes:
            raise MediaTooLargeError(
                f"{part.type} of {len(data):,} bytes ({part.media_type}) is above the limit of "
                f"{self.max_bytes:,} bytes"
            )
        if not self.find(part.media_sha256):
            self._write(self.root / f"{part.media_sha256}.{_suffix(part.media_type)}", data)
        return part

    def find(self, sha256: str) -> Path | None:
        """The file of a medium; None where it is not here. Raises RecordError for what is no hash."""
        if not _SHA256.fullmatch(sha256):
            raise RecordError(f"media_sha256 {sha256!r:.80} is no SHA-256: 64 hex digits were expected")
        return next(iter(sorted(self.root.glob(f"{sha256}.*"))), None)

    def read(self, sha256: str) -> bytes:
        """The bytes of a medium, checked against their hash. Raises ConfigError, StoreError."""
        path = self.find(sha256)
        if path is None:
            raise ConfigError(f"medium {sha256} is not in {self.root}; keep the folder with its run")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StoreError(f"{path} is damaged: its bytes do not have the hash in its name; delete it")
        return data

    def _write(self, path: Path, data: bytes) -> None:
        with disk_errors(path, safe="no record names it yet"):
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=".medium-", dir=self.root)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(temporary, 0o644)
                os.replace(temporary, path)
            finally:
                Path(temporary).unlink(missing_ok=True)
            fsync_directory(self.root)


def make_part(data: bytes, media_type: str) -> Part:
    """The part that names `data`; parameters of the media type are dropped. Raises RecordError."""
    plain = media_type.split(";")[0].strip().lower()
    if not _MEDIA_TYPE.fullmatch(plain):
        raise RecordError(f"{media_type!r:.80} is no media type; write one like image/png")
    kind = _KINDS.get(plain.split("/")[0], PartType.FILE)
    return Part(type=kind, media_sha256=hashlib.sha256(data).hexdigest(), media_type=plain)


def guess_type(data: bytes, name: str = "") -> str:
    """Media type by file name, else by the first bytes of the common formats."""
    guessed = mimetypes.guess_type(name)[0] if name else None
    if guessed:
        return guessed
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12], "application/octet-stream")
    if data[4:8] == b"ftyp":
        return "video/mp4"
    for start, found in _MAGIC.items():
        if data.startswith(start):
            return found
    return "application/octet-stream"


_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"\x1aE\xdf\xa3": "video/webm",
    b"ID3": "audio/mpeg",
    b"OggS": "audio/ogg",
    b"%PDF-": "application/pdf",
}


def _suffix(media_type: str) -> str:
    return _SUFFIXES.get(media_type) or (mimetypes.guess_extension(media_type) or ".bin").lstrip(".")
