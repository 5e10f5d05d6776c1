"""Count the peaks of many strategies of one model quickly, by compiled kernels on numbers.

The step program (:mod:`..step`) with its buffers (:mod:`..memory.buffers`) says what a step is, and is the oracle of this
package: both give the same peak of any strategy, to the byte. What depends on the choices around a site is computed by the
program's own functions, once for each combination (:mod:`.rows`); the kernels then write the step (:mod:`.records`)
and count (:mod:`.instruct`).
"""

from .peaks import Peaks
from .rows import Columns

__all__ = ["Columns", "Peaks"]
