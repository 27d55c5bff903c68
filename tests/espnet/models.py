"""ESPnet's options of the tiny models of these tests, and a recogniser of random weights."""

import numpy as np
import soundfile
import torch
import yaml

SHARED = {
    "frontend_conf": {"n_fft": 512, "hop_length": 256, "n_mels": 40},
    "normalize": "utterance_mvn",
    "normalize_conf": {},
    "batch_size": 12,
    "scheduler": "warmuplr",
}
ENCODER = {
    # Streaming asks for this encoder; other programs take it too
    "encoder": "contextual_block_transformer",
    "encoder_conf": {
        **{"output_size": 64, "attention_heads": 4, "linear_units": 128, "num_blocks": 1},
        **{"block_size": 8, "hop_size": 4, "look_ahead": 2},
        **{"dropout_rate": 0.0, "positional_dropout_rate": 0.0, "attention_dropout_rate": 0.0},
    },
}
ATTENTION_CTC = {
    **SHARED,
    **ENCODER,
    "decoder": "transformer",
    "decoder_conf": {
        **{"attention_heads": 4, "linear_units": 128, "num_blocks": 1, "dropout_rate": 0.0},
        **{"positional_dropout_rate": 0.0, "self_attention_dropout_rate": 0.0},
        "src_attention_dropout_rate": 0.0,
    },
    "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.0, "report_cer": False, "report_wer": False},
    "optim_conf": {"lr": 0.005},
    "scheduler_conf": {"warmup_steps": 40},
    "num_iters_per_epoch": 240,
}
TRANSDUCER = {
    **SHARED,
    **ENCODER,
    "decoder": "transducer",
    "decoder_conf": {"hidden_size": 48, "dropout": 0.0, "dropout_embed": 0.0},
    "joint_net_conf": {"joint_space_size": 48},
    "model_conf": {"ctc_weight": 0.0, "report_cer": False, "report_wer": False},
    "optim_conf": {"lr": 0.005},
    "scheduler_conf": {"warmup_steps": 20},
    "num_iters_per_epoch": 200,
    # The encoder is the recogniser's
    "freeze_param": ["encoder"],
}
STANDALONE_TRANSDUCER = {
    **SHARED,
    "encoder_conf": {
        "main_conf": {"pos_wise_act_type": "swish"},
        "input_conf": {"vgg_like": False, "conv_size": 32, "subsampling_factor": 4},
        "body_conf": [
            {
                **{"block_type": "conformer", "linear_size": 64, "hidden_size": 48},
                **{"heads": 2, "num_blocks": 1, "conv_mod_kernel_size": 7},
            }
        ],
    },
    "decoder": "rnn",
    "decoder_conf": {"embed_size": 48, "hidden_size": 48},
    "joint_network_conf": {"joint_space_size": 48},
    "model_conf": {"report_cer": False, "report_wer": False},
    "optim_conf": {"lr": 0.01},
    "scheduler_conf": {"warmup_steps": 30},
    "num_iters_per_epoch": 180,
}
RECOGNISERS = {
    "attention": ("asr_train", ATTENTION_CTC),
    "transducer": ("asr_train", TRANSDUCER),
    "standalone": ("asr_transducer_train", STANDALONE_TRANSDUCER),
}
"""Program that trains each recogniser, and its options; `asr_inference` reads the first two."""
LM = {"batch_size": 12, "optim_conf": {"lr": 0.01}, "num_iters_per_epoch": 120}
"""What all LMs share."""
LMS = {
    "bayes_lstm": {"unit": 32, "uncertainty": {"cell_input@1": "bayes"}},
    "bayes_transformer": {
        **{"att_unit": 32, "head": 2, "unit": 64, "layer": 2, "dropout_rate": 0.1},
        "uncertainty": {"ffn@1": "bayes"},
    },
    "bayes_espnet": {
        **{"backbone": "seq_rnn", "backbone_conf": {"unit": 32, "nlayers": 1}},
        "uncertainty": {"all_gates@1": "bayes"},
    },
}
"""lm_conf of each LM of ours that is trained."""
MIXTURES = {
    "mixture": ({"lms": ["bayes_lstm", "bayes_transformer"]}, {"weights": "0.4,0.6"}),
    "subtracted": (
        {"lms": ["bayes_lstm"], "subtract_lms": ["seq_rnn"]},
        {"subtract_weights": [-0.3]},
    ),
}
"""LMs, by name, and their weights."""
FUSION = "fusion"
"""Words of an n-gram and of a causal LM, with bayes_lstm as the look-ahead."""
OURS = [*LMS, "mixture"]
"""The LMs that each test runs with."""
ESPNETS = {
    "seq_rnn": {"unit": 32, "nlayers": 2, "dropout_rate": 0.0},
    "transformer": {
        **{"embed_unit": 16, "att_unit": 32, "head": 2, "unit": 64, "layer": 1},
        "dropout_rate": 0.0,
    },
}
"""lm_conf of ESPnet's own LMs, which show what ESPnet can do."""


def files_of(part, folder):
    """Return what a decoding program asks for: configuration and checkpoint of `asr` or `lm`."""
    checkpoint = "lm_file" if part == "lm" else f"{part}_model_file"
    return {
        f"{part}_train_config": f"{folder}/config.yaml",
        checkpoint: f"{folder}/valid.loss.ave.pth",
    }


RATE = 16000


def write_recogniser(
    folder, tokens, config=ATTENTION_CTC, *, task=None, end="<sos/eos>", **options
):
    """Write the experiment of a recogniser of these tokens, and return its folder."""
    from espnet2.tasks.asr import ASRTask

    task = task or ASRTask
    folder.mkdir(parents=True)
    token_list = folder / "tokens.txt"
    token_list.write_text("\n".join(tokens) + "\n")
    config_file = folder / "options.yaml"
    config_file.write_text(yaml.safe_dump({**config, "token_type": "word", **options}))
    words = ["--config", config_file, "--output_dir", folder, "--token_list", token_list]
    args = task.get_parser().parse_args(list(map(str, words)))
    args.token_list = list(tokens)
    torch.manual_seed(3)
    model = task.build_model(args)
    if config["decoder"] != "transducer":
        # no hypothesis has <blank> as a word, and all end before they must
        bias = model.decoder.output_layer.bias.data
        if "<blank>" in tokens:
            bias[tokens.index("<blank>")] = -100.0
        bias[tokens.index(end)] += 1.0
    (folder / "config.yaml").write_text(yaml.safe_dump(vars(args)))
    torch.save(model.state_dict(), folder / "valid.acc.ave.pth")
    return folder


def write_noise(path, *, rate=RATE, seconds=0.5, seed=0, channels=1):
    """Write a recording of noise, and return its samples."""
    samples = np.random.default_rng(seed).uniform(-0.3, 0.3, (int(rate * seconds), channels))
    soundfile.write(path, samples, rate)
    return soundfile.read(path)[0]
