"""What curves and studies are taken to be like before one has taught it: measured on our own.

Curves are those of ``benchmarks/tables/digits.npz``, small networks on handwritten digits; studies
were simulated on that recording and on the generated families. The tests work both out anew.
"""

from __future__ import annotations

#: Of what two doublings of the steps bring, the part of the second one, in the middle.
SHARE = 0.31

# Of young curves; the recording is too short for older ones three doublings ahead.
_THREE = (-0.58, -0.54, -0.44, -0.1, 0.2, 0.78, 0.9)
#: The errors of :class:`~optuna_deadline.forecasting.doublings.Doublings` for young curves and for
#: older ones, one, two and three doublings ahead, by level.
ERRORS = (
    (
        (-0.37, -0.34, -0.28, -0.07, 0.09, 0.33, 0.41),
        (-0.51, -0.48, -0.39, -0.09, 0.19, 0.62, 0.72),
        _THREE,
    ),
    (
        (-0.34, -0.27, -0.12, 0.0, 0.17, 0.36, 0.47),
        (-0.37, -0.28, -0.15, 0.0, 0.26, 0.58, 0.78),
        _THREE,
    ),
)

#: By how many leads over the best tenth the best score of a study rose until its deadline, from a
#: half, a quarter and an eighth of the time on, by level: ``python -m benchmarks.leads``.
LEADS = (
    (0.0, 0.01, 0.05, 0.22, 0.36, 0.61, 0.80),
    (0.08, 0.14, 0.28, 0.44, 0.78, 1.37, 1.97),
    (0.20, 0.29, 0.47, 0.98, 1.94, 4.47, 6.00),
)
