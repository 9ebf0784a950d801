"""Opening a bundle: run folders with hashes, as a folder or one zip file. It is hostile until it went through here."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from proteus_bench.errors import EnvironmentFault, InvalidFileError
from proteus_bench.leaderboard.forms import read_as, safe_path, shown
from proteus_bench.leaderboard.schema import Bundle, FileBlock, Statement
from proteus_bench.store.canonical import digest, file_digest
from proteus_bench.store.run_file import RunFile, read_run_file

MAX_FILES = 50_000
MAX_FILE_BYTES = 1 << 30
MAX_BYTES = 4 << 30
MAX_RATIO = 400
"""Text of digits and hashes shrinks ten to thirty times; what shrinks more than this is made to fill a disk."""
MANIFEST = "bundle.json"
BUNDLE_CHARS = 16
"""Characters of its hash that name a stored bundle."""
_PIECE = 1 << 20


@dataclass(frozen=True)
class Opened:
    """A bundle that was unpacked and whose files are those that it lists. ``manifest``: None for a bare run folder."""

    root: Path
    manifest: Bundle | None

    @property
    def id(self) -> str | None:
        """The content address: the hash of the manifest."""
        return None if self.manifest is None else bundle_id(self.manifest)

    @property
    def statement(self) -> Statement:
        """What the submitter says."""
        return Statement() if self.manifest is None else self.manifest.statement

    def runs(self) -> Iterator[tuple[Path, RunFile]]:
        """Folder and run.json of every run, in order. InvalidFileError for one that is not what the bundle says."""
        if self.manifest is None:
            yield self.root, read_run_file(self.root / "run.json")
            return
        for run in self.manifest.runs:
            document = read_run_file(self.root / run.path / "run.json")
            if document.run_id != run.run_id:
                raise InvalidFileError(f"{run.path}/run.json is another run than {MANIFEST} says")
            yield self.root / run.path, document

    def tokenizers(self) -> list[Path]:
        """Tokenizer files that came with it."""
        return [] if self.manifest is None else [self.root / file.path for file in self.manifest.tokenizers]

    def checkpoints(self) -> dict[str, Path]:
        """Folders with weights that came with it, by the sha256 that is claimed for them."""
        return {} if self.manifest is None else {c.sha256: self.root / c.path for c in self.manifest.checkpoints}

    def wrong_hashes(self) -> list[str]:
        """Files whose bytes are not those of the manifest (V1)."""
        if self.manifest is None:
            return []
        return [name for name, sha256 in listed_hashes(self.manifest) if file_digest(self.root / name) != sha256]


def bundle_id(bundle: Bundle) -> str:
    """sha256 of the manifest's canonical JSON."""
    return digest(bundle.model_dump(mode="json", by_alias=True))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """A bundle folder, a bundle in a zip file, or a bare run folder. Zips are unpacked into a temporary folder.

    Raises InvalidFileError (exit 3) for anything hostile or not listed: nothing is read outside of ``path``.
    """
    if path.is_symlink() or not path.exists():
        raise InvalidFileError(f"{path} is no bundle: no such file or folder, or a link")
    if path.is_dir():
        yield _open_folder(path, path)
        return
    with tempfile.TemporaryDirectory(prefix="proteus-bundle-") as folder:
        _unzip(path, Path(folder))
        yield _open_folder(Path(folder), path)


def _open_folder(root: Path, source: Path) -> Opened:
    if (root / MANIFEST).is_file():
        found = list_files(root, source)
        bundle = read_as(Bundle, root / MANIFEST)
        _check_listing(bundle, {name: size for name, size in found.items() if name != MANIFEST}, source)
        return Opened(root, bundle)
    if (root / "run.json").is_file() and not (root / "run.json").is_symlink():
        return Opened(root, None)
    raise InvalidFileError(f"{source} holds neither {MANIFEST} nor run.json")


def list_files(root: Path, source: Path) -> dict[str, int]:
    """Relative path -> bytes of every file below ``root``. Links, devices, odd names and too much of anything raise."""
    found: dict[str, int] = {}
    total = 0
    waiting = [(root, "")]
    while waiting:
        folder, prefix = waiting.pop()
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            if not prefix and entry.name.startswith("."):
                continue  # our own lock and what tools leave; nothing there is ever read
            name = _checked_name(prefix + entry.name, source)
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                waiting.append((Path(entry.path), name + "/"))
                continue
            if not stat.S_ISREG(mode):
                raise InvalidFileError(f"{source}: {name[:200]} is a link or no plain file")
            found[name] = entry.stat(follow_symlinks=False).st_size
            total += found[name]
            _check_caps(len(found), found[name], total, name, source)
    return found


def _checked_name(name: str, source: Path) -> str:
    try:
        return safe_path(name)
    except ValueError as error:
        raise InvalidFileError(f"{source}: {shown(error)}") from error


def _check_caps(files: int, size: int, total: int, name: str, source: Path) -> None:
    if files > MAX_FILES:
        raise InvalidFileError(f"{source}: more than {MAX_FILES} files")
    if size > MAX_FILE_BYTES:
        raise InvalidFileError(f"{source}: {name[:200]} is larger than {MAX_FILE_BYTES >> 20} MiB")
    if total > MAX_BYTES:
        raise InvalidFileError(f"{source}: more than {MAX_BYTES >> 20} MiB in all")


