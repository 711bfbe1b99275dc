"""The Gibbs sampler: a file a block, and the sweep that lists them."""
