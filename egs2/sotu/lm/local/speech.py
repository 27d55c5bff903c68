"""Synthetic speech by Pico."""

from __future__ import annotations

from typing import List, Sequence

from espnet_bayeslm.recognisers.recordings import RATE

VOICES = {"us": "en-US", "gb": "en-GB"}
AUDIO_FORMAT = (RATE, 16, 1)  # samples/s, bits, channels: what Pico gives, and the model takes


def speak(voice: str, words: Sequence[str]) -> bytes:
    """Return words spoken by Pico, as PCM samples, 16 kHz, 16 bit, mono.

    Args:
        voice: A key of `VOICES`.
        words: The words.

    Raises:
        RuntimeError: The voice gave another audio format.
    """
    from ttspico import TtsEngine

    parts: List[bytes] = []
    formats = set()

    def listen(audio_format, audio, final):
        formats.add(tuple(audio_format))
        parts.append(audio)

    # A new engine, since one goes on with its noise where the sentence before ended
    TtsEngine(VOICES[voice]).speak(" ".join(words), callback=listen)
    if formats != {AUDIO_FORMAT}:
        raise RuntimeError(f"the voice gave {formats}, expected {AUDIO_FORMAT}")
    return b"".join(parts)
