"""The file of an optimiser's state, next to the buffer: a checked head, then memory to map.

::

    0   8 bytes   DOGWOPTM
    8   u32       version of the layout
    12  u32       CRC-32 of the description
    16  u64       bytes of the description
    24  u64       bytes of the file
    32  JSON      the description: which buffer, which optimiser, where each value lies
    at a page     a byte for each parameter (1: its state is whole), then the values

A file that has a name has a whole head, and its memory is reserved. Only the last part changes.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from .errors import BufferMismatch, NoSpace

MAGIC = b"DOGWOPTM"
VERSION = 1
_HEAD = struct.Struct("<8sIIQQ")
#: A description larger than this is not one of ours.
_DESCRIPTION_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Whose:
    """What a file belongs to. All of it has to agree."""

    session: int
    fingerprint: int
    #: When the buffer was made, seconds since 1970: another one once it was made anew.
    created_at: float
    optimizer: str


def cure(path: str) -> str:
    """What to do about a file that is not right."""
    return f'remove {path}, replace the buffer with it (existing="fresh"), or give state="own"'


def open_or_make(
    path: str, whose: Whose, values: list[Any], live_bytes: int, replace: bool
) -> tuple[mmap.mmap, int, bool]:
    """Opens the file, or makes one of zeros. Returns its memory, where what lives begins there,
    and whether it was there.

    ``values``: where each value lies, as JSON has it. ``replace``: a file of something else makes
    room, as the buffer that it belonged to has. Without that it is a
    :class:`~dogwild.errors.BufferMismatch`; :class:`~dogwild.errors.NoSpace` is raised too.
    """
    description = json.dumps({**vars(whose), "values": values}).encode()
    begin = -(-(_HEAD.size + len(description)) // mmap.PAGESIZE) * mmap.PAGESIZE
    file_bytes = begin + max(live_bytes, 1)
    file = _open(path, json.loads(description), file_bytes, replace)
    there = file is not None
    if file is None:
        head = _HEAD.pack(MAGIC, VERSION, zlib.crc32(description), len(description), file_bytes)
        file = _make(path, head + description, file_bytes)
    try:
        return mmap.mmap(file, file_bytes), begin, there
    finally:
        os.close(file)


def _open(path: str, wanted: dict[str, Any], file_bytes: int, replace: bool) -> int | None:
    """Opens the file, which must be as it is wanted. None: there is no such file (any more)."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BufferMismatch(f"{path} cannot be opened: {error.strerror}; {cure(path)}") from error
    try:
        _check(path, file, wanted, file_bytes)
        return file
    except BaseException as error:
        ours = stat.S_ISREG(os.fstat(file).st_mode) and os.pread(file, len(MAGIC), 0) == MAGIC
        os.close(file)
        if not (replace and ours and isinstance(error, BufferMismatch)):
            raise
    os.unlink(path)
    return None


def _make(path: str, head: bytes, file_bytes: int) -> int:
    """A file that gets its name when it is whole: who is killed meanwhile leaves nothing."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name, meanwhile = os.path.basename(path), None
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            file = os.open(".", flags | os.O_TMPFILE, 0o600, dir_fd=folder)
        except OSError:
            # Not every file system has files without a name.
            meanwhile = f".{name}.{os.getpid()}.new"
            file = os.open(meanwhile, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        try:
            _reserve(path, file, file_bytes)
            os.pwrite(file, head, 0)
            # With folders given, the link is one to the file, not to the entry in /proc.
            source = meanwhile or f"/proc/self/fd/{file}"
            os.link(source, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.close(file)
            raise
        finally:
            if meanwhile is not None:
                os.unlink(meanwhile, dir_fd=folder)
        return file
    finally:
        os.close(folder)


def _reserve(path: str, file: int, file_bytes: int) -> None:
    """Takes the memory now, so that a full file system is an error here and no SIGBUS later."""
    system = os.fstatvfs(file)
    free = system.f_bavail * system.f_frsize
    short = file_bytes > free
    if not short:
        try:
            os.posix_fallocate(file, 0, file_bytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            short = True
    if short:
        raise NoSpace(
            f"{path} for the optimiser's state needs {file_bytes / 2**20:.1f} MiB, "
            f"{free / 2**20:.1f} MiB free: make room (dogwild clean lists what jobs have left), "
            'or give state="own"'
        )


def _check(path: str, file: int, wanted: dict[str, Any], file_bytes: int) -> None:
    there = _description(path, file)
    whats = {"session": "job", "fingerprint": "model", "created_at": "buffer of this name"}
    for field, what in whats.items():
        if there.get(field) != wanted[field]:
            raise BufferMismatch(f"{path} belongs to another {what}: {cure(path)}")
    if there.get("optimizer") != wanted["optimizer"]:
        raise BufferMismatch(
            f"{path} has the state of {there.get('optimizer')}, this process trains with "
            f"{wanted['optimizer']}: {cure(path)}"
        )
    if there.get("values") != wanted["values"]:
        difference = _difference(there.get("values"), wanted["values"])
        raise BufferMismatch(
            f"{path} has other state than this optimiser ({difference}): {cure(path)}"
        )
    if os.fstat(file).st_size != file_bytes:
        raise _damaged(path, f"{os.fstat(file).st_size} bytes where {file_bytes} are announced")


def _difference(there: Any, wanted: list[Any]) -> str:
    """The first value in which two descriptions differ, in words."""

    def said(values: list[Any]) -> list[str]:
        return [f"{name} {key} ({dtype}, shape {shape})" for name, key, dtype, shape, _ in values]

    theirs, ours = said(there), said(wanted)
    for one, other in zip(theirs, ours):
        if one != other:
            return f"{one} where this has {other}"
    longer, whose = (theirs, "it") if len(theirs) > len(ours) else (ours, "this optimiser")
    return f"only {whose} has {longer[min(len(theirs), len(ours))]}"


def _description(path: str, file: int) -> dict[str, Any]:
    """The description in a file that may be anything."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise BufferMismatch(f"{path} is not a file: {cure(path)}")
    head = os.pread(file, _HEAD.size, 0)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise BufferMismatch(
            f"{path} is not a file of an optimiser's state (it does not begin with "
            f"{MAGIC.decode()}): move it away"
        )
    _, version, crc, length, file_bytes = _HEAD.unpack(head)
    if version != VERSION:
        raise BufferMismatch(
            f"{path} has version {version} of its layout, this dogwild has {VERSION}: {cure(path)}"
        )
    if length > _DESCRIPTION_BYTES_MAX:
        raise _damaged(path, f"a description of {length} bytes")
    text = os.pread(file, length, _HEAD.size)
    if len(text) != length or zlib.crc32(text) != crc:
        raise _damaged(path, "its description is not what was written")
    found = json.loads(text)
    assert isinstance(found, dict)
    if os.fstat(file).st_size != file_bytes:
        raise _damaged(path, f"{os.fstat(file).st_size} bytes where {file_bytes} are announced")
    return found


def _damaged(path: str, why: str) -> BufferMismatch:
    return BufferMismatch(f"{path} is damaged ({why}): {cure(path)}")
