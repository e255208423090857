"""Paths between token sequences of a causal language model, one point and one position at a time, in float64."""

import numpy as np
import torch

from tests.oracles.reference import damped_fit, effective_degree, softmax


def embed(model, ids):
    return model.get_input_embeddings()(ids)


@torch.no_grad()
def run_point(model, one, other, mask, alpha, **options):
    """Return the probabilities at every position of the point between two sequences of token ids."""
    between = alpha * embed(model, one) + (1 - alpha) * embed(model, other)
    logits = model(inputs_embeds=between[None], attention_mask=mask[None], use_cache=False, **options).logits
    return softmax(logits[0].numpy())


def penalty_of_sequences(model, batch, pairs, alpha, *, anchor, top, degree, damping):
    """Average the effective degree over the positions of all paths that count; the nodes are the same on all paths."""
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    length, vocabulary = ids.shape[1], model.config.vocab_size
    degrees = []
    for first, second in pairs:
        joined = torch.maximum(mask[first], mask[second])
        own = [run_point(model, ids[end], ids[end], mask[end], 1.0) for end in (first, second)]
        points = [run_point(model, ids[first], ids[second], joined, a) for a in alpha]
        inner = points if anchor is None else points[1:-1]
        for t in range(length - 1):
            targets = [int(labels[end, t + 1]) for end in (first, second)]
            if not (mask[first, t] and mask[second, t]) or targets == [-100, -100]:
                continue
            likely = np.mean([values[t] for values in (*own, *inner)], axis=0)
            known = list(dict.fromkeys(token for token in targets if token != -100))
            others = [token for token in np.argsort(-likely) if token not in known]
            tokens = (known + others)[:top]

            def bins(probabilities, tokens=tokens):
                picked = [probabilities[token] for token in tokens]
                return picked if top >= vocabulary else [*picked, 1 - sum(picked)]

            values = [bins(point[t]) for point in inner]
            if anchor is not None:
                ends = []
                for target, output in zip(targets, own, strict=True):
                    labeled = anchor == "labels" and target != -100
                    ends.append(bins(np.eye(vocabulary)[target] if labeled else output[t]))
                values = [ends[1], *values, ends[0]]
            coefficients = damped_fit(np.array(values), alpha, degree, "chebyshev", damping)
            degrees.append(effective_degree(coefficients))
    return float(np.mean(degrees))
