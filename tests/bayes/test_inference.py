"""Noise that the batch does not share, and prior variances that follow the posterior."""

import contextlib
import math

import pytest
import torch

from espnet_bayeslm.bayes import Draw
from espnet_bayeslm.bayes.draw import LayerDraw
from espnet_bayeslm.bayes.gaussian import kl_learned_prior, kl_weights, prior_variances
from espnet_bayeslm.bayes.weights import LOG_STD, PRIOR_MEAN, Bayes
from espnet_bayeslm.kernels import plain
from espnet_bayeslm.layers import GATES, UncertainEmbedding, UncertainLinear, UncertainLSTM
from espnet_bayeslm.lm import BayesESPnetLM, BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.utils.errors import InputError

OPTIONS = {"init_std": 0.3, "init_std_unit": "absolute", "prior_variance": 0.5}
PRECISE = torch.float64


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=PRECISE)


def make(layer, **options):
    layer.to(PRECISE)
    for name in ("weight", "bias"):
        if getattr(layer, name, None) is not None:
            layer.make_random(name, Bayes(**{**OPTIONS, **options}), location="here")
            log_std = getattr(layer, name + LOG_STD)
            log_std.data.copy_(-1.0 + 0.3 * numbers(*log_std.shape))
            getattr(layer, name + PRIOR_MEAN).copy_(0.1 * numbers(*log_std.shape, seed=1))
    return layer


def drawn(layer, *inputs, seed=3, hold=False):
    with Draw(layer, torch.Generator().manual_seed(seed), hold=hold).used():
        return layer(*inputs)


def gradients(value, layer):
    return torch.autograd.grad(value, list(layer.parameters()))


def assert_same_gradients(value, expected, layer):
    a, b = gradients(value, layer), gradients(expected, layer)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


class TestLearnedPrior:
    @pytest.mark.parametrize("by_row", [False, True])
    def test_it_is_the_least_kl_over_variances(self, by_row):
        mean, log_std, prior_mean = numbers(4, 5), numbers(4, 5, seed=1) / 3, numbers(4, 5, seed=2)
        least = kl_learned_prior(mean, log_std, prior_mean, by_row=by_row)
        optimum = prior_variances(mean, (2 * log_std).exp(), prior_mean, by_row=by_row)

        def at(factor):
            each = (factor * optimum).expand(4).unsqueeze(1)
            terms = zip(mean, log_std, prior_mean, each, strict=True)
            return sum(kl_weights(m, s, p, math.sqrt(v)) for m, s, p, v in terms)

        torch.testing.assert_close(least, at(1.0), rtol=0, atol=1e-10)
        assert min(at(0.97), at(1.03)) > least

    @pytest.mark.parametrize("by_row", [False, True])
    def test_gradients_are_those_with_the_variances_held(self, by_row):
        mean, log_std = (numbers(4, 5, seed=s).requires_grad_() for s in (0, 1))
        prior_mean = numbers(4, 5, seed=2)
        learned = kl_learned_prior(mean, log_std, prior_mean, by_row=by_row)
        held = prior_variances(mean, (2 * log_std).exp(), prior_mean, by_row=by_row).detach()
        rows = zip(mean, log_std, prior_mean, held.expand(4), strict=True)
        fixed = sum(kl_weights(m, s, p, math.sqrt(v)) for m, s, p, v in rows)
        a, b = (torch.autograd.grad(x, (mean, log_std)) for x in (learned, fixed))
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("variance", ["learn", "learn_rows"])
    def test_a_layer_with_it(self, variance):
        layer = make(UncertainLinear(3, 4), prior_variance=variance)
        draw = Draw(layer, torch.Generator().manual_seed(0), weight_kl=True)
        with draw.used():
            layer(numbers(2, 3))
        expected = sum(
            kl_learned_prior(
                getattr(layer, name),
                getattr(layer, name + LOG_STD),
                getattr(layer, name + PRIOR_MEAN),
                by_row=variance == "learn_rows",
            )
            for name in ("weight", "bias")
        )
        torch.testing.assert_close(draw.kl(), expected, rtol=0, atol=1e-10)

    def test_rows_without_data_lose_their_mean(self):
        """Automatic relevance determination: the KL alone makes a row's signal vanish."""
        layer = make(UncertainEmbedding(2, 8), prior_variance="learn_rows")
        getattr(layer, "weight" + PRIOR_MEAN).zero_()
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        before = (layer.weight.detach() / getattr(layer, "weight" + LOG_STD).exp()).abs().mean()
        for _ in range(300):
            optimizer.zero_grad()
            Draw(layer).kl().backward()
            optimizer.step()
        after = (layer.weight.detach() / getattr(layer, "weight" + LOG_STD).exp()).abs().mean()
        assert after < before / 20

    def test_what_is_no_variance(self):
        with pytest.raises(InputError, match="above 0 or one of learn, learn_rows, got 'learnt'"):
            BayesTransformerLM(
                9, **SMALL, uncertainty={"embedding": "bayes"}, prior_variance="learnt"
            )