def _check_listing(bundle: Bundle, found: dict[str, int], source: Path) -> None:
    """The files are those of the manifest, each once and of the size it says; hashes are a matter of V1."""
    listed: dict[str, int] = {}
    for name, size in listed_files(bundle):
        if name in listed:
            raise InvalidFileError(f"{source}: {MANIFEST} lists {name[:200]} twice")
        listed[name] = size
    lowered: dict[str, str] = {}
    for name in listed:
        other = lowered.setdefault(name.lower(), name)
        if other != name:
            raise InvalidFileError(f"{source}: {name[:200]} and {other[:200]} are one file on some systems")
    for name, size in listed.items():
        if name not in found:
            raise InvalidFileError(f"{source}: {name[:200]} is listed and not there")
        if found[name] != size:
            raise InvalidFileError(f"{source}: {name[:200]} has {found[name]} bytes where {MANIFEST} says {size}")
    extra = sorted(found.keys() - listed.keys())
    if extra:
        raise InvalidFileError(f"{source}: {extra[0][:200]} is there and not listed in {MANIFEST}")


def listed_files(bundle: Bundle) -> list[tuple[str, int]]:
    """(path relative to the bundle, bytes) of everything that the manifest lists."""
    return [(name, file.bytes) for name, file in _listed(bundle)]


def listed_hashes(bundle: Bundle) -> list[tuple[str, str]]:
    """(path relative to the bundle, sha256) of everything that the manifest lists."""
    return [(name, file.sha256) for name, file in _listed(bundle)]


def _listed(bundle: Bundle) -> Iterator[tuple[str, FileBlock]]:
    for run in bundle.runs:
        yield from ((f"{run.path}/{file.path}", file) for file in run.files)
    yield from ((file.path, file) for file in bundle.tokenizers)
    for held in bundle.checkpoints:
        yield from ((f"{held.path}/{file.path}", file) for file in held.files)


def plain_file(root: Path, name: str) -> Path:
    """A file inside a folder, by a name that a stranger wrote. InvalidFileError for links, odd names and huge files."""
    try:
        path = root / safe_path(name)
    except ValueError as error:
        raise InvalidFileError(f"{shown(error)}") from error
    if path.is_symlink() or not path.is_file() or not path.resolve().is_relative_to(root.resolve()):
        raise InvalidFileError(f"{name[:200]} is no file of the run folder")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidFileError(f"{name[:200]} is larger than {MAX_FILE_BYTES >> 20} MiB")
    return path


def _unzip(path: Path, into: Path) -> None:
    """Unpack a zip of plain files, counting what really comes out of it."""
    total = 0
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names: set[str] = set()
            for member in members:
                name = _checked_member(member, names, path)
                _check_caps(len(members), member.file_size, total + member.file_size, name, path)
                target = into / name
                target.parent.mkdir(parents=True, exist_ok=True)
                total += _unpack(archive, member, target, path)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, zlib.error, ValueError) as error:
        raise InvalidFileError(f"{path} is no zip file that can be read: {shown(error, 200)}") from error
    except (OSError, RuntimeError) as error:  # encrypted members are a RuntimeError
        raise InvalidFileError(f"{path}: {shown(error, 200)}") from error


def _checked_member(member: zipfile.ZipInfo, names: set[str], path: Path) -> str:
    name = _checked_name(member.filename, path)
    kind = stat.S_IFMT(member.external_attr >> 16)
    if member.is_dir() or kind not in (0, stat.S_IFREG):
        raise InvalidFileError(f"{path}: {name[:200]} is a link, a folder or no plain file")
    if member.flag_bits & 1:
        raise InvalidFileError(f"{path}: {name[:200]} is encrypted")
    if name.lower() in names:
        raise InvalidFileError(f"{path}: {name[:200]} stands twice")
    names.add(name.lower())
    if member.file_size > MAX_RATIO * max(member.compress_size, 1024):
        raise InvalidFileError(f"{path}: {name[:200]} grows more than {MAX_RATIO}-fold when it is unpacked")
    return name


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, path: Path) -> int:
    """Bytes written; a member that gives more than it says is cut off."""
    written = 0
    with archive.open(member) as source, _Sink(target) as sink:
        while piece := source.read(_PIECE):
            written += len(piece)
            if written > member.file_size:
                raise InvalidFileError(f"{path}: {member.filename[:200]} is larger than it says")
            sink.write(piece)
    return written


class _Sink:
    """A new file. What goes wrong with writing is the disk's fault (EnvironmentFault, exit 4), not that of the bundle."""

    def __init__(self, target: Path) -> None:
        self._handle = self._try(lambda: os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    @staticmethod
    def _try(call: Callable[[], int]) -> int:
        try:
            return call()
        except OSError as error:
            raise EnvironmentFault(f"cannot unpack a bundle: {error.strerror or error}") from error

    def write(self, data: bytes) -> None:
        """All of it."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._try(lambda rest=rest: os.write(self._handle, rest)) :]  # type: ignore[misc]

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._handle)
