"""Layers in 8 bits by static post-training quantization, calibrated on a user's own texts.

`scales` sees what products read while a session answers, and chooses what each of them needs; `files` keeps scales
beside a bundle; `calibrate` does all of it and measures what changes.
"""
