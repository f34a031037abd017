"""Traces of torch.profiler, asked of a running job from outside by the protocol of Kineto, which is in official torch wheels."""
