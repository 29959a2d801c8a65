"""scikit-learn's own checks, and the conventions that they do not cover."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, OneHotEncoder
from sklearn.utils.estimator_checks import check_estimator

from preassert import LabelMap

# Labels are n-d (masks, 512 x 512 today and 256 x 256 tomorrow): there are no features to count, and 1-d is the usual case.
NO_FEATURES = "labels have no fixed number of features"
INAPPLICABLE = {
    "check_n_features_in_after_fitting": NO_FEATURES,
    "check_n_features_in": NO_FEATURES,
    "check_transformer_general": f"its last step wants an error on another number of features: {NO_FEATURES}",
    "check_fit1d": "it wants 1-d input to be refused",
    "check_fit2d_predict1d": "it wants 1-d input to be refused",
    "check_transformer_data_not_an_array": "nested lists come back as nested lists, not as an ndarray",
}


def test_estimator_checks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(LabelMap(), on_fail=None, expected_failed_checks=INAPPLICABLE)
    assert [(r["check_name"], str(r["exception"])) for r in results if r["status"] == "failed"] == []
    assert sum(r["status"] == "passed" for r in results) >= 35
    # An exemption that is no longer needed is an error.
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(INAPPLICABLE)


def test_parameters_clone_and_pipeline() -> None:
    fitted = LabelMap(order="frequency", unknown="other").fit(["b", "a", "b"])
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.transform(["a"])
    assert copy.set_params(unknown="error").unknown == "error"
    with pytest.raises(ValueError, match="no parameter 'sort'"):
        copy.set_params(sort=True)
    column = np.array([["b"], ["a"], ["b"]], object)
    out = make_pipeline(LabelMap(), OneHotEncoder(sparse_output=False)).fit_transform(column)
    assert out.tolist() == [[0, 1], [1, 0], [0, 1]]


def test_from_sklearn_agrees_with_the_encoder() -> None:
    labels = ["10", "9", "b", "9"]
    encoder = LabelEncoder().fit(labels)
    taken = LabelMap.from_sklearn(encoder)
    assert taken.transform(labels).tolist() == encoder.transform(labels).tolist()
    with pytest.raises(ValueError, match="fit it first"):
        LabelMap.from_sklearn(LabelEncoder())
