"""Building generated C: the cache cannot be fooled, many may build at once, every failure says what to do."""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from covering import few
from forks import Fork
from stepnet import explain, recurrent
from stepnet.errors import BuildError, NotBuilt, TorchOpsWarning
from stepnet.executors import cache_folder
from stepnet.executors.c import build as c_build
from stepnet.executors.c import products
from threads import at_once

needs_compiler = pytest.mark.skipif(c_build.available() is not None, reason=f"{c_build.available()}")
ANSWER = "void answer(int64_t *x) { *x = 42; }"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test, and nothing remembered from other tests."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(folder))
    monkeypatch.setattr(c_build, "_loaded", {})
    monkeypatch.setattr(c_build, "_objects", {})
    c_build._find_compiler.cache_clear()
    cache_folder._private_folder.cache_clear()
    yield folder
    c_build._find_compiler.cache_clear()
    cache_folder._private_folder.cache_clear()


def _source(salt: object = 0) -> str:
    return f"/* {salt} */ #include <stdint.h>\n{ANSWER}".replace("*/ #", "*/\n#")


def _answer(library: c_build.Library) -> int:
    x = ctypes.c_int64(0)
    library.function("answer", ctypes.c_void_p)(ctypes.byref(x))
    return x.value


def _forget() -> None:
    c_build._loaded.clear()
    c_build._objects.clear()


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# ---- building and remembering


@needs_compiler
def test_builds_once_then_from_memory_then_from_disk(cache):
    first = c_build.build(_source())
    assert _answer(first) == 42
    assert first.seconds > 0
    assert c_build.build(_source()) is first
    _forget()
    second = c_build.build(_source())
    assert (second.seconds, second.path, _answer(second)) == (0.0, first.path, 42)
    assert _files(cache) == [first.path]


@needs_compiler
def test_builds_without_a_path(cache, monkeypatch):
    monkeypatch.delenv("PATH")
    assert _answer(c_build.build(_source())) == 42


def _files(cache):
    return [path for path in cache.rglob("*") if not path.is_dir()]


@needs_compiler
def test_cache_folder_is_private(cache):
    c_build.build(_source())
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@needs_compiler
@pytest.mark.parametrize("change", ["source", "flags", "compiler"])
def test_anything_that_changes_the_code_changes_the_key(change, monkeypatch):
    first = c_build.build(_source())
    if change == "source":
        other = c_build.build(_source("other"))
    else:
        known = c_build.compiler()
        flags = (*known.flags, "-DOTHER") if change == "flags" else known.flags
        fingerprint = "another" if change == "compiler" else known.fingerprint
        changed = c_build.Compiler(known.command, flags, fingerprint)
        monkeypatch.setattr(c_build, "compiler", lambda: changed)
        other = c_build.build(_source())
    assert other.path != first.path
    assert other.seconds > 0


