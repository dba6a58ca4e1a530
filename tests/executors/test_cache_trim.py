"""Trimming the cache of built libraries: oldest use first, only what is ours, while others read and build."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from stepnet.executors import cache_trim
from stepnet.executors.c import build as c_build

HOUR = 3600.0
needs_compiler = pytest.mark.skipif(c_build.available() is not None, reason=f"{c_build.available()}")


def library(folder, number, hours_ago, size=1000):
    key = f"{number % 256:02x}{number:038x}"
    path = folder / key[:2] / f"{key}-{number:064x}.so" if number % 3 else folder / f"{key}-{number:064x}.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    then = time.time() - hours_ago * HOUR
    os.utime(path, (then, then))
    return path


def test_the_longest_unused_go_first_and_no_more_than_must(tmp_path):
    paths = [library(tmp_path, n, hours_ago=10 - n) for n in range(6)]
    cache_trim.trim(tmp_path, 3500)
    assert [p.exists() for p in paths] == [False] * 3 + [True] * 3
    cache_trim.trim(tmp_path, 3000)
    assert [p.exists() for p in paths] == [False] * 3 + [True] * 3


def test_use_is_noted(tmp_path):
    old, older = library(tmp_path, 1, hours_ago=5), library(tmp_path, 2, hours_ago=9)
    cache_trim.used(older)
    cache_trim.trim(tmp_path, 1000)
    assert older.exists()
    assert not old.exists()


def test_what_was_used_just_now_stays(tmp_path):
    path = library(tmp_path, 1, hours_ago=0)
    cache_trim.trim(tmp_path, 0)
    assert path.exists()


def test_only_libraries_and_abandoned_builds_are_touched(tmp_path):
    long_ago = time.time() - 100 * HOUR
    files = ["notes.txt", "a.so", f"{1:040x}.so", f"{1:040x}-{1:064x}.so.bak", "lock-mine"]
    dead, alive = (f"{cache_trim.WORK}{name:_<8}" for name in ("dead", "alive"))
    folders = [dead, alive, "mine", "build-dead", "build-releases", f"{cache_trim.WORK}mine"]
    for name in files:
        (tmp_path / name).write_bytes(b"x" * 5000)
    for name in folders:
        (tmp_path / name).mkdir()
        (tmp_path / name / "step.c").write_text("x")
    (tmp_path / f"lock-{1:040x}.so").touch()
    for at in tmp_path.iterdir():
        if at.name != alive:
            os.utime(at, (long_ago, long_ago))
    cache_trim.trim(tmp_path, 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*files, *folders[1:]])


def test_a_link_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * 5000)
    cache = tmp_path / "cache"
    cache.mkdir()
    link = cache / f"{1:040x}-{1:064x}.so"
    link.symlink_to(outside)
    os.utime(link, (0, 0), follow_symlinks=False)
    cache_trim.trim(cache, 0)
    assert outside.exists()


def test_a_folder_inside_that_is_a_link_is_not_looked_into(tmp_path):
    outside = library(tmp_path / "outside", 1, hours_ago=9)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / outside.parent.name).symlink_to(outside.parent)
    cache_trim.trim(tmp_path / "cache", 0)
    assert outside.exists()


def test_no_folder(tmp_path):
    cache_trim.trim(tmp_path / "none", 0)
    cache_trim.used(tmp_path / "none")


def test_a_process_looks_at_first_and_when_it_has_added_a_part(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr(cache_trim, "MOST_BYTES", 6400)
    monkeypatch.setattr(cache_trim, "trim", looks.append)
    for size in (1, 60, 39, 1, 99, 500):
        cache_trim.added(tmp_path, size)
        looks.append(size)
    assert looks == [tmp_path, 1, 60, 39, tmp_path, 1, 99, tmp_path, 500]


@needs_compiler
def test_a_build_trims_and_a_removed_library_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(c_build, "_loaded", {})
    monkeypatch.setattr(cache_trim, "MOST_BYTES", 1)
    first = c_build.build("int a(void) { return 1; }")
    os.utime(first.path, (0, 0))
    second = c_build.build("int b(void) { return 2; }")
    assert not first.path.exists()
    assert second.path.exists()
    assert first.handle.a() == 1  # still mapped
    c_build._loaded.clear()
    again = c_build.build("int a(void) { return 1; }")
    assert again.seconds > 0
    assert again.handle.a() == 1


@needs_compiler
def test_a_load_from_disk_is_a_use(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(c_build, "_loaded", {})
    built = c_build.build("int a(void) { return 1; }")
    os.utime(built.path, (0, 0))
    c_build._loaded.clear()
    assert c_build.build("int a(void) { return 1; }").seconds == 0
    assert time.time() - built.path.stat().st_mtime < HOUR


def test_processes_may_trim_at_once(tmp_path):
    for number in range(300):
        library(tmp_path, number, hours_ago=400 - number)
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['trim'](sys.argv[2], 50000)"
    command = [sys.executable, "-c", code, cache_trim.__file__, str(tmp_path)]
    running = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(120) for process in running] == [0] * 4
    left = sorted(int(p.name[2:40], 16) for p in tmp_path.rglob("*.so"))
    assert left == list(range(300 - len(left), 300))  # the newest
    assert 0 < len(left) <= 50