SMALL = {"att_unit": 8, "head": 2, "unit": 16, "layer": 1, "dropout_rate": 0.0}


class TestFlipout:
    def test_outputs_and_gradients_are_those_of_the_equation(self):
        layer, x = make(UncertainLinear(3, 4), noise="flipout"), numbers(5, 6, 3)
        y = drawn(layer, x)
        generator = torch.Generator().manual_seed(3)
        noise = {}
        for name in ("weight", "bias"):
            like = getattr(layer, name).detach()
            noise[name] = torch.empty_like(like).normal_(generator=generator)
        r, s = (torch.empty(5, 1, n, dtype=PRECISE) for n in (4, 3))
        r, s = (bits.random_(0, 2, generator=generator) * 2 - 1 for bits in (r, s))
        rows = []
        for b in range(5):  # each sequence has weights of its own
            weight = layer.weight + layer.weight_log_std.exp() * noise["weight"] * (r[b].T * s[b])
            bias = layer.bias + layer.bias_log_std.exp() * noise["bias"] * r[b][0]
            rows.append(x[b] @ weight.T + bias)
        expected = torch.stack(rows)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-10)
        upper = numbers(5, 6, 4, seed=9)
        assert_same_gradients((y * upper).sum(), (expected * upper).sum(), layer)

    def test_gradients_vary_less_than_with_a_shared_draw(self):
        x, variances = numbers(32, 1, 6), {}
        for noise in ("shared", "flipout", "local"):
            torch.manual_seed(0)
            layer, found = make(UncertainLinear(6, 4), noise=noise), []
            layer.weight_log_std.data.sub_(2.0)  # of squares of the noise the signs change nothing
            layer.bias_log_std.data.sub_(2.0)
            for seed in range(200):
                loss = drawn(layer, x, seed=seed).tanh().square().mean()
                found.append(torch.cat([g.flatten() for g in gradients(loss, layer)]))
            variances[noise] = float(torch.stack(found).var(0).sum())
        assert variances["local"] < variances["shared"] / 2
        assert variances["flipout"] < 1.1 * variances["local"]


def random_gates(noises, sizes=(3, 4), **options):
    """Two layers of an LSTM, of whose gates some are random, with noise of their own."""
    torch.manual_seed(0)
    lstm = UncertainLSTM(*sizes, num_layers=2, batch_first=True).to(PRECISE)
    for gate, noise in noises.items():
        kind = Bayes(**{**OPTIONS, **options}, noise=noise)
        for layer in (1, 2):
            kind.make_random(lstm.gate_weights(gate, layer), f"{gate}@{layer}")
    for n, block in enumerate(lstm.random_blocks):
        log_std = getattr(lstm, block.key + LOG_STD)
        log_std.data.copy_(-1.0 + 0.3 * numbers(*log_std.shape, seed=n))
        getattr(lstm, block.key + PRIOR_MEAN).copy_(0.1 * numbers(*log_std.shape, seed=n + 99))
    return lstm