@needs_compiler
@pytest.mark.parametrize("linked", [False, True], ids=["whole", "linked"])
def test_the_preamble_compiles_for_both_types_and_without_warnings(linked, tmp_path):
    source = tmp_path / "all.c"
    library = "".join(f"#include <{name}.h>\n" for name in ("math", "stdint", "stdlib", "string"))
    text = c_build.preamble("f32", "f64", linked=linked)
    source.write_text(text + library if linked else library + text)  # which declares the same
    cc = c_build.compiler()
    strict = [
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-command-line-argument",
        "-c",
        "-o",
        str(tmp_path / "all.o"),
    ]
    command = [*cc.command, *cc.flags, *strict, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_what_is_linked_reads_no_header_of_instructions():
    """It takes longer to read than a step takes to compile."""
    floats = "#define SN_LINKED\n" + products.common() + products.BY_SUFFIX["f32"].text
    text = floats + products.paired(tiles=1) + products.split(is_fast=True)
    cc = c_build.compiler()
    done = c_build._run([*cc.command, *cc.flags, "-D__AMX_BF16__", "-E", "-x", "c", "-"], stdin=text)
    assert done.returncode == 0, done.stderr
    assert "sn_tiles_block" in done.stdout
    assert "intrin" not in done.stdout


PACKED = """
void answer(int64_t *x) {
    %(real)s b[1] = {6}, packed[64], to[1], a[1] = {7};
    sn_pack_%(type)s(packed, b, 1, 1, 1, 1);
    sn_matmul_%(type)s((sn_rows_%(type)s){to, 1, 0}, (sn_rows_%(type)s){0, 0, 0}, (sn_rows_%(type)s){a, 1, 0},
                       packed, 1, 1, 1);
    *x = (int64_t)to[0];
}
"""


def _linked(kind: str, salt: object = 0) -> c_build.Library:
    text = PACKED % {"type": kind, "real": {"f32": "float", "f64": "double"}[kind]}
    return c_build.build(f"{c_build.preamble(kind, linked=True)}{text}/* {salt} */", kind)


@pytest.fixture
def quick(monkeypatch):
    """Products are large: these tests do not optimise them."""
    known = c_build.compiler()
    flags = c_build.Compiler(known.command, (*known.flags, "-O0"), known.fingerprint)
    monkeypatch.setattr(c_build, "compiler", lambda: flags)


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.usefixtures("quick")
def test_products_are_built_once_for_each_type(cache, monkeypatch):
    compiled = []
    real = c_build._made

    def made(cc, key, name, *rest):
        compiled.append(name)
        return real(cc, key, name, *rest)

    monkeypatch.setattr(c_build, "_made", made)
    for kind in ("f32", "f64"):
        assert [_answer(_linked(kind, salt)) for salt in range(2)] == [42, 42]
        _forget()
        assert _answer(_linked(kind, 1)) == 42
    assert compiled == ["products.o", "step.so", "step.so"] * 2
    assert len(list(cache.rglob("*.o"))) == 2


@pytest.mark.exhaustive  # libraries are: above
@needs_compiler
@pytest.mark.usefixtures("quick")
def test_products_that_others_may_have_made_are_built_again(cache, tmp_path):
    assert _answer(_linked("f32")) == 42
    (path,) = cache.rglob("*.o")
    good = path.read_bytes()
    for hostile in ("damaged", "others may write", "a link"):
        if hostile == "damaged":
            path.write_bytes(b"no object")
        elif hostile == "others may write":
            path.chmod(0o666)
        else:
            path.rename(tmp_path / "elsewhere.o")
            path.symlink_to(tmp_path / "elsewhere.o")
        _forget()
        assert _answer(_linked("f32", hostile)) == 42, hostile
        assert not path.is_symlink()
        assert path.read_bytes() == good, hostile
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, hostile


# ---- a cache that lies


@needs_compiler
@pytest.mark.parametrize(
    "damage", few(["cut", "flipped", "empty", "foreign", "text"], ["flipped", "foreign"])
)
def test_a_damaged_file_is_never_loaded(damage, cache, tmp_path):
    first = c_build.build(_source())
    good = first.path.read_bytes()
    if damage == "foreign":
        _forget()
        foreign = c_build.build(_source("x").replace("42", "13")).path
        bad = foreign.read_bytes()
        foreign.unlink()
    else:
        middle = len(good) // 2
        flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
        bad = {"cut": good[:middle], "flipped": flipped, "empty": b"", "text": b"not a library"}[damage]
    replacement = cache / "replacement"
    replacement.write_bytes(bad)
    replacement.rename(first.path)  # the mapping of the loaded library keeps its own bytes
    _forget()
    second = c_build.build(_source())
    assert second.seconds > 0
    assert _answer(second) == 42
    assert second.path.read_bytes() == good or second.path != first.path


@needs_compiler
def test_a_file_with_a_true_digest_that_does_not_load_is_rebuilt(cache):
    first = c_build.build(_source())
    first.path.unlink()
    key = first.path.name.partition("-")[0]
    text = b"honest, but no library"
    first.path.with_name(f"{key}-{hashlib.sha256(text).hexdigest()}.so").write_bytes(text)
    _forget()
    second = c_build.build(_source())
    assert _answer(second) == 42
    assert _files(cache) == [second.path]


@needs_compiler
@pytest.mark.parametrize("hostile", few(["group", "others", "parent", "owner", "file"], ["group", "file"]))
def test_a_folder_others_can_change_is_refused(hostile, cache, monkeypatch):
    if hostile == "file":
        cache.write_text("in the way")
    else:
        cache.mkdir(mode=0o700)
    if hostile == "group":
        cache.chmod(0o770)
    elif hostile == "others":
        cache.chmod(0o707)
    elif hostile == "parent":
        cache.parent.chmod(0o777)
    elif hostile == "owner":
        lstat = Path.lstat

        def of_another_user(path):
            found = lstat(path)
            return os.stat_result((*found[:4], found.st_uid + 1, *found[5:])) if path == cache else found

        monkeypatch.setattr(Path, "lstat", of_another_user)
    with pytest.warns(RuntimeWarning, match="cannot be the cache of built libraries"):
        library = c_build.build(_source())
    assert _answer(library) == 42
    assert cache not in library.path.parents
    own = library.path.parent.parent
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (own, library.path.parent)} == {0o700}
    assert c_build.build(_source(1)).path.parent.parent == own  # and no second warning


