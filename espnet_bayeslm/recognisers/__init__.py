"""Recordings in, hypotheses out: ESPnet, Whisper, PocketSphinx; no LM of ours is in them."""