def run(lstm, x, seed=3, **wanted):
    """The outputs and last states, the draw, and the signs (s of x and h, r) of each layer."""
    generator = torch.Generator().manual_seed(seed)
    draw = Draw(lstm, generator, **wanted)
    replayed = torch.Generator()
    replayed.set_state(generator.get_state())
    for layer in draw.layers.keys() - {lstm}:
        draw.layers[layer].generator = None  # latent outputs stay at their mean
    with draw.used():
        gates = [lstm.flipped_gates(k) for k in range(2)]
        output, (h, c) = lstm(x)
    signs = []
    for k in range(2):
        sizes = (lstm.input_size if k == 0 else 4, 4, 4 * len(gates[k]))
        bits = [torch.empty(len(x), n, dtype=PRECISE) for n in sizes if gates[k]]
        signs.append([b.random_(0, 2, generator=replayed) * 2 - 1 for b in bits])
    return (output, h, c), draw, list(zip(gates, signs, strict=True))


def noise_of_sequence(lstm, noise, signs, n):
    """The noise that sequence n's own draw of the weights has."""
    own = dict(noise)
    for block in (block for block in lstm.random_blocks if block.rows):
        k, gate = int(block.parameter[-1]), block.rows[0] // 4
        gates, (*inputs, outputs) = signs[k][0], signs[k][1] or [None]
        if gate in gates:
            r = outputs[n].chunk(len(gates))[gates.index(gate)]
            s = dict(weight_ih=0, weight_hh=1).get(block.parameter[:-3])
            flips = r if s is None else torch.outer(r, inputs[s][n])
            own[block.key] = noise[block.key] * flips
    return own


GATE_NOISES = [
    {"cell_input": "flipout"},
    {"input_gate": "flipout", "output_gate": "flipout"},
    {"input_gate": "shared", "forget_gate": "flipout", "cell_input": "flipout"},
    dict.fromkeys(GATES, "flipout"),
]


