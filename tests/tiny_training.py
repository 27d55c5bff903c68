"""Command lines from keywords, and ESPnet's options of a tiny training."""


def words(**options):
    """Return options as a command line has them; a list is an option that comes several times."""
    found = []
    for name, values in options.items():
        for value in values if isinstance(values, list) else [values]:
            found += [f"--{name}", str(value)]
    return found


def training(corpus, output, *more, train=None, **options):
    """Return the options of a training on the tiny corpus, or the text in the folder `train`."""
    found = words(token_type="word", token_list=corpus / "tokens.txt", output_dir=output)
    for name, folder in (("train", train or corpus), ("valid", corpus)):
        found += [f"--{name}_data_path_and_name_and_type", f"{folder}/{name}.txt,text,text"]
        found += [f"--{name}_shape_file", f"{folder}/{name}.shape"]
    quick = {"batch_type": "unsorted", "batch_size": 16, "max_epoch": 1, "num_workers": 0}
    quick |= {"num_att_plot": 0, "use_matplotlib": "false", **options}
    return [*found, *words(**quick), *map(str, more)]


def write_sentences(folder, part, sentences):
    """Write sentences, each its words, as text with keys, and their numbers of tokens."""
    keyed = [(f"u{n:04d}", sentence) for n, sentence in enumerate(sentences)]
    text = [f"{key} {' '.join(sentence)}\n" for key, sentence in keyed]
    (folder / f"{part}.txt").write_text("".join(text))
    (folder / f"{part}.shape").write_text("".join(f"{key} {len(x)},13\n" for key, x in keyed))
