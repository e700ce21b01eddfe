"""What curves are taken to be like before a study has any: measured on the project's recording.

That is ``benchmarks/tables/digits.npz``, small networks on handwritten digits. The tests work both
out anew.
"""

from __future__ import annotations

#: Of what two doublings of the steps bring, the part of the second one, in the middle.
SHARE = 0.31

#: The errors of :class:`~optuna_deadline.forecasting.doublings.Doublings` one, two and three
#: doublings ahead, at the levels .05, .1, .25, .5, .75, .9, .95.
ERRORS = (
    (-0.34, -0.29, -0.18, 0.0, 0.14, 0.46, 0.89),
    (-0.47, -0.41, -0.27, -0.04, 0.24, 1.29, 2.85),
    (-0.58, -0.54, -0.46, -0.16, 0.31, 4.13, 11.58),
)
