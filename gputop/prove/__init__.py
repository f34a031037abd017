"""Experiments on the living system: a suspected cause is switched off and on again, settings are tried out; everything is put back."""
