"""The cache is no door: what others could have put there is not read, and what is written follows no link."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import stat
import time

import pytest

from forks import Fork
from stepnet.errors import BuildError
from stepnet.executors import cache_folder, plan_files

PLANS_ON_DISK = True  # see around_tests
KEY = "0" * 40
DATA = b"what was kept"
pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A folder of this test."""
    folder = tmp_path / "above" / "cache"
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(folder))
    cache_folder._private_folder.cache_clear()
    yield folder
    cache_folder._private_folder.cache_clear()


def path_of(cache, data=DATA):
    return cache / KEY[:2] / f"{KEY}-{hashlib.sha256(data).hexdigest()}.plan"


def test_what_is_written_is_read_and_is_private(cache):
    before = os.umask(0)
    try:
        plan_files.write(KEY, DATA)
    finally:
        os.umask(before)
    assert plan_files.read(KEY) == DATA
    assert stat.S_IMODE(path_of(cache).stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(path_of(cache).parent.stat().st_mode) == 0o700
    assert [path for path in cache.rglob("*") if not path.is_dir()] == [path_of(cache)]


def _link(path, outside):
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)


def _hard_link(path, outside):
    os.link(path, outside)


def _pipe(path, _):
    path.unlink()
    os.mkfifo(path)


def _huge(path, _):
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a hole: nothing on disk, and no memory may be taken for it


def _folder(path, _):
    path.unlink()
    path.mkdir()


