"""The table of all operators that keep a state, have an effect or take a resource, against TensorFlow's registry."""

from __future__ import annotations

import pytest
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from tensoropt.frontend import stateful
from tensoropt.frontend.stateful import Treatment, is_stateful, treatment_of, why_refused


def test_every_stateful_operator_of_tensorflow_is_in_one_class():
    listed = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())).op
    names = {op.name for op in listed if is_stateful(op.name)}
    assert len(names) > 600
    unknown = [name for name in sorted(names) if treatment_of(name) is Treatment.REFUSED and not why_refused(name)]
    assert not unknown, "a class, or a family that is refused, in tensoropt/frontend/stateful.py"
    known = [name for line in stateful._KNOWN.values() for name in line.split()]
    assert len(known) == len(set(known)) and set(known) <= names, "a name twice, or one that TensorFlow doesn't know"


@pytest.mark.parametrize("name", ["MatMul", "PartitionedCall", "no operator"])
def test_operators_that_only_compute_are_in_no_class(name):
    assert treatment_of(name) is None