@needs_compiler
def test_nowhere_to_write(cache, monkeypatch):
    cache.write_text("in the way")
    monkeypatch.setattr(cache_folder.tempfile, "mkdtemp", _raise_full_disk)
    with pytest.raises(BuildError, match=r"No space left(.|\n)*set STEPNET_CACHE_DIR"):
        c_build.build(_source())


def _raise_full_disk(**_: object) -> str:
    raise OSError(28, "No space left on device")


@needs_compiler
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has its own folder")
@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("/x/cache", "/x/cache/stepnet"),
        ("", "/home/me/.cache/stepnet"),
        ("relative", "/home/me/.cache/stepnet"),
    ],
)
def test_the_users_cache_folder(given, used, monkeypatch):
    monkeypatch.delenv("STEPNET_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(cache_folder, "_looked_at", lambda folder: (folder, None))
    assert str(cache_folder.cache_folder()) == used


# ---- many at once


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_eight_processes_at_once(cache, tmp_path, monkeypatch):
    """As ranks that start together: one compiles, and all have it."""
    count = tmp_path / "count"
    real = c_build.compiler().command[0]
    slow = f'case "$*" in *-shared*) echo x >> {count}; sleep 0.3;; esac; exec {real} "$@"'
    monkeypatch.setenv("CC", str(_script(tmp_path / "slow-cc", slow)))
    ranks = [Fork(lambda: _answer(c_build.build(_source()))) for _ in range(8)]
    assert [rank.result() for rank in ranks] == [42] * 8
    assert [path.suffix for path in _files(cache)] == [".so"]  # no half-built leftovers, no locks
    assert count.read_text() == "x\n"


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("end", ["dies", "hangs"])
def test_one_that_waits_for_a_build_does_not_wait_for_ever(cache, monkeypatch, end):
    """Whoever builds the same may be killed, or stopped, or the disk may have no locks."""
    monkeypatch.setattr(c_build, "_MOST_WAIT", 0.2)
    source = _source()
    key = c_build._key(c_build.compiler(), source)

    def builds() -> None:
        with cache_folder.alone(f"{key}.so", 9):
            inside.set()
            time.sleep(60)

    inside = multiprocessing.get_context("fork").Event()
    other = Fork(builds)
    assert inside.wait(60)
    if end == "dies":
        other.kill()
    started = time.monotonic()
    library = c_build.build(source)
    waited = time.monotonic() - started
    other.kill()
    assert library.path.exists()
    assert end == "dies" or waited >= 0.2


@needs_compiler
def test_threads_share_one_build(tmp_path, monkeypatch):
    count = tmp_path / "count"
    real = c_build.compiler().command[0]
    slow = _script(
        tmp_path / "slow-cc", f'case "$*" in *-shared*) echo x >> {count}; sleep 0.3;; esac; exec {real} "$@"'
    )
    monkeypatch.setenv("CC", str(slow))
    found = at_once(lambda _: c_build.build(_source()), 6)
    assert len({id(library) for library in found}) == 1
    assert count.read_text() == "x\n"


# ---- compilers


@needs_compiler
def test_cc_may_have_arguments(monkeypatch):
    monkeypatch.setenv("CC", f"{c_build.compiler().command[0]} -DEXTRA=42")
    source = "#include <stdint.h>\nvoid answer(int64_t *x) { *x = EXTRA; }"
    assert _answer(c_build.build(source)) == 42


@needs_compiler
def test_cc_may_not_ask_for_arithmetic_without_nan(monkeypatch):
    monkeypatch.setenv("CC", f"{c_build.compiler().command[0]} -ffast-math")
    library = c_build.build("void is_nan(double *x) { *x = *x != *x; }")
    x = ctypes.c_double(float("nan"))
    library.function("is_nan", ctypes.c_void_p)(ctypes.byref(x))
    assert x.value == 1.0


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="all libraries at once")
@pytest.mark.parametrize("lacks", ["at linking", "at loading"])
def test_a_compiler_whose_code_needs_more_libraries_gets_them(lacks, tmp_path, monkeypatch):
    real = c_build.compiler().command[0]
    refuse = 'case "$*" in *-nostdlib*) exit 1;; esac' if lacks == "at linking" else ""
    defines = 'case "$*" in *-nostdlib*) ;; *) set -- "$@" -DLIBRARY_OF_ITS_OWN;; esac'
    count = f'case "$*" in *-shared*) echo x >> {tmp_path}/count;; esac'
    monkeypatch.setenv("CC", str(_script(tmp_path / "cc", f'{count}\n{refuse}\n{defines}\nexec {real} "$@"')))
    own = "#ifdef LIBRARY_OF_ITS_OWN\nvoid own(void) {}\n#else\nvoid own(void);\n#endif\n"
    for salt in range(2):
        answer = _source(salt).replace("{", "{ own();")
        assert _answer(c_build.build(own + answer)) == 42
    assert (tmp_path / "count").read_text() == "x\n" * 3  # the second build knows


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="all libraries at once")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("function", "libm"), few([(torch.tanh, False), (torch.sin, True)], [(torch.sin, True)])
)
def test_what_calls_nothing_of_libm_is_not_linked_with_it(function, libm, monkeypatch):
    commands, real = [], c_build._run
    monkeypatch.setattr(c_build, "_run", lambda command: commands.append(command) or real(command))

    def step(x, h):
        h = function(x + h)
        return h, h

    x, h = torch.randn(2, 1, 3), torch.zeros(1, 3)
    torch.testing.assert_close(recurrent(step, x, h, backend="c"), recurrent(step, x, h, backend="naive"))
    scans = [command for command in commands if any("linked" in word for word in command)]
    assert scans
    assert {"-lm" in command for command in scans} == {libm}


