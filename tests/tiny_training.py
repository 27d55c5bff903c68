"""Command lines from keywords, and ESPnet's options of a tiny training."""


def words(**options):
    """Return options as a command line has them; a list is an option that comes several times."""
    found = []
    for name, values in options.items():
        for value in values if isinstance(values, list) else [values]:
            found += [f"--{name}", str(value)]
    return found


def training(corpus, output, *more, parts=("train", "valid"), **options):
    """Return the options of a training on the tiny corpus."""
    found = words(token_type="word", token_list=corpus / "tokens.txt", output_dir=output)
    for name in parts:
        found += [f"--{name}_data_path_and_name_and_type", f"{corpus}/{name}.txt,text,text"]
        found += [f"--{name}_shape_file", f"{corpus}/{name}.shape"]
    quick = {"batch_type": "unsorted", "batch_size": 16, "max_epoch": 1, "num_workers": 0}
    quick |= {"num_att_plot": 0, "use_matplotlib": "false", **options}
    return [*found, *words(**quick), *map(str, more)]
