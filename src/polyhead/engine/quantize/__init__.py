"""Layers in 8 bits by static post-training quantization, calibrated on a user's own texts.

`scales` is what one product needs, and how it is chosen; `watch` sees what products read while a session answers;
`files` keeps scales beside a bundle; `calibrate` does all of it and measures what changes.
"""
