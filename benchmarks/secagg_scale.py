"""What the scale of the encoding costs: bits on the wire, inflation of the clip norm, accuracy of what is trained.

    python benchmarks/secagg_scale.py

A softmax classifier (10 classes, 100 features, 1,000 weights) is trained by federated averaging with differential
privacy on synthetic clients: clipped updates are summed directly, or encoded, summed modulo 2^m and decoded; then the
Gaussian noise of the *inflated* clip norm is added, so that every row has the same guarantee.
"""

import math
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from reticent.secagg import RotatedCode, encoded_sum, inflated_clip_norm, smallest_scale

CLASSES, FEATURES = 10, 100
COHORT, ROUNDS, SEEDS = 50, 60, 6
CLIP, NOISE_MULTIPLIER = 1.0, 1.0
INFLATIONS = (None, 0.0001, 0.001, 0.01, 0.03, 0.1)


def clients_data(rng, centres, count, examples=20):
    labels = rng.integers(0, CLASSES, (count, examples))
    return centres[labels] + 3.0 * rng.standard_normal((count, examples, FEATURES)), labels


def local_update(weights, features, labels):
    """Three full-batch steps of softmax regression, clipped."""
    local = weights.copy()
    for _ in range(3):
        logits = features @ local
        logits -= logits.max(axis=1, keepdims=True)
        shares = np.exp(logits)
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(labels)), labels] -= 1
        local -= 0.05 * features.T @ shares / len(labels)
    update = (local - weights).reshape(-1)
    return (update * min(1.0, CLIP / np.linalg.norm(update))).astype(np.float32)


def train(inflation, seed):
    """Test accuracy after training."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((CLASSES, FEATURES))
    test, answers = clients_data(rng, centres, 1, 5000)
    weights = np.zeros((FEATURES, CLASSES))
    dimension = weights.size
    scale = inflation and smallest_scale(CLIP, dimension, inflation)
    norm = inflated_clip_norm(CLIP, scale, dimension) if scale else CLIP
    for _ in range(ROUNDS):
        features, labels = clients_data(rng, centres, COHORT)
        updates = [local_update(weights, *client) for client in zip(features, labels, strict=True)]
        noise = NOISE_MULTIPLIER * norm * rng.standard_normal(dimension)
        if scale:
            code = RotatedCode(dimension, CLIP, scale, COHORT)
            total = encoded_sum(updates, code) * code.step
        else:
            total = np.sum(updates, axis=0, dtype=np.float64)
        weights += ((total + noise) / COHORT).reshape(weights.shape)
    return float(np.mean((test[0] @ weights).argmax(axis=1) == answers[0]))


def main():
    print("Trained with the scale (noise of the inflated norm)\n")
    print("| scale / C | inflation | bits, 50 clients | accuracy |")
    print("|---|---|---|---|")
    for inflation in INFLATIONS:
        accuracy = [train(inflation, seed) for seed in range(SEEDS)]
        spread = np.std(accuracy, ddof=1) / math.sqrt(SEEDS)
        if inflation is None:
            print(f"| no encoding | 0 | - | {np.mean(accuracy):.4f} ± {spread:.4f} |")
            continue
        code = RotatedCode(FEATURES * CLASSES, CLIP, smallest_scale(CLIP, FEATURES * CLASSES, inflation), COHORT)
        print(
            f"| {code.scale * CLIP:,.0f} | {code.inflation:.2%} | {code.modulus_bits} | "
            f"{np.mean(accuracy):.4f} ± {spread:.4f} |"
        )
    print("\nAt 6.4 million parameters\n")
    print("| scale / C | inflation | bits, 1,000 clients | bits, 10,000 clients |")
    print("|---|---|---|---|")
    for inflation in INFLATIONS[1:]:
        scale = smallest_scale(CLIP, 6_400_000, inflation)
        bits = [RotatedCode(6_400_000, CLIP, scale, cohort).modulus_bits for cohort in (1000, 10_000)]
        print(f"| {scale:,.0f} | {inflation:.2%} | {bits[0]} | {bits[1]} |")


if __name__ == "__main__":
    main()
