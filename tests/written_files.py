"""Files of the tests: any text, and N-best lists as Kaldi writes them."""

import random


def write(path, text):
    """Write a text; one that begins with `#!` is a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if text.startswith("#!"):
        path.chmod(0o755)
    return path


def write_noisy_lists(folder, refs, *, seed, words="abcdefghij"):
    """Write lists of five hypotheses for references {utterance: words}; a few are empty."""
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    files = {name: [] for name in ("words_text", "acwt", "lmwt.nolm", "lmwt.withlm")}
    for utt, ref in refs.items():
        for rank in range(1, 6):
            noisy = [rng.choice(words) if rng.random() < 0.15 else word for word in ref]
            noisy = [] if rank == 5 and rng.random() < 0.3 else noisy
            wrong = sum(a != b for a, b in zip(noisy, ref, strict=False))
            key = f"{utt}-{rank}"
            graph = rng.uniform(1, 3)
            files["words_text"].append(" ".join([key, *noisy]))
            files["acwt"].append(f"{key} {200 + 3 * wrong + rng.gauss(0, 3):.3f}")
            files["lmwt.nolm"].append(f"{key} {graph:.3f}")
            files["lmwt.withlm"].append(f"{key} {graph + 2.5 * len(noisy):.3f}")
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n")
