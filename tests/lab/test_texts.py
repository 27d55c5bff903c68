"""Training texts of a plan, their parts, and the folders that are trained in."""

import math
from pathlib import Path

import pytest
from written_files import write

from espnet_bayeslm.utils.errors import InputError
from lab import texts
from lab.command_line import main
from lab.paper import Line, paper_tables
from lab.run import Choice, Experiment, call
from lab.train import Place, Trainer


@pytest.fixture
def data(tmp_path):
    """A data folder with 40 training and 2 validation sentences, its token list and statistics."""
    folder = tmp_path / "data"
    for name, count in (("train", 40), ("dev", 2)):
        rows = "".join(f"m-{n:05d}-A {'b ' * (n % 3)}a\n" for n in range(count))
        write(folder / name / "text", rows)
    (folder / "dev" / "text.known").write_text((folder / "dev" / "text").read_text())
    texts.prepare_tokens(
        folder, folder / "train" / "text", folder / "dev" / "text.known", tmp_path / "stats"
    )
    return folder


def test_tokens_statistics_and_nested_parts(data, tmp_path):
    assert texts.token_list(data).read_text().split() == ["<blank>", "<unk>", "a", "b", "<sos/eos>"]
    shapes = (tmp_path / "stats" / "train" / "text_shape.word").read_text().splitlines()
    assert shapes[:3] == ["m-00000-A 1,5", "m-00001-A 2,5", "m-00002-A 3,5"] and len(shapes) == 40
    found = {}
    for percent in (25, 50):
        part, stats = tmp_path / f"train{percent}", tmp_path / f"stats{percent}"
        texts.write_part(data, data / "dev" / "text.known", percent, part, stats)
        found[percent] = (part / "text").read_text().splitlines()
        plain = [row.split(" ", 1)[1] for row in found[percent]]
        assert (part / "text.plain").read_text().splitlines() == plain
        ids = [row.split()[0] for row in found[percent]]
        shapes = (stats / "train" / "text_shape.word").read_text().splitlines()
        assert [row.split()[0] for row in shapes] == ids == sorted(ids)
        assert len((stats / "valid" / "text_shape.word").read_text().splitlines()) == 2
    assert len(found[25]) == 10 and set(found[25]) < set(found[50])
    with pytest.raises(ValueError, match="--parts 0: expected 1 to 100"):
        texts.write_part(data, data / "dev" / "text.known", 0, tmp_path / "x", tmp_path / "y")


def test_places_of_a_study(settings):
    stats = Path("exp/lm_stats")

    def places(table, **choice):
        work = Experiment(settings(table), Choice(**choice), stats, run=print, run_lab=print)
        return work.places()

    found = places("data_size", parts=(25,), lm="lstm")
    assert list(found) == ["1/full", "1/train25", "2/full", "2/train25"]
    part = found["2/train25"]
    assert (part.seed, part.passes, part.backbones) == (2, math.sqrt(4), ("lstm",))
    assert (part.exp, part.text) == (Path("exp/small/seed2/train25"), Path("data/train25"))
    assert part.stats == Path("exp/lm_stats_train25")
    assert part.ngram == Path("data/local/3gram.train25.arpa")
    units = places("model_size", options=("--ngpu", "0"))
    assert list(units)[:2] == ["1/full", "1/lstm_unit100"]
    assert units["1/lstm_unit100"].options == ("--ngpu", "0", "--lm_conf", "unit=100")
    assert list(places("model_size", lm="transformer")) == ["1/full", "2/full"]


def test_a_training_starts_from_the_half_and_leaves_its_command(data, tmp_path):
    inputs = (data / "train", data / "dev" / "text.known", tmp_path / "stats", tmp_path / "3g.arpa")
    calls = []
    trainer = Trainer(paper_tables(), "tiny", data, Place(tmp_path, 1, *inputs), calls.append)
    trainer.line(Line("some", 1, "lstm", "point"))
    half, point = calls
    assert half[0] == point[0] == "lm_train" and "--init_param" not in half
    start = point[point.index("--init_param") + 1]
    assert start == f"{tmp_path}/half_lstm/valid.loss.ave.pth"
    assert (tmp_path / "point_lstm" / "command").read_text().split()[1:] == point


def test_a_recipes_own_command_ends_the_stage_where_it_fails():
    call(["true"])
    with pytest.raises(SystemExit) as stop:
        call(["sh", "-c", "exit 3"])
    assert stop.value.code == 3


@pytest.mark.parametrize(
    "options, error",
    [
        (["--table", "2"], "--table 2: unknown; valid are main, 1, 3, 4, 5, data_size"),
        (["--size", "huge"], "--size huge: unknown; valid are paper, small, long, tiny"),
        (["--lm", "gru"], "argument --lm: invalid choice: 'gru'"),
        (["--seeds", "a"], "--seeds 'a': expected numbers"),
        (["--workers", "0"], "--workers 0: 1 or more processes were expected"),
    ],
)
def test_options_that_a_plan_cannot_take(options, error, capsys):
    plan = Path(__file__).parents[2] / "egs2" / "ami" / "lm" / "conf" / "plan.yaml"
    with pytest.raises(SystemExit):
        main(["--plan", str(plan), *options])
    assert error in capsys.readouterr().err


def test_a_text_that_is_kept_is_not_written_over(tmp_path):
    path = tmp_path / "text" / "valid.txt"
    for _ in range(2):
        texts.keep_text(path, ["a b", "c"])
    with pytest.raises(InputError, match="has another text than this run needs"):
        texts.keep_text(path, ["a b"])
    assert path.read_text() == "a b\nc\n"
