"""A meeting a day: texts of the days, figures, and trainings that go on from one another."""

import json
import math
from itertools import chain

import pytest
from pretrained.tiny_models import write_model
from recipe_files import RECIPES, write_text


@pytest.fixture
def study(local):
    return local("ami", "continual")


def texts(days, part):
    return [days.text(part, day).read_text().splitlines() for day in range(days.count)]


def test_days_are_parts_of_meetings_whose_test_text_no_seed_trains_on(study, tmp_path):
    lines = [f"sentence {n}" for n in range(3000)]
    written = {}
    for seed in (1, 2):
        days = study.Days("hf:base", tmp_path, seed, 3, {}, "float32")
        days.write_texts(lines, {"train": 20, "valid": 10, "test": 5})
        written[seed] = {part: texts(days, part) for part in ("train", "valid", "test")}
        for day, parts in enumerate(zip(*written[seed].values(), strict=True)):
            numbers = [int(line.split()[1]) for part in parts for line in part]
            assert len(numbers) == len(set(numbers)) == 35
            assert all(1000 * day <= n < 1000 * day + study.MEETING for n in numbers)
        for part, by_day in written[seed].items():
            assert days.text(part, study.ALL).read_text().splitlines() == [*chain(*by_day)]
    assert written[1]["test"] == written[2]["test"]
    assert written[1]["train"] != written[2]["train"]


def test_past_present_and_future_are_of_the_day_that_was_learnt_last(study):
    # perplexity 2 before a day is learnt, 4 on the day, 8 after it; all of one token
    after = [[(-math.log([8, 4, 2][1 + (day > now) - (day < now)]), 1) for day in range(3)]
             for now in range(3)]  # fmt: skip
    figures = study.figures_of(after)
    expected = {"past": 8, "present": 4, "future": 2, "end": (8 * 8 * 4) ** (1 / 3)}
    assert figures == pytest.approx(expected)


def test_the_tables_have_means_over_the_seeds_and_changes_at_each(study):
    figures = {"past": 8.0, "present": 4.0, "future": 2.0, "end": 6.0}
    others = {name: value + 1 for name, value in figures.items()}
    found = {"lora": [figures, others], "ivon": [others, others]}
    assert study.table_of(found).splitlines()[2:] == [
        "| lora | 8.5 | 4.5 | 2.5 | 6.5 |",
        "| ivon | 9.0 | 5.0 | 3.0 | 7.0 |",
    ]
    assert study.changes_table(found, "lora").splitlines()[2:] == [
        "| ivon, lowest | +0.0 | +0.0 | +0.0 | +0.0 |",
        "| ivon, highest | +12.5 | +25.0 | +50.0 | +16.7 |",
    ]


@pytest.mark.slow
def test_each_day_goes_on_from_the_day_before(study, tmp_path, capsys):
    write_text(tmp_path, {"train": 400})
    base = write_model(tmp_path / "base")
    words = ["--base", f"hf:{base}", "--days", "3", "--seeds", "1", "--max_epoch", "1"]
    words += ["--systems", "ivon ivon_prior_40000 all", "--sentences", "8"]
    words += ["--train_text", tmp_path / "train.txt", "--exp", tmp_path / "exp"]
    words = [str(word) for word in words]
    study.main(words)
    exp = tmp_path / "exp"
    found = json.loads((exp / "results.json").read_text())
    assert set(found) == {"as_it_is", "ivon", "ivon_prior_40000", "all"}
    plain, prior = (found[name][0] for name in ("ivon", "ivon_prior_40000"))
    assert plain[0] == prior[0] != prior[1] != plain[1]
    assert [[tokens for _, tokens in day] for day in prior] == [[t for _, t in plain[0]]] * 3
    table = (exp / "RESULTS.md").read_text()
    assert table in capsys.readouterr().out
    script = (exp / "log" / "ivon_prior_40000.1" / "day_2.done").read_text()
    assert f"{exp}/ivon_prior_40000.1/day_1" in script and "prior=start" in script
    # the first day's weights stay for other systems, and the last day's
    kept = {path.parent.name for path in exp.glob("ivon*/*/*.pth")}
    assert kept == {"day_0", "day_2"}
    (exp / "RESULTS.md").unlink()
    study.main(words)
    assert (exp / "RESULTS.md").read_text() == table
    with pytest.raises(SystemExit):
        study.main([*words, "--systems", "lora ivon_r8"])
    assert "--systems ivon_r8: expected some of lora," in capsys.readouterr().err


def test_the_page_has_what_the_raw_numbers_give(study):
    raw = json.loads((RECIPES / "ami" / "lm" / "continual.json").read_text())
    page = (RECIPES / "ami" / "lm" / "RESULTS_continual.md").read_text()
    found = {}
    for name, seeds in raw["perplexities"].items():
        found[name] = []
        for days in seeds.values():
            # once for all days where the LM does not change
            days = days if len(days) > 1 else days * len(raw["tokens"])
            scores = [
                [
                    (-math.log(value) * tokens, tokens)
                    for value, tokens in zip(day, raw["tokens"], strict=True)
                ]
                for day in days
            ]
            found[name].append(study.figures_of(scores))
    assert set(found) >= {"as_it_is", "all", "lora"} and len(found["lora"]) == 3
    assert study.table_of(found).strip() in page
    for base in ("lora", "lora_rate_0.00015"):
        assert study.changes_table(found, base).strip() in page