FILES = {
    "other bytes": lambda path, _: path.write_bytes(DATA + b"!"),
    "its group may write": lambda path, _: path.chmod(0o620),
    "all may write": lambda path, _: path.chmod(0o602),
    "a link": _link,
    "a link to nothing": lambda path, _: (path.unlink(), path.symlink_to("nothing")),
    "a hard link": _hard_link,
    "a pipe": _pipe,
    "huge": _huge,
    "a folder": _folder,
    "unreadable": lambda path, _: path.chmod(0),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_others_may_have_made_is_not_read(name, cache, tmp_path):
    if name == "unreadable" and os.geteuid() == 0:
        pytest.skip("root reads all")
    plan_files.write(KEY, DATA)
    outside = tmp_path / "outside"
    FILES[name](path_of(cache), outside)
    assert plan_files.read(KEY) is None
    if name != "a folder":
        assert not os.path.lexists(path_of(cache))
    if outside.exists():
        assert outside.read_bytes() == DATA


def test_a_file_of_another_owner_is_not_read(cache, monkeypatch):
    plan_files.write(KEY, DATA)
    real = os.fstat

    def of_another(at):
        known = list(real(at))
        known[stat.ST_UID] += 1
        return os.stat_result(known)

    monkeypatch.setattr(cache_folder.os, "fstat", of_another)
    assert plan_files.read(KEY) is None


def _linked_folder(cache):
    elsewhere = cache.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    _remove(cache)
    cache.symlink_to(elsewhere)


def _remove(cache):
    for part in cache.iterdir():
        part.rmdir()
    cache.rmdir()


FOLDERS = {
    "a link": _linked_folder,
    "a link to nothing": lambda cache: (_remove(cache), cache.symlink_to("nothing")),
    "a link to itself": lambda cache: (_remove(cache), cache.symlink_to(cache)),
    "its group may write": lambda cache: cache.chmod(0o720),
    "all may write": lambda cache: cache.chmod(0o702),
    "sticky, and all may write": lambda cache: cache.chmod(0o1777),
    "all may write above": lambda cache: cache.parent.chmod(0o707),
    "all may write further above": lambda cache: cache.parent.parent.chmod(0o707),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_others_can_change_is_refused(name, cache):
    plan_files.write(KEY, DATA)
    path_of(cache).rename(cache.parent / "kept")
    FOLDERS[name](cache)
    with pytest.warns(RuntimeWarning, match="cannot be the cache of built libraries") as told:
        plan_files.write(KEY, DATA)
    assert told[0].filename == __file__  # the user's line
    assert not path_of(cache).exists()
    assert plan_files.read(KEY) == DATA  # from a folder of this process alone


PARTS = {
    "a link": lambda part, outside: (part.rename(outside), part.symlink_to(outside)),
    "all may write": lambda part, _: part.chmod(0o702),
    "its group may write": lambda part, _: part.chmod(0o720),
    "a file": lambda part, outside: (part.rename(outside), part.write_bytes(b"in the way")),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_folder_inside_that_others_can_change_is_not_read_nor_written(name, cache, tmp_path):
    plan_files.write(KEY, DATA)
    PARTS[name](path_of(cache).parent, tmp_path / "outside")
    assert plan_files.read(KEY) is None
    kept = sorted(tmp_path.rglob("*.plan"))
    plan_files.write(KEY, b"other")
    assert sorted(tmp_path.rglob("*.plan")) == kept


@pytest.mark.parametrize(("group", "refused"), [("its owner's", False), ("another", True)])
def test_a_group_may_write_above_if_it_is_the_owners_own(group, refused, cache, monkeypatch):
    plan_files.write(KEY, DATA)
    cache.parent.chmod(0o770)
    real = cache_folder.Path.lstat

    def seen(path):
        known = list(real(path))
        known[stat.ST_GID] = known[stat.ST_UID] + (group == "another")
        return os.stat_result(known)

    monkeypatch.setattr(cache_folder.Path, "lstat", seen)
    assert (cache_folder._unfit(cache) is not None) == refused


def test_a_folder_above_may_be_sticky_and_reached_by_a_link(cache, tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk").chmod(0o1777)
    (tmp_path / "way").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path / "way" / "cache"))
    plan_files.write(KEY, DATA)
    assert path_of(tmp_path / "disk" / "cache").read_bytes() == DATA
    assert cache_folder.cache_folder() == tmp_path / "disk" / "cache"  # the link may lead elsewhere any time


def test_a_path_that_the_loader_reads_otherwise_is_refused(cache, monkeypatch):
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(cache / "$LIB"))
    with pytest.warns(
        RuntimeWarning, match=r"\$LIB cannot be the cache of built libraries: the system's loader"
    ):
        assert "$" not in str(cache_folder.cache_folder())


def test_a_folder_of_one_process_is_looked_at_as_any_other(cache, tmp_path, monkeypatch):
    """All may write where temporary files are, or it was tidied up."""
    monkeypatch.setenv("STEPNET_CACHE_DIR", "/dev/null")
    monkeypatch.setattr(cache_folder.tempfile, "tempdir", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="building again in every process"):
        own = cache_folder.cache_folder()
    own.rmdir()
    plan_files.write(KEY, DATA)
    assert path_of(own).read_bytes() == DATA
    tmp_path.chmod(0o777)
    with pytest.raises(BuildError, match="other users may replace it"):
        cache_folder.cache_folder()
    assert plan_files.read(KEY) is None


def test_a_folder_below_one_of_another_user_is_refused(cache, monkeypatch):
    cache.mkdir(parents=True)
    real = cache_folder.Path.lstat

    def seen(path):
        known = list(real(path))
        if path == cache.parent:
            known[stat.ST_UID] = os.geteuid() + 1
        return os.stat_result(known)

    monkeypatch.setattr(cache_folder.Path, "lstat", seen)
    assert "belongs to them" in (cache_folder._unfit(cache) or "")


@pytest.mark.parametrize("to", ["a file", "nothing"])
def test_a_write_replaces_a_link_and_does_not_follow_it(to, cache, tmp_path):
    outside = tmp_path / "outside"
    if to == "a file":
        outside.write_bytes(b"precious")
    path_of(cache).parent.mkdir(parents=True, mode=0o700)
    path_of(cache).symlink_to(outside)
    plan_files.write(KEY, DATA)
    assert not path_of(cache).is_symlink()
    assert path_of(cache).read_bytes() == DATA
    assert outside.exists() == (to == "a file")
    assert to == "nothing" or outside.read_bytes() == b"precious"


def test_a_tilde_is_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STEPNET_CACHE_DIR", "~/kept")
    assert cache_folder.cache_folder() == tmp_path / "kept"


def test_a_folder_in_a_working_directory_that_is_gone(monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv("STEPNET_CACHE_DIR", "here")
    gone.rmdir()
    with pytest.warns(RuntimeWarning, match="here cannot be the cache of built libraries: the working dir"):
        plan_files.write(KEY, DATA)
    assert plan_files.read(KEY) == DATA
    monkeypatch.chdir(tmp_path)


def test_the_lock_of_a_process_that_dies_is_free_though_a_child_of_it_lives(cache):
    def leaves_a_child() -> None:
        with cache_folder.alone("name", 9):
            if os.fork() == 0:
                inside.set()
                time.sleep(1)
                os._exit(0)
            time.sleep(60)

    inside = multiprocessing.get_context("fork").Event()
    other = Fork(leaves_a_child)
    assert inside.wait(60)
    file = os.open(cache / "lock-name", os.O_RDWR)
    assert not cache_folder._is_locked(file)
    other.kill()
    assert cache_folder._is_locked(file)
    os.close(file)
