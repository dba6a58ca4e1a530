from __future__ import annotations

import re
import runpy
import sys

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from stepnet.cli import app
from stepnet.datasets import JapaneseVowels, Split, japanese_vowels
from stepnet.demo import program
from stepnet.demo.training import Run, confusion, normalise, train

BACKEND = "eager"  # training takes longer by C that is not optimised, and by building it


@pytest.fixture(scope="module")
def data():
    return normalise(japanese_vowels())


def invoke(*arguments):
    """Run the command; its output without colours, and with single spaces for line breaks and frames."""
    result = CliRunner().invoke(app, arguments)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
    return result, re.sub(r"[\s│]+", " ", plain)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Usage: stepnet"),
        (("--help",), "one recurrent step in plain PyTorch"),
        (("demo", "--help"), "nine speakers"),
        (("demo", "--help"), "--seeds"),
        (("demo", "--help"), "--epochs"),
        (("demo", "--help"), "stepnet[plot]"),
        (("demo", "--help"), "stepnet-demo.png"),
        (("demo", "--help"), "--threads"),
        (("--version",), "stepnet 0.1.0"),
    ],
)
def test_help(arguments, words):
    result, output = invoke(*arguments)
    assert result.exit_code == (2 if not arguments else 0)
    assert words in output.replace("root", "stepnet")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo", "--seeds", "0"), "Invalid value for '--seeds'"),
        (("demo", "--epochs", "-3"), "Invalid value for '--epochs'"),
        (("demo", "--threads", "0"), "Invalid value for '--threads'"),
        (("demo", "--output", "picture.doc"), "should end in .png, .pdf, .svg"),
        (("demo", "--output", "no-such-folder/a.png"), "there is no folder 'no-such-folder'"),
        (("dance",), "No such command 'dance'"),
    ],
)
def test_bad_arguments_end_at_once(arguments, words):
    result, output = invoke(*arguments)
    assert result.exit_code == 2
    assert words in output


def test_python_m_stepnet(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("stepnet", run_name="__main__", alter_sys=True)
    assert not end.value.code
    assert capsys.readouterr().out == "stepnet 0.1.0\n"


def few(data, split, each=4):
    """The first utterances of each speaker."""
    labels = getattr(data, split).labels
    chosen = torch.cat([(labels == speaker).nonzero()[:each, 0] for speaker in range(data.speakers)])
    return Split(getattr(data, split).x.select_sequences(chosen), labels[chosen])


def test_demo_end_to_end(tmp_path, monkeypatch):
    """The whole program on few utterances: it trains, prints, and writes a picture that is one."""
    raw = japanese_vowels()
    small = JapaneseVowels(few(raw, "train"), few(raw, "test"), raw.speakers)
    monkeypatch.setattr(program, "japanese_vowels", lambda: small)
    monkeypatch.chdir(tmp_path)
    result, output = invoke("demo", "--seeds", "2", "--epochs", "1")
    assert result.exit_code == 0, result.output
    assert "36 to train on, 36 to test on" in output
    assert re.search(r"\d+\.\d% test accuracy, mean of 2 seeds", output)
    assert "94.1%" in output
    assert "stepnet-demo.png" in output
    assert (tmp_path / "stepnet-demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("ending", "magic"), [pytest.param(".pdf", b"%PDF", marks=pytest.mark.exhaustive), (".svg", b"<?xml")]
)
def test_other_picture_formats(data, tmp_path, ending, magic):
    from stepnet.demo import picture  # a second of matplotlib, which no other test needs

    run = Run(0, [2.0], [0.5], torch.arange(len(data.test.labels)) % 9)
    path = tmp_path / f"picture{ending}"
    picture.draw(path, [run], confusion([run], data), 0.941)
    assert path.read_bytes().startswith(magic)


def test_demo_without_matplotlib(data, tmp_path, monkeypatch):
    """It says which extra brings the picture, and succeeds."""
    done = Run(0, [2.0], [0.5], torch.zeros_like(data.test.labels))
    monkeypatch.setattr(program, "train", lambda *_, **__: done)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "picture.png"
    console = Console(record=True, width=200)
    runs = program.main(seeds=1, epochs=1, output=path, threads=1, console=console)
    assert runs == [done]
    assert "pip install 'stepnet[plot]'" in console.export_text()
    assert not path.exists()


def test_normalise_uses_training_frames_only(data):
    train_frames, test_frames = data.train.x.values, data.test.x.values
    torch.testing.assert_close(train_frames.mean(0), torch.zeros(12), atol=1e-5, rtol=0)
    torch.testing.assert_close(train_frames.std(0), torch.ones(12), atol=1e-5, rtol=0)
    assert test_frames.mean(0).abs().max() > 0.01


def test_confusion_counts_who_was_named(data):
    right = Run(0, predictions=data.test.labels)
    all_first = Run(1, predictions=torch.zeros_like(data.test.labels))
    per_speaker = torch.bincount(data.test.labels)
    table = confusion([right, all_first], data)
    assert table.sum() == 2 * len(data.test.labels)
    assert table[:, 0].tolist() == [2 * int(per_speaker[0]), *per_speaker[1:].tolist()]
    assert table.diagonal()[1:].tolist() == per_speaker[1:].tolist()


@pytest.mark.exhaustive
def test_training_learns(data):
    """Far above chance (one in nine) after three epochs."""
    seen = []
    run = train(data, 5, 3, on_epoch=lambda run: seen.append(len(run.loss)))
    assert seen == [1, 2, 3]
    assert run.loss[-1] < run.loss[0]
    assert run.accuracy > 0.7
    named_rightly = (run.predictions == data.test.labels).float().mean().item()
    assert run.accuracy == named_rightly


@pytest.mark.exhaustive
def test_the_same_seed_gives_the_same_network(data):
    small = JapaneseVowels(few(data, "train", 8), few(data, "test"), data.speakers)
    first, second = train(small, 5, 1), train(small, 5, 1)
    assert first.loss == second.loss
    assert torch.equal(first.predictions, second.predictions)