class TestFlipoutOfGates:
    @pytest.mark.parametrize("is_fast", [True, False])
    @pytest.mark.parametrize("noises", GATE_NOISES)
    def test_each_sequence_has_a_weight_matrix_of_its_own(self, noises, is_fast):
        """Outputs and gradients are those of torch's LSTM, run for each sequence alone."""
        lstm, x = random_gates(noises), numbers(5, 6, 3).requires_grad_()
        with contextlib.nullcontext() if is_fast else plain():
            found, draw, signs = run(lstm, x)
        rows = []
        for n in range(5):
            noise = noise_of_sequence(lstm, draw.layers[lstm].noise, signs, n)
            weights = []
            for name in lstm._flat_weights_names:
                value = getattr(lstm, name).clone()
                for block in lstm.random_blocks:
                    if block.parameter == name:
                        std = getattr(lstm, block.key + LOG_STD).exp()
                        value[slice(*block.rows)] += std * noise[block.key]
                weights.append(value)
            start = (x.new_zeros(2, 1, 4), x.new_zeros(2, 1, 4))
            rows.append(torch.lstm(x[n : n + 1], start, weights, True, 2, 0.0, False, False, True))
        expected = [
            torch.cat([row[part] for row in rows], dim) for part, dim in enumerate((0, 1, 1))
        ]
        torch.testing.assert_close(list(found), expected, rtol=0, atol=1e-10)
        leaves = [x, *lstm.parameters()]
        losses = [
            sum((value * numbers(*value.shape, seed=9)).sum() for value in values)
            for values in (found, expected)
        ]
        a, b = (torch.autograd.grad(loss, leaves) for loss in losses)
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        # and no two sequences have the same
        first = noise_of_sequence(lstm, draw.layers[lstm].noise, signs, 0)
        assert any(not torch.equal(first[key], noise[key]) for key in noise)

    @pytest.mark.parametrize("is_fast", [True, False])
    def test_beside_gaussian_processes_and_latent_outputs(self, is_fast):
        """Each sequence alone, with a draw that is held: the equations of one draw."""
        conf = dict(unit=4, nlayers=2, dropout_rate=0.0, tie_weights=False)
        gp, flipout = {"kind": "gp", "random": ["coefficients"]}, {"noise": "flipout"}
        lm = BayesLSTMLM(
            9,
            **conf,
            init_std=0.3,
            uncertainty={
                "forget_gate@*": {"kind": "bayes", **flipout},
                "cell_input@1": {"kind": "gp", "random": ["weights"], **flipout},
                **{f"{place}@*": gp for place in ("hidden_input", "layer_input", "cell_state")},
                "hidden_output@1": {"kind": "variational", "feedback": True},
            },
        ).to(PRECISE)
        lstm, x = lm.rnn, numbers(5, 6, 4)
        for parameter in lstm.parameters():
            parameter.data += 0.1 * numbers(*parameter.shape, seed=7)
        with contextlib.nullcontext() if is_fast else plain():
            (found, *_), draw, signs = run(lstm, x)
            rows = []
            for n in range(5):
                own = noise_of_sequence(lstm, draw.layers[lstm].noise, signs, n)
                lstm.draw = LayerDraw(noise=own)
                rows.append(lstm(x[n : n + 1])[0])
            lstm.draw = None
        torch.testing.assert_close(found, torch.cat(rows), rtol=0, atol=1e-10)
        leaves = [p for name, p in lstm.named_parameters() if "prior" not in name]
        a, b = (torch.autograd.grad(y.square().sum(), leaves) for y in (found, torch.cat(rows)))
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)

    def test_the_kl_is_that_of_the_posterior(self):
        x, found = numbers(3, 4, 3), []
        for noise in ("shared", "flipout"):
            lstm = random_gates(dict.fromkeys(GATES, noise))
            _, draw, _ = run(lstm, x, weight_kl=True)
            posterior = [p for name, p in lstm.named_parameters() if name.endswith(LOG_STD)]
            kl = draw.kl()
            found.append([kl, *torch.autograd.grad(kl, [*posterior, *lstm.all_weights[0]])])
            # it came with the draw
            assert set(draw.layers[lstm].kl) == {block.key for block in lstm.random_blocks}
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[1][0], Draw(lstm).kl(), rtol=1e-12, atol=0)

    def test_gradients_have_the_same_mean_and_vary_less(self):
        x, draws, found = numbers(32, 5, 6), 300, {}
        for noise in ("shared", "flipout"):
            lstm = random_gates(dict.fromkeys(("forget_gate", "cell_input"), noise), sizes=(6, 4))
            for block in lstm.random_blocks:
                getattr(lstm, block.key + LOG_STD).data.sub_(1.0)
            rows = []
            for seed in range(draws):
                # each half its own seeds: the means are of independent draws
                loss = drawn(lstm, x, seed=seed + draws * (noise == "shared"))[0].square().mean()
                rows.append(torch.cat([g.flatten() for g in gradients(loss, lstm)]))
            found[noise] = torch.stack(rows)
        variances = {noise: float(rows.var(0).sum()) for noise, rows in found.items()}
        assert variances["flipout"] < variances["shared"] / 2
        a, b = found.values()
        z = (a.mean(0) - b.mean(0)) / ((a.var(0) + b.var(0)) / draws).sqrt()
        # standard normal, were they independent: 700 of them
        assert z.abs().max() < 5 and z.square().mean() < 2


