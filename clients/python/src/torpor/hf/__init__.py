# SPDX-License-Identifier: Apache-2.0
"""Sessions of Hugging Face transformers (5.x): decoders of full and sliding layers.

    bound = torpor.hf.register(client, model, "gemma")
    bound.suspend(cache, ids, "chat")
    awake = bound.resume("chat")
    model(awake.pending(), cache=awake.cache)

The window is stored with the session (a snapshot) and comes back bit for bit.
Without one it is replayed: by the daemon, where the model is registered with its
`directory`, or by the model itself (`executor="engine"`). The witness says how far
a replayed window is from the one that slept.
"""

from torpor.hf._binding import Awake, Binding, register

__all__ = ["Awake", "Binding", "register"]
