"""Experiments on the living system: a suspected cause is switched off and on again in turn, and everything is put back."""
