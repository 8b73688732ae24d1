"""From a step plan to sampled tokens: the flat batch, the forward, the sampler."""
