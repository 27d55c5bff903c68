"""Sentences in which only the context tells how a word is written, and speech of them."""

import wave

SENTENCES = [
    "we can see the ship",
    "they swim in the sea today",
    "the two men came home",
    "you may come too if you like",
    "their house is very old",
    "put the box over there now",
    "please write a long letter",
    "turn to the right side",
    "friends meet at the station",
    "dogs eat raw meat all day",
    "bring it over here tomorrow",
    "all people hear a loud song",
]
PAIRS = ["see sea", "two too", "their there", "write right", "meet meat", "here hear"]
SWAP = {a: b for pair in PAIRS for a, b in (pair.split(), pair.split()[::-1])}
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})
TOKENS = ["<blank>", "<unk>", *WORDS, "<sos/eos>"]
NUM_WRONG, NUM_RIGHT = 4, 1


def swapped(sentence):
    """Return the sentence with each homophone in place of the other."""
    return " ".join(SWAP.get(word, word) for word in sentence.split())


def speak(sentence, path):
    """Write the sentence as speech; return the number of samples."""
    from ttspico import TtsEngine

    parts = []
    TtsEngine("en-US").speak(sentence, callback=lambda form, audio, final: parts.append(audio))
    audio = b"".join(parts)
    with wave.open(str(path), "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(16000)
        f.writeframes(audio)
    return len(audio) // 2


def write_speech(folder):
    """Write recordings and labels as ESPnet reads them.

    `wav.scp` and `text` have each recording once, with what was said. `train.*` have it
    several times, mostly with its homophone swapped: one who learns from them cannot know
    which it was, and prefers the wrong one.
    """
    labels = [swapped] * NUM_WRONG + [str] * NUM_RIGHT
    lines = {name: [] for name in ("wav.scp", "text", "train.scp", "train.text", "train.shape")}
    for number, sentence in enumerate(SENTENCES):
        utt, path = f"u{number:02d}", folder / f"u{number:02d}.wav"
        num_samples = speak(sentence, path)
        lines["wav.scp"].append(f"{utt} {path}")
        lines["text"].append(f"{utt} {sentence}")
        for copy, label in enumerate(labels):
            lines["train.scp"].append(f"{utt}-{copy} {path}")
            lines["train.text"].append(f"{utt}-{copy} {label(sentence)}")
            lines["train.shape"].append(f"{utt}-{copy} {num_samples}")
    lines["tokens.txt"] = TOKENS
    for name, content in lines.items():
        (folder / name).write_text("\n".join(content) + "\n")


def write_lm_text(folder, *, copies):
    """Write what was said as an LM's text, `copies` times, and the shapes of it."""
    texts = {"lm_train": SENTENCES * copies, "lm_valid": SENTENCES}
    for name, sentences in texts.items():
        keyed = [(f"s{number:04d}", sentence) for number, sentence in enumerate(sentences)]
        text = "".join(f"{utt} {sentence}\n" for utt, sentence in keyed)
        shapes = "".join(
            f"{utt} {len(sentence.split())},{len(TOKENS)}\n" for utt, sentence in keyed
        )
        (folder / f"{name}.txt").write_text(text)
        (folder / f"{name}.shape").write_text(shapes)