@needs_compiler
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("threads", few([1, 2], [1]))
def test_forward_and_backward_are_one_build_where_there_is_one_thread(threads, monkeypatch):
    torch.set_num_threads(threads)
    commands, real = [], c_build._run
    monkeypatch.setattr(c_build, "_run", lambda command: commands.append(command) or real(command))
    x, h = torch.randn(2, 1, 3, requires_grad=True), torch.zeros(1, 3)

    def builds(step):
        commands.clear()
        found = [recurrent(step, x, h, backend=name)[0] for name in ("c", "naive")]
        torch.testing.assert_close(*found)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in found))
        return len([command for command in commands if any("linked" in word for word in command)])

    assert builds(lambda x, h: ((x + h).tanh(), h * x - threads)) == (1 if threads == 1 else 2)
    assert builds(lambda x, h: ((x + h).tanh(), (h * x) - threads)) == 0


@needs_compiler
def test_a_compiler_that_refuses_flags_gets_fewer(tmp_path, monkeypatch):
    real = c_build.compiler().command[0]
    refuse = 'case "$*" in *" -m"*) echo "unknown option -m" >&2; exit 1;; esac'
    monkeypatch.setenv("CC", str(_script(tmp_path / "plain-cc", f'{refuse}\nexec {real} "$@"')))
    assert not any(flag.startswith("-m") for flag in c_build.compiler().flags)
    assert _answer(c_build.build(_source())) == 42


