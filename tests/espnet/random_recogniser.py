"""A recogniser of ESPnet's with random weights, as a training would have left it."""

import models
import numpy as np
import soundfile
import torch
import yaml

RATE = 16000


def write_recogniser(folder, tokens, config=models.ATTENTION_CTC, **options):
    """Write the experiment of a recogniser of these tokens, and return its folder."""
    from espnet2.tasks.asr import ASRTask

    folder.mkdir(parents=True)
    token_list = folder / "tokens.txt"
    token_list.write_text("\n".join(tokens) + "\n")
    config_file = folder / "options.yaml"
    config_file.write_text(yaml.safe_dump({**config, "token_type": "word", **options}))
    words = ["--config", config_file, "--output_dir", folder, "--token_list", token_list]
    args = ASRTask.get_parser().parse_args(list(map(str, words)))
    args.token_list = list(tokens)
    torch.manual_seed(3)
    model = ASRTask.build_model(args)
    with torch.no_grad():
        # no hypothesis has <blank> as a word, and all end before they must
        model.decoder.output_layer.bias[0] = -100.0
        model.decoder.output_layer.bias[-1] += 1.0
    (folder / "config.yaml").write_text(yaml.safe_dump(vars(args)))
    torch.save(model.state_dict(), folder / "valid.acc.ave.pth")
    return folder


def write_noise(path, *, rate=RATE, seconds=0.5, seed=0, channels=1):
    """Write a recording of noise, and return its samples."""
    samples = np.random.default_rng(seed).uniform(-0.3, 0.3, (int(rate * seconds), channels))
    soundfile.write(path, samples, rate)
    return soundfile.read(path)[0]
