"""What the tests of lists and lattices share."""

import pytest

from espnet_bayeslm.nbest.htk import read_lattice


@pytest.fixture(scope="session")
def sphinx_folder(tmp_path_factory):
    """Return a folder with a lattice `peace.lat` that PocketSphinx wrote of spoken words."""
    ttspico = pytest.importorskip("ttspico", reason="the voice is that of the package ttspico")
    pytest.importorskip("pocketsphinx", reason="the recogniser is the package pocketsphinx")
    import pocketsphinx

    from espnet_bayeslm.bin import ngram

    folder = tmp_path_factory.mktemp("sphinx")
    lines = ["we will work together for peace", "week worked to gather four peas"]
    lines += ["we'll walk to get her for a piece", "wheel were well together", "they will go"]
    (folder / "plain").write_text("\n".join(lines * 5) + "\n")
    ngram.main(
        f"--text {folder}/plain --arpa {folder}/lm --order 2 --discount_fallback true".split()
    )
    decoder = pocketsphinx.Decoder(
        hmm=pocketsphinx.get_model_path("en-us/en-us"),
        lm=str(folder / "lm"),
        dict=pocketsphinx.get_model_path("en-us/cmudict-en-us.dict"),
        loglevel="FATAL",
    )
    parts = []
    ttspico.TtsEngine("en-US").speak(lines[0], callback=lambda _, audio, __: parts.append(audio))
    decoder.start_utt()
    decoder.process_raw(b"".join(parts), full_utt=True)
    decoder.end_utt()
    (folder / "lattices").mkdir()
    decoder.get_lattice().write_htk(str(folder / "lattices" / "peace.lat"))
    return folder / "lattices"


@pytest.fixture
def sphinx_lattice(sphinx_folder):
    """Return the lattice of a spoken sentence."""
    return read_lattice(sphinx_folder / "peace.lat")