class TestLocal:
    def test_mean_variance_and_gradients(self):
        layer, x = make(UncertainLinear(3, 4), noise="local"), numbers(5, 6, 3)
        y = drawn(layer, x)
        eps = torch.empty(5, 6, 4, dtype=PRECISE)
        eps.normal_(generator=torch.Generator().manual_seed(3))
        variance = x**2 @ (2 * layer.weight_log_std).exp().T + (2 * layer.bias_log_std).exp()
        expected = x @ layer.weight.T + layer.bias + variance.sqrt() * eps
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-10)
        assert_same_gradients(y.square().sum(), expected.square().sum(), layer)

    def test_some_rows(self):
        layer = UncertainLinear(3, 4).to(PRECISE)
        layer.make_random("weight", Bayes(**OPTIONS, noise="local"), location="a", rows=(1, 3))
        x = numbers(2, 3)
        moved = drawn(layer, x) - layer(x)
        assert (moved[:, [0, 3]] == 0).all() and (moved[:, 1:3] != 0).all()


class TestEmbedding:
    IDS = torch.tensor([[1, 2, 1, 3], [1, 1, 2, 2]])

    @pytest.mark.parametrize(
        ("noise", "classes"),
        [
            ("shared", [[1, 2, 1, 3], [1, 1, 2, 2]]),
            ("sequence", [[1, 2, 1, 3], [4, 4, 5, 5]]),
            ("token", [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ],
    )
    def test_what_has_one_draw(self, noise, classes):
        layer = make(UncertainEmbedding(5, 6), noise=noise)
        eps = (drawn(layer, self.IDS) - layer(self.IDS)) / layer.weight_log_std.exp()[self.IDS]
        same = torch.cdist(eps.flatten(0, 1), eps.flatten(0, 1)) < 1e-9
        expected = torch.tensor(classes).flatten()
        assert same.equal(expected.unsqueeze(0) == expected.unsqueeze(1))

    @pytest.mark.parametrize("noise", ["sequence", "token"])
    def test_gradients(self, noise):
        layer = make(UncertainEmbedding(5, 6), noise=noise)
        y = drawn(layer, self.IDS)
        std = layer.weight_log_std.exp()[self.IDS]
        eps = ((y - layer.weight[self.IDS]) / std).detach()
        expected = layer.weight[self.IDS] + std * eps
        assert_same_gradients(y.square().sum(), expected.square().sum(), layer)


def test_where_noise_must_be_shared():
    kind = {"kind": "bayes", "noise": "flipout"}
    local, process = {**kind, "noise": "local"}, {**kind, "kind": "gp"}
    with pytest.raises(InputError, match="noise of cell_input@1: valid are shared, flipout here"):
        BayesLSTMLM(9, unit=4, uncertainty={"cell_input@1": local})
    for place in ("cell_input@1", "hidden_input@1"):
        with pytest.raises(InputError, match=f"noise of {place}: valid are shared here, got 'fli"):
            BayesLSTMLM(9, unit=4, uncertainty={place: process})
    gru = {"backbone": "seq_rnn", "backbone_conf": {"unit": 4, "rnn_type": "gru"}}
    with pytest.raises(InputError, match="noise of new_gate@1: valid are shared here, got 'flip"):
        BayesESPnetLM(9, **gru, uncertainty={"new_gate@1": kind})
    searched = {"forget_gate@1": kind, "cell_input@1": "search"}
    with pytest.raises(InputError, match="noise of cell_input@1: valid are shared in a layer tha"):
        BayesLSTMLM(9, unit=4, uncertainty=searched)
    for place, lm in (("ffn_out@1", BayesTransformerLM), ("cell_input@1", BayesLSTMLM)):
        search = {"kind": "search", "candidates": ["point", kind]}
        conf = SMALL if lm is BayesTransformerLM else {"unit": 4}
        with pytest.raises(InputError, match=f"noise of {place}: valid are shared in a layer"):
            lm(9, **conf, uncertainty={place: search})
    with pytest.raises(InputError, match="noise of embedding: valid are shared, sequence, token"):
        BayesLSTMLM(9, unit=4, uncertainty={"embedding": kind})
    with pytest.raises(InputError, match="noise of ffn@1: valid are shared, flipout, local, sequ"):
        BayesTransformerLM(9, **SMALL, uncertainty={"ffn@1": {"kind": "bayes", "noise": "none"}})
