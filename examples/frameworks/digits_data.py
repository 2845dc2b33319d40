"""The handwritten digits that come with scikit-learn, for the examples beside: 1,797 images of 8 x
8 pixels.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Array = npt.NDArray[Any]


@cache
def digits() -> tuple[Array, Array, Array, Array]:
    """Training and validation images as rows of 64 pixels from 0 to 1, then their labels; the same
    split in each trial.
    """
    images, labels = load_digits(return_X_y=True)
    train_x, valid_x, train_y, valid_y = train_test_split(
        (images / 16).astype("float32"), labels, test_size=0.25, stratify=labels, random_state=0
    )
    return train_x, valid_x, train_y, valid_y