def test_no_compiler_at_all(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(c_build.importlib.util, "find_spec", lambda name: None)
    assert c_build.available() == "cc not found; gcc not found; clang not found; ziglang not installed"
    with pytest.raises(
        BuildError, match=r"no C compiler can be used(.|\n)*gcc not found(.|\n)*stepnet\[compiler\]"
    ):
        c_build.build(_source())


def test_ziglang_is_the_last_resort(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(c_build.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(
        c_build.sys, "executable", str(_script(tmp_path / "python", 'echo "#define __STDC__ 1"'))
    )
    assert c_build.compiler().command[1:] == ("-m", "ziglang", "cc")


@pytest.mark.parametrize(
    ("cc", "reason"),
    [
        ("/no/such/compiler", "No such file or directory"),
        ("'unclosed", "cannot be split into words"),
        ("{broken}", "licence expired"),
        ("{silent}", "exit status 3"),
        ("{liar}", "exit status 0"),
    ],
)
def test_a_compiler_that_does_not_work_says_why(cc, reason, tmp_path, monkeypatch):
    scripts = {
        "broken": _script(tmp_path / "broken", "echo 'cc: licence expired' >&2; exit 1"),
        "silent": _script(tmp_path / "silent", "exit 3"),
        "liar": _script(tmp_path / "liar", "exit 0"),
    }
    monkeypatch.setenv("CC", cc.format(**scripts))
    assert reason in (c_build.available() or "")
    with pytest.raises(BuildError, match=reason):
        c_build.build(_source())


@needs_compiler
def test_a_compiler_whose_code_would_end_this_process_is_not_used(monkeypatch):
    monkeypatch.setenv("CC", f"{c_build.compiler().command[0]} -fsanitize=address")
    assert "LD_PRELOAD" in (c_build.available() or "")


@needs_compiler
def test_a_compiler_error_shows_its_own_words_and_the_command():
    with pytest.raises(BuildError) as raised:
        c_build.build("void broken(void) { this is not C; }")
    text = str(raised.value)
    assert "step.c:1" in text
    assert "error" in text
    assert "-ffp-contract=fast" in text
    assert "remedy" in text


@needs_compiler
def test_a_compiler_that_writes_nothing_or_rubbish(tmp_path, monkeypatch):
    probe = 'case "$*" in *-dM*) echo "#define __STDC__ 1"; exit 0;; esac'
    monkeypatch.setenv("CC", str(_script(tmp_path / "empty-cc", probe)))
    with pytest.raises(BuildError, match="the C compiler failed"):
        c_build.build(_source())
    write = 'while [ "$1" != -o ]; do shift; done; echo rubbish > "$2"'
    monkeypatch.setenv("CC", str(_script(tmp_path / "rubbish-cc", f"{probe}\n{write}")))
    with pytest.raises(BuildError, match="could not be kept or loaded"):
        c_build.build(_source())


@needs_compiler
def test_a_full_disk_names_the_remedy(tmp_path, monkeypatch):
    probe = 'case "$*" in *-dM*) echo "#define __STDC__ 1"; exit 0;; esac'
    fail = "echo 'ld: final link failed: No space left on device' >&2; exit 1"
    monkeypatch.setenv("CC", str(_script(tmp_path / "full-cc", f"{probe}\n{fail}")))
    with pytest.raises(BuildError, match=r"No space left(.|\n)*STEPNET_CACHE_DIR"):
        c_build.build(_source())


@needs_compiler
@pytest.mark.usefixtures("quick")
def test_a_step_is_built_when_the_disk_has_space_again(monkeypatch):
    """Torch ops run it until then; it is tried again after twice as many calls each time."""
    compile_, tries = c_build._run, []

    def full(command, stdin=""):
        if "-dM" in command:
            return compile_(command, stdin)
        tries.append(command)
        raise OSError(28, "No space left on device")

    def step(x, h):
        return h - x, h - x

    def run(backend="auto"):
        return recurrent(step, torch.ones(3, 1, 2), torch.zeros(1, 2), backend=backend)[1].tolist()

    monkeypatch.setattr(c_build, "_run", full)
    with pytest.warns(TorchOpsWarning, match="could not be kept"):
        assert [run() for _ in range(30)] == [[[-3.0, -3.0]]] * 30
    assert 4 <= len(tries) <= 12
    for _ in range(2):
        with pytest.raises(NotBuilt, match="No space left"):
            run("c")
    monkeypatch.setattr(c_build, "_run", compile_)
    assert run("c") == [[-3.0, -3.0]]  # at once: no other executor was asked for
    assert [run() for _ in range(35)] == [[[-3.0, -3.0]]] * 35
    assert explain(step, torch.ones(3, 1, 2), torch.zeros(1, 2)).executor == "c"


@needs_compiler
def test_helpers_are_built_when_that_works_again(monkeypatch):
    tried = []

    def make():
        tried.append(1)
        return c_build.build(_source() if len(tried) > 3 else "no C")

    helper = c_build.until_built(make)
    found = [helper() for _ in range(20)]
    assert [place for place, each in enumerate(found) if each is not None] == list(range(7, 20))
    assert len(tried) == 4


def test_a_compiler_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(c_build, "_TIMEOUT", 0.2)
    monkeypatch.setenv("CC", str(_script(tmp_path / "hanging-cc", "exec sleep 60")))
    assert "no answer" in (c_build.available() or "")


@needs_compiler
def test_a_compiler_that_hangs_over_a_source_is_not_run_again(tmp_path, monkeypatch):
    text = f'case "$*" in *-dM*) exec cc "$@";; esac; echo >> {tmp_path}/runs; exec sleep 60'
    monkeypatch.setenv("CC", str(_script(tmp_path / "cc-that-stops", text)))
    c_build.compiler()
    monkeypatch.setattr(c_build, "_TIMEOUT", 0.2)
    for _ in range(2):
        with pytest.raises(BuildError, match=r"did not finish in 0 s: .*cc-that-stops(.|\n)*set CC"):
            c_build.build(_source())
    assert (tmp_path / "runs").read_text() == "\n"
