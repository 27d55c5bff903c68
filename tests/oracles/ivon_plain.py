"""IVON, straight from Algorithm 1 of Shen et al. 2024 (arXiv 2402.17641), in numpy float64."""

import numpy as np


def ivon_plain(
    mean,
    gradient,
    noises,
    *,
    lr,
    ess,
    hess_init,
    beta1,
    beta2,
    weight_decay,
    clip_radius=np.inf,
    rescale_lr=True,
    prior=None,
):
    """Return the mean and sigma after each step, a list of pairs.

    Args:
        mean: The first m, (D,).
        gradient: (theta, t) -> gradient of the loss of step t = 1, 2, .. at theta, (D,).
        noises: eps of each step, each (D,).
        lr, ess, hess_init, beta1, beta2, weight_decay: Of the algorithm.
        clip_radius: Bound of each element of the update before the learning rate.
        rescale_lr: Whether the learning rate is multiplied by h0 + delta.
        prior: Mean and sigma of the prior, (D,) each; None: 0 and 1 / sqrt(ess * delta).
    """
    m = np.array(mean, dtype=np.float64)
    g = np.zeros_like(m)
    h = np.full_like(m, hess_init)
    rate = lr * (hess_init + weight_decay) if rescale_lr else lr
    history = []
    origin = 0.0
    if prior is not None:
        origin, weight_decay = prior[0], 1 / (ess * prior[1] ** 2)
    for t, eps in enumerate(noises, 1):
        sigma = 1 / np.sqrt(ess * (h + weight_decay))
        theta = m + sigma * eps
        g_hat = gradient(theta, t)
        h_hat = g_hat * (theta - m) / sigma**2
        g = beta1 * g + (1 - beta1) * g_hat
        correction = 0.5 * (1 - beta2) ** 2 * (h - h_hat) ** 2 / (h + weight_decay)
        h = beta2 * h + (1 - beta2) * h_hat + correction
        g_bar = g / (1 - beta1**t)
        update = (g_bar + weight_decay * (m - origin)) / (h + weight_decay)
        m = m - rate * np.clip(update, -clip_radius, clip_radius)
        history.append((m, 1 / np.sqrt(ess * (h + weight_decay))))
    return history
