"""The same rounds on real devices, over Flower.

`terms` is what everybody agrees on; `device` (with `diary`, `budget`, `learning`) runs on each device, `coordinator` and
`deployment` on the server; `flower` carries their messages; `federation`, `supernode`, `keys` and `app` start it all.

Only what is needed at a step is imported: a process starts per message on a device, and only the one that trains loads JAX.
"""
