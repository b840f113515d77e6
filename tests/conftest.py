"""One thread for NumPy's linear algebra, in the tests and what they start: two test workers whose threads wait for each
other in spinning loops took 400 seconds for what one thread each does in 14."""

import os

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
