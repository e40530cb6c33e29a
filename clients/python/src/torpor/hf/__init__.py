# SPDX-License-Identifier: Apache-2.0
"""Sessions of Hugging Face transformers (5.x): Gemma 3 text models.

    bound = torpor.hf.register(client, model, "gemma")
    bound.suspend(cache, ids, "chat")
    awake = bound.resume("chat")
    model(awake.pending(), past_key_values=awake.cache)

The window is stored with the session (a snapshot) and comes back bit for bit.
A model that is registered with `directory` may be woken without one: then the
daemon replays, whose bits are not those of torch; the witness says how far its
window is from the one that slept.
"""

from torpor.hf._binding import Awake, Binding, register

__all__ = ["Awake", "Binding", "register"]
